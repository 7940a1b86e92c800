"""A world in which tables stop: columns are hidden, people alter what was accepted, the log has values without a form,
and dumps fail for good.

    no value that a rule hides is written in clear        to staging or to the state store, whatever a statement did
    a table equals its source, or the manifest says why   stopped, held, waiting, or owed a dump; the others continue
    a table that is accepted or repaired becomes equal    by a dump, over crashes and takeovers
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.config.settings import Config
from dblog_core.errors import RequestError, SourceForbids
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.acceptance import Acceptance, digest_columns
from dblog_core.rows.column_rules import MASK, Rules
from dblog_core.staging import inline_rows, table_records
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import accepted_shapes, owed_dumps, stopped_tables
from tests.simulation.database import Row
from tests.simulation.migrations import HIDDEN, PEOPLE, SECRET_NUMBER, Migrator
from tests.simulation.parts import TABLES
from tests.simulation.world import Violation, World

MARKED = "SECRET-"
"""How each value begins that is to be hidden."""
_REST_SECONDS = 240.0
_STAYS_SECONDS = 3.0


class _PlainCodec:
    """Rows in a manifest as they are: what is packed cannot be searched."""

    def compress(self, data: Any) -> bytes:
        return bytes(data)

    def decompress(self, data: bytes, decompressed_size: int) -> bytes:
        return data


class _File:
    """A configuration file that never changes."""

    def read_bytes(self) -> bytes:
        return b""


class StoppingWorld(World):
    """`repairs`: whether people have begun to repair what has stopped."""

    tables = (PEOPLE, TABLES[0])
    faults_of_tables = (RequestError, SourceForbids)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.repairs = False
        self.database.logs_statements = self.kind != "postgres"
        path: Any = _File()
        self.file = ConfigFile(path, lambda _: self.config)
        self._leaks: list[str] = []

    def _draw_config(self) -> Config:
        config = super()._draw_config()
        columns = {str(PEOPLE.table): {"mask": [HIDDEN]}}
        source = {**config.source.model_dump(), "columns": columns, "start": "initial"}
        return Config.model_validate({**config.model_dump(exclude_unset=True), "source": source})

    @property
    def secret(self) -> str:
        """The present name of the column that is to be hidden."""
        (name,) = (n for n, number in self.database.columns[PEOPLE.table].numbers.items() if number == SECRET_NUMBER)
        return name

    def row(self, schema: TableSchema, key: Key) -> Row:
        row = super().row(schema, key)
        return {**row, self.secret: f"{MARKED}{self.version}"} if schema.table == PEOPLE.table else row

    def _published(self, path: str, data: bytes) -> None:
        super()._published(path, data)
        if MARKED.encode() in data:
            self._leaks.append(path)

    def _operator(self) -> None:
        Migrator(self).run()

    def replaced_parts(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(mock.patch.object(inline_rows, "_CODEC", _PlainCodec()))
        stack.enter_context(mock.patch.object(config_reload, "NEWCOMERS", 1.0))
        return stack

    # What the manifest says -----------------------------------------------------------------------------------------

    def find_repairable(self) -> list[str]:
        """The tables of which the newest manifest says that rows are passed over, or that a dump is owed; none that
        somebody has to accept."""
        stopped = stopped_tables.read(records := self._read_records())
        return sorted((stopped.keys() | owed_dumps.read(records).keys()) - stopped_tables.find_held(stopped).keys())

    def _read_records(self) -> TableRecords:
        return table_records.read_newest(
            self.quiet_staging(), stopped_tables.NODE, owed_dumps.NODE, *accepted_shapes.NODES
        )

    def _find_lacking(self) -> set[str]:
        """The same with those that are held, wait, or have another shape than was accepted."""
        records = self._read_records()
        acceptances = accepted_shapes.read(records) or {}
        lacking = {table for table, a in acceptances.items() if a.why_held is not None or a.since}
        if not self._is_accepted(acceptances.get(str(PEOPLE.table))):
            lacking.add(str(PEOPLE.table))
        return lacking | stopped_tables.read(records).keys() | owed_dumps.read(records).keys()

    def _is_accepted(self, acceptance: Acceptance | None) -> bool:
        if acceptance is None:
            return False
        origin = self.database.origin(PEOPLE.table)
        columns = digest_columns(self.database.schemas[PEOPLE.table])
        return acceptance.shape == (origin.describe(hides=True) if acceptance.is_by_catalogue else columns)

    def _unrest(self) -> str:
        if not self.database.visible_before(len(self.database.log)):
            return "a transaction is not visible yet"
        return super()._unrest()

    def is_expected_to_wait(self, table: str) -> bool:
        return not self.repairs and table in self._find_lacking()

    # The run --------------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """First nobody repairs anything: a table equals its source, or the manifest says why not."""
        self._end_faults()
        self.database.forbidden.clear()
        self._rest(self._unrest)
        self._compare(but_for=self._find_lacking())
        self.repairs = True
        self._rest(lambda: self._unrest() or self._tell_lacking())
        self._stop_captures()

    def _rest(self, unrest: Callable[[], str]) -> None:
        """For a while: what one process has begun, another one takes up."""
        rested_since = float("inf")

        def has_rested() -> bool:
            nonlocal rested_since
            rested_since = float("inf") if unrest() else min(rested_since, self.simulation.now)
            return self.simulation.now - rested_since >= _STAYS_SECONDS

        if not self.simulation.run(self.simulation.now + _REST_SECONDS, has_rested):
            raise Violation(f"did not come to rest: {unrest()}")
        self._watch()

    def _tell_lacking(self) -> str:
        lacking = self._find_lacking()
        return f"{sorted(lacking)} lack rows" if lacking else ""

    def _watch(self) -> None:
        super()._watch()
        if self._leaks:
            raise Violation(f"a value is in clear in {self._leaks[0]}")

    def _compare(self, *, but_for: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        rules = Rules.of(self.config.source)
        for schema in self.database.schemas.values():
            if str(schema.table) in but_for:
                self.simulation.count("tables that lack rows, and say so")
                continue
            names = [column.name for column in schema.columns]
            source_rows = {
                key: {
                    name: _hide(row.get(name), hidden=rules.concern(schema.table) and name == HIDDEN) for name in names
                }
                for key, row in self.database.rows[schema.table].items()
            }
            table = self.lake.tables.get(str(schema.table))
            lake_rows = table.whole_rows() if table is not None else {}
            lake_rows = {key: {name: row.get(name) for name in names} for key, row in lake_rows.items()}
            if lake_rows != source_rows:
                differing = {k for k in lake_rows.keys() | source_rows if lake_rows.get(k) != source_rows.get(k)}
                key = min(differing)
                what = (
                    f"of {len(differing)} keys, {key} is {lake_rows.get(key)} in the lake, not {source_rows.get(key)}"
                )
                raise Violation(f"{schema.table}: {what}")


def judge_stops(world: World) -> None:
    """Raises Violation for the first thing that is wrong at the end."""
    assert isinstance(world, StoppingWorld)
    world._watch()
    world._compare()
    for path, entry in world.store._nodes.entries.items():
        if MARKED.encode() in entry.data:
            raise Violation(f"a value is in clear in node {path}")


def _hide(value: object, *, hidden: bool) -> object:
    return MASK if hidden and value is not None else value
