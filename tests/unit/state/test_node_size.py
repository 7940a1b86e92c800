"""What thousands of tables are stopped for, or owed, finds room in one node."""

from __future__ import annotations

import orjson

from dblog_core.interfaces import Problem
from dblog_core.state import owed_dumps, stopped_tables
from dblog_core.state.memory import MemoryState
from dblog_core.state.node_size import LARGEST_BYTES, shorten_texts

TABLES = [f"shop.table_{number}" for number in range(4_000)]


def test_texts_are_cut_as_far_as_they_have_to_be() -> None:
    few = {"shop.a": {"why": "x" * 2_000, "times": 1}}
    assert shorten_texts(few, "why") == few
    many = {table: {"why": "x" * 600, "times": 1} for table in TABLES}
    shortened = shorten_texts(many, "why")
    assert shortened.keys() == many.keys() and len(orjson.dumps(shortened)) <= LARGEST_BYTES
    assert {len(str(entry["why"])) for entry in shortened.values()} == {150}
    assert shorten_texts(shortened, "why") == shortened


def test_debts_and_refusals_of_thousands_of_tables_find_room() -> None:
    state = MemoryState()
    owed_dumps.record_failures(state, "", dict.fromkeys(TABLES, "the table cannot be read: " + "x" * 600))
    assert list(owed_dumps.read(state)) == TABLES
    refusals = [Problem(f"{table}: the user may not read it", "GRANT SELECT " * 40, table=table) for table in TABLES]
    stopped_tables.look_again(state, lambda: refusals)
    stopped = stopped_tables.read(state)
    assert list(stopped) == TABLES and stopped[TABLES[0]].why.startswith(f"{TABLES[0]}: the user")
    for node in ("owed", "stopped"):
        entry = state.get(node)
        assert entry is not None and len(entry.data) <= LARGEST_BYTES
