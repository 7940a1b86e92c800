"""An acceptance counts for the table that a person has seen, from that place in the log on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dblog_core.capture.healing.accepted_tables import distrust_log, open_guard
from dblog_core.config.settings import Config
from dblog_core.model.events import Altered
from dblog_core.model.schema import TableName
from dblog_core.model.schema_changes import Step
from dblog_core.monitoring import held_tables
from dblog_core.rows.acceptance import Acceptance, Held, digest_columns
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import TableGuard
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import accepted_shapes, rule_acceptances
from dblog_core.state.memory import MemoryState
from tests.unit.staged import manifest, table

PEOPLE = table("shop.people")
CONFIG = Config.model_validate(
    {
        "source": {
            "name": "shop",
            "kind": "mysql",
            "database": "shop",
            "tables": ["shop.*"],
            "columns": {"shop.people": {"mask": ["big"]}},
        },
        "staging": {"path": "/unused"},
        "state": {"url": "sqlite:////unused"},
        "lake": {"path": "/unused"},
    }
)


class LogTells:
    """A source of which the log tells what becomes of tables; `end`: of its log."""

    def __init__(self) -> None:
        self.end = 12

    def origins(self, tables: Collection[TableName]) -> None:
        return None

    def tables(self) -> tuple[Any, ...]:
        return (PEOPLE,)

    def list_refusals(self) -> tuple[Any, ...]:
        return ()

    def current_position(self) -> str:
        return str(self.end)

    def has_reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)


class Capture:
    """What a term begins with: a manifest, up to which the log is read."""

    def __init__(self, path: Path) -> None:
        self.staging = Staging(str(path), source="shop")
        self.source = LogTells()
        self.state = MemoryState()
        entry = Rules.of(CONFIG.source).digest(PEOPLE.table)
        accepted = Acceptance(entry, digest_columns(PEOPLE))
        self.guard = TableGuard(CONFIG.source.columns, {"shop.people": entry}, {"shop.people": accepted})

    def publish(self, position: int = 9) -> Manifest:
        records = TableRecords()
        accepted_shapes.save(records, self.guard.acceptances)
        number = self.staging.head_number() + 1
        carried = records.write(self.staging.storage, segment=number, epoch=1)
        head = replace(manifest(number, 1, 0), position=str(position), records=carried)
        self.staging.publish(head)
        return head

    def swap_columns(self) -> None:
        self.guard.follow(Altered(0, 0, PEOPLE.table, Step(renamed={"big": "name", "name": "big"})))

    def accept(self) -> None:
        source: Any = self.source
        self.publish()
        held_tables.accept(CONFIG, source, self.staging, self.state, ["shop.people"])

    def take_up(self, position: int = 9, *, is_log_lost: bool = False) -> Acceptance:
        head = self.publish(position)
        records = TableRecords.load(self.staging, head)
        parts: Any = SimpleNamespace(config=CONFIG, source=self.source, state=self.state, records=records)
        if is_log_lost:
            distrust_log(parts)
        acceptance = open_guard(parts, head).guard.find("shop.people")
        assert acceptance is not None
        return acceptance


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    capture = Capture(tmp_path)
    capture.swap_columns()
    return capture


def test_a_table_passes_from_the_place_on_at_which_somebody_looked(capture: Capture) -> None:
    """Behind it a statement holds the table again, which the log has by now and nobody has read."""
    capture.accept()
    capture.source.end = 20
    acceptance = capture.take_up()
    assert acceptance.why_held is None and acceptance.since == "12"
    assert capture.take_up(position=12).since == ""


def test_a_table_that_was_altered_since_somebody_looked_stays_held_though_it_looks_the_same(capture: Capture) -> None:
    capture.accept()
    capture.swap_columns()
    assert capture.take_up(position=20).why_held is Held.RESHAPED
    assert rule_acceptances.read(capture.state) == {}, "somebody has to look again"


def test_a_table_stays_held_of_which_log_was_lost_since_somebody_looked(capture: Capture) -> None:
    capture.accept()
    assert capture.take_up(position=20, is_log_lost=True).why_held is Held.RESHAPED


def test_statements_are_counted_over_acceptances(capture: Capture) -> None:
    capture.accept()
    accepted = capture.take_up(position=20)
    capture.guard.accept("shop.people", accepted)
    capture.swap_columns()
    held = (capture.guard.acceptances or {})["shop.people"]
    assert (accepted.version, held.version) == ("1", "2")
