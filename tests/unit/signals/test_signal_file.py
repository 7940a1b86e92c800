"""The file of signals: each line is taken in once, however the file grows."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.clock import SystemClock
from dblog_core.dumps import dump_store
from dblog_core.signals import inbox
from dblog_core.signals.file import SignalFile
from dblog_core.signals.processor import SignalProcessor
from tests.unit.requests_world import World
from tests.unit.signals_world import Dies, Fragile, desk, ids, line, world

__all__ = ["desk", "world"]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


def reader(world: World, path: Path) -> SignalFile:
    return SignalFile(path, world.state, SystemClock())


def test_lines_are_taken_in_once_and_a_half_written_one_waits(world: World, lines: Path) -> None:
    reader(world, lines).read_new_lines()  # nobody has made it yet
    lines.write_bytes(line("one") + line("two")[:20])
    reader(world, lines).read_new_lines()
    assert ids(world) == ["one"]
    lines.write_bytes(line("one") + line("two") + b"\n")
    for _ in range(2):
        reader(world, lines).read_new_lines()
    assert ids(world) == ["one", "two"]


def test_a_file_that_is_another_one_is_read_from_its_beginning(world: World, lines: Path) -> None:
    lines.write_bytes(line("one") + line("two"))
    follower = reader(world, lines)
    follower.read_new_lines()
    lines.write_bytes(line("three"))
    follower.read_new_lines()
    lines.write_bytes(line("four") + line("five") + line("six"))
    follower.read_new_lines()
    assert ids(world) == ["one", "two", "three", "four", "five", "six"]


def test_a_line_that_is_no_signal_is_refused_once_and_holds_up_nothing(world: World, lines: Path) -> None:
    lines.write_bytes(b"what?\n\xff\n" + orjson.dumps({"type": "x"}) + b"\n" + line("one") + line("two", data="{}"))
    for _ in range(2):
        reader(world, lines).read_new_lines()
    assert [r.state for r in inbox.list_signals(world.state)] == [
        *["refused"] * 3,
        "waiting",
        "waiting",
    ]


def test_a_crash_between_a_line_and_its_place_repeats_nothing(world: World, lines: Path, desk: SignalProcessor) -> None:
    lines.write_bytes(line("one") + line("two"))
    for step in (1, 2, 3):
        with pytest.raises(Dies):
            SignalFile(lines, Fragile(world.state, step, after=True), SystemClock()).read_new_lines()  # type: ignore[arg-type]
        desk.carry_out_waiting()
    reader(world, lines).read_new_lines()
    desk.carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 2


@given(st.lists(st.integers(0, 400), max_size=8))
def test_however_a_file_grows_each_line_is_taken_in_once(cuts: list[int]) -> None:
    import tempfile

    from dblog_core.state.memory import MemoryState

    whole = b"".join(line(str(n)) for n in range(5))
    state = MemoryState()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines"
        for end in (*sorted(cuts), len(whole)):
            path.write_bytes(whole[:end])
            SignalFile(path, state, SystemClock()).read_new_lines()
    assert [r.id for r in inbox.list_signals(state)] == [str(n) for n in range(5)]
