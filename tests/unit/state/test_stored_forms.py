"""What lies in the state store and in table records is read as records, and written back as it was read."""

from __future__ import annotations

import json

import pytest

from dblog_core.interfaces import StateStore
from dblog_core.model.events import Unreadable
from dblog_core.model.schema import TableName
from dblog_core.state import capture_status, owed_dumps, recent_errors, settings_in_force, stopped_tables
from dblog_core.state.capture_status import LeaderReport, ReportedWindow
from dblog_core.state.memory import MemoryState
from dblog_core.state.owed_dumps import OwedDump
from dblog_core.state.recent_errors import RecentError
from dblog_core.state.settings_in_force import LiveSettings, RulesInForce
from dblog_core.state.stopped_tables import RepairSeenBy, StoppedTable

STOPPED = '{"shop.a": {"why": "it has no key", "fix": "give it one", "by": "source"}}'
OWED = '{"shop.a": {"dump": "d1", "why": "n holds NaN", "times": 2, "asked": null}}'
ERRORS = '[{"at": 2000000, "first": 1000000, "times": 3, "part": "merge", "error": "no room", "fix": "make room"}]'
REPORT = (
    '{"at": 5000000, "lag_seconds": 0.5, "rows_per_second": 7.0, '
    '"windows": [{"table": "shop.a", "dump": "d1", "opened": 4000000}], "epoch": 3, "answers": false}'
)
SETTINGS = """{"tables": ["shop.*"], "columns": {"shop.a": {"exclude": ["x"], "mask": [], "hash": ["v"],
"staged_as": {"price": "double"}}}, "keys": {"shop.b": ["id"]}, "hash_key": "d"}"""


def holding(node: str, text: str) -> MemoryState:
    state = MemoryState()
    state.create(node, text.encode())
    return state


def read_json(state: StateStore, node: str) -> object:
    entry = state.get(node)
    assert entry is not None
    return json.loads(entry.data)


def test_stopped_tables() -> None:
    state = holding("stopped", STOPPED)
    assert stopped_tables.read(state) == {"shop.a": StoppedTable("it has no key", "give it one", RepairSeenBy.SOURCE)}
    stopped_tables.add_by_log(state, "shop.b", Unreadable(0, 0, TableName("shop", "b"), "why", "fix", refused=True))
    expected = {"shop.b": {"why": "why", "fix": "fix", "by": "either"}, **json.loads(STOPPED)}
    assert read_json(state, "stopped") == expected
    stopped_tables.owe(state, ["shop.b"])
    assert read_json(state, "stopped") == {**expected, "shop.b": {"why": "why", "fix": "fix", "by": "source"}}
    stopped_tables.forget(state, ["shop.a", "shop.b"])
    assert read_json(state, "stopped") == {}


def test_owed_dumps() -> None:
    state = holding("owed", OWED)
    assert owed_dumps.read(state) == {"shop.a": OwedDump("d1", "n holds NaN", 2)}
    owed_dumps.record_requests(state, {"shop.a": "d2"})
    assert read_json(state, "owed") == {"shop.a": {"dump": "d1", "why": "n holds NaN", "times": 2, "asked": "d2"}}
    owed_dumps.record_failures(state, "d2", {"shop.a": "again"})
    assert read_json(state, "owed") == {"shop.a": {"dump": "d2", "why": "again", "times": 3, "asked": None}}


@pytest.mark.parametrize("module", [stopped_tables, owed_dumps], ids=["stopped", "owed"])
def test_nothing_is_written_where_nothing_was_and_nothing_is(module: object) -> None:
    state = MemoryState()
    module.forget(state, ["shop.a"])  # type: ignore[attr-defined]
    assert state.get("stopped") is None and state.get("owed") is None


def test_recent_errors() -> None:
    state = holding("errors", ERRORS)
    (error,) = recent_errors.read(state)
    assert error == RecentError(2_000_000, 1_000_000, 3, "merge", "no room", "make room")
    assert [error.to_json()] == json.loads(ERRORS)


def test_the_report_of_a_leader() -> None:
    state = holding("capture/status", REPORT)
    report = capture_status.read_status(state)
    assert report == LeaderReport(5_000_000, 0.5, 7.0, (ReportedWindow("shop.a", "d1", 4_000_000),), 3, False)
    assert report.to_json() == json.loads(REPORT)


def test_the_report_of_a_leader_of_an_earlier_version_says_not_whether_it_answers() -> None:
    text = '{"at": 5000000, "lag_seconds": null, "rows_per_second": 0, "windows": []}'
    report = capture_status.read_status(holding("capture/status", text))
    assert report == LeaderReport(5_000_000, None, 0.0, (), None, None)


def test_the_settings_in_force() -> None:
    state = holding("tables", SETTINGS)
    settings = settings_in_force.read_in_force(state)
    rules = RulesInForce(exclude=("x",), hash=("v",), staged_as={"price": "double"})
    assert settings == LiveSettings(["shop.*"], {"shop.a": rules}, {"shop.b": ["id"]}, "d")
    settings_in_force.put_in_force(state, settings)
    assert read_json(state, "tables") == json.loads(SETTINGS)
    assert "hash_key" not in LiveSettings(["shop.*"], {}, {}).to_json()


def test_the_column_rules_of_other_versions() -> None:
    """One knew fewer kinds of rules, and has none of the others; one knows more, and its rules are equal to none."""
    (earlier,) = _read_rules('{"hash": ["v"], "mask": []}')
    (later,) = _read_rules('{"hash": ["v"], "blur": {"v": 3}}')
    assert earlier == RulesInForce(hash=("v",)) != later
    assert later.to_json() == {"exclude": [], "mask": [], "hash": ["v"], "staged_as": {}, "blur": {"v": 3}}


def _read_rules(rules: str) -> list[RulesInForce]:
    text = f'{{"tables": ["shop.*"], "columns": {{"shop.a": {rules}}}}}'
    settings = settings_in_force.read_in_force(holding("tables", text))
    assert settings is not None and settings.keys == {} and settings.hash_key is None
    return list(settings.columns.values())
