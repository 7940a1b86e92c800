"""The file of dead letters: what is noted stays noted, and what was cut short was not."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from dblog_core.errors import OutputRefused
from dblog_core.outputs.dead_letters import DeadLetters


def _letters(path: Path, *, output: str = "out") -> DeadLetters:
    letters = DeadLetters(path, source="shop", output=output)
    letters.read()
    return letters


def test_what_is_noted_is_known_to_the_next_relay_of_that_output_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "letters"
    _letters(path).note_line({"offset": 7, "op": "c"}, "too long")
    assert _letters(path).holds_line({"offset": 7})
    assert not _letters(path).holds_line({"offset": 8})
    assert not _letters(path, output="other").holds_line({"offset": 7})


def test_nobody_else_may_read_what_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "new" / "letters"
    before = os.umask(0o022)
    try:
        _letters(path).note_line({"offset": 7, "op": "c"}, "too long")
    finally:
        os.umask(before)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_note_that_was_cut_short_counts_as_none_and_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "letters"
    _letters(path).note_line({"offset": 7}, "too long")
    whole = path.read_bytes()
    for cut in range(1, len(whole) - 1):
        path.write_bytes(whole + whole.replace(b"7", b"8")[:cut])
        letters = _letters(path)
        assert letters.holds_line({"offset": 7}) and not letters.holds_line({"offset": 8})
        letters.note_line({"offset": 8}, "again")
        assert _letters(path).holds_line({"offset": 8})
        assert orjson.loads(path.read_bytes().splitlines()[-1])["reason"] == "again"


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputRefused, match="cannot be used"):
        _letters(tmp_path)
    with pytest.raises(OutputRefused, match="cannot be used"):
        DeadLetters(tmp_path, source="shop", output="out").note_line({"offset": 1}, "x")
