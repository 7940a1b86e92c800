"""Each mistake of `mutants`, put back, is found by its test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.errors import DblogError
from tests.unit.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: Mutant, tmp_path: Path) -> None:
    (tmp_path / "well").mkdir()
    mutant.found_by(tmp_path / "well")
    with pytest.MonkeyPatch.context() as patched:
        mutant.patch(patched)
        with pytest.raises((AssertionError, ValueError, DblogError, pytest.fail.Exception)):
            mutant.found_by(tmp_path)
