"""Files as an output: what the contract of outputs does not ask."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from dblog_core.outputs.files import FilesOutput
from dblog_core.storage.factory import open_storage


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_relay_that_is_killed_leaves_no_file_of_lines_that_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    output = FilesOutput(open_storage(str(tmp_path / "out"), "shop/out", temporary="_tmp"), form=form)
    output.open(1)
    names = ("op", "table", "key", "before", "after", "position", "transaction", "commit_time", "origin")
    output.write([{"offset": 1, "unchanged": [], **dict.fromkeys(names)}])
    assert list(scratch.iterdir()) == []
    output.commit(1)
    assert output.open(2) == 1
    output.close()
