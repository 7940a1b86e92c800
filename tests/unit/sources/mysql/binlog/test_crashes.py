"""Where a file of the log ends without a word, the server has crashed: with some settings tables may lack the rows."""

from __future__ import annotations

import struct

import pytest

from dblog_core.model.events import Crashed, Signal
from dblog_core.sources.mysql.binlog import events
from tests.unit import logged_events as logged

COMMIT = (logged.gtid(1), logged.query("BEGIN"), logged.event(events.Type.XID, bytes(8), end=500))
STOP = (logged.event(events.Type.STOP, b"", end=523),)


def opens(number: int) -> bytes:
    """What the server makes up when it begins to send a file."""
    return logged.event(events.Type.ROTATE, _place(number), flags=events.ARTIFICIAL)


def rotates(number: int) -> bytes:
    return logged.event(events.Type.ROTATE, _place(number), end=544)


def _place(number: int) -> bytes:
    return struct.pack("<Q", 4) + f"binlog.{number:06}".encode()


def signals(*log: bytes, loses_commits: bool = True, is_file_cut: bool = False) -> tuple[Signal, ...]:
    state = logged.state(loses_commits=loses_commits, is_file_cut=is_file_cut)
    logged.take(state, *log)
    return state.flush().signals


@pytest.mark.parametrize(
    ("log", "is_file_cut"),
    [
        ((opens(1), *COMMIT, opens(2)), False),
        ((opens(1), opens(2)), False),
        ((opens(1), *STOP, opens(2), opens(3)), False),
        ((opens(2),), True),
        ((opens(1), opens(2)), True),
    ],
    ids=["after-rows", "without-rows", "after-a-shutdown", "at-the-position", "at-the-position-and-read-again"],
)
def test_a_file_that_ends_without_a_word_shows_a_crash_once(log: tuple[bytes, ...], is_file_cut: bool) -> None:
    [crash] = signals(*log, is_file_cut=is_file_cut)
    assert isinstance(crash, Crashed)
    assert not signals(*log, is_file_cut=is_file_cut, loses_commits=False), "what is written at each commit is kept"


@pytest.mark.parametrize(
    "log",
    [
        (opens(1), *COMMIT, rotates(2), opens(2), *COMMIT),
        (opens(1), *COMMIT, *STOP, opens(2)),
        (opens(2), *COMMIT),
        (opens(1), *COMMIT, opens(1)),
    ],
    ids=["rotated", "shut-down", "begun-in-another-file", "the-same-file"],
)
def test_a_file_that_the_server_has_ended_shows_none(log: tuple[bytes, ...]) -> None:
    assert signals(*log) == ()


def test_a_crash_is_in_the_batch_that_moves_the_position_into_the_next_file() -> None:
    state = logged.state(loses_commits=True)
    logged.take(state, opens(1), *COMMIT)
    assert not state.flush().signals
    logged.take(state, opens(2))
    batch = state.flush()
    assert [type(signal) for signal in batch.signals] == [Crashed] and '"binlog.000002","offset":4' in batch.position
    [transaction] = batch.transactions
    assert transaction.position == "binlog.000002:4" and transaction.commit_time == 1_700_000_000_000_000
