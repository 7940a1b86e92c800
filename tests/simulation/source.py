"""The Source protocol over `Database`."""

from __future__ import annotations

from collections.abc import Collection

from dblog_core.errors import SourceUnavailable
from dblog_core.interfaces import KeyOf, Problem, Strain, WatermarkTable
from dblog_core.model.events import Transaction
from dblog_core.model.position_spec import Place
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_identity import Origin
from dblog_core.rows.column_rules import Rules
from tests.simulation import database as db
from tests.simulation.connection import Connection, broken_connection
from tests.simulation.log_stream import SimStream
from tests.simulation.reader import SimReader
from tests.simulation.scheduler import EPOCH, Simulation

MARKS = TableSchema(TableName("shop", "dblog_watermark"), (), ())


class SimSource(Connection):
    """The database as one process reaches it."""

    def __init__(
        self,
        simulation: Simulation,
        database: db.Database,
        *,
        batch: int = 20,
        read_only: bool = False,
        rules: Rules | None = None,
    ) -> None:
        super().__init__(simulation, "source")
        self.database = database
        self.rules = rules or Rules({})
        self.batch = batch
        self.read_only = read_only
        self.kind = database.kind

    def _fail(self) -> SourceUnavailable:
        return broken_connection()  # each call makes a connection of its own

    def check(self) -> list[Problem]:
        return []

    def prepare(self) -> frozenset[str]:
        self._before("prepare")
        return frozenset()

    def keep_watermark_table(self) -> WatermarkTable:
        self._before("watermark table")
        return WatermarkTable("")

    def write_witness(self, after: str) -> None:
        """None is needed: nobody puts this database back."""

    def require_witness(self, text: str) -> None:
        raise AssertionError("none was written")

    def list_refusals(self) -> tuple[Problem, ...]:
        return tuple(filter(None, map(self.rules.misfit, self.database.schemas.values())))

    def shows_whole_logs(self) -> bool:
        return True

    def identities(self) -> frozenset[str] | None:
        return None if self.kind != "postgres" else frozenset(f"{t.table}@1" for t in self.tables())

    def origins(self, tables: Collection[TableName]) -> dict[TableName, Origin] | None:
        if self.kind != "postgres":
            return None
        if tables:
            self._before("origins")
        return {table: self.database.origin(table) for table in tables if table in self.database.schemas}

    def tables(self) -> tuple[TableSchema, ...]:
        self._before("tables")
        return tuple(schema for schema in self.database.schemas.values() if self.rules.misfit(schema) is None)

    def current_position(self) -> str:
        self._before("position")
        return str(len(self.database.log))

    def start_position(self) -> str:
        self._before("start position")
        return str(len(self.database.log))

    def begin(self, place: Place) -> str:
        return place.text.rpartition(":")[2]

    def find_target(self, place: Place) -> str:
        return place.text.rpartition(":")[2]

    def time(self) -> int:
        return int((EPOCH + self._simulation.now) * 1e6)

    def has_reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)

    def lies_before(self, transaction: Transaction, position: str) -> bool:
        return int(transaction.position.removeprefix("sim:")) < int(position)

    def place(self, position: str) -> str:
        return position

    def has_passed(self, position: str, end: str) -> bool:
        return int(position) >= int(end)

    def show(self, position: str) -> str:
        return f"sim:{position}"

    def succeed(self, name: str, before: frozenset[str]) -> None:
        """Nobody's connection is in another's way."""

    def open_log(self, position: str, *, skip: int = 0, keys: KeyOf | None = None) -> SimStream:
        self._before(f"open log at {position}+{skip}")
        return SimStream(self._simulation, self.database, int(position), skip, self.batch)

    def open_reader(self, *, lock_seconds: float | None = None) -> SimReader:
        self._before("open reader")
        return SimReader(self._simulation, self.database)

    def open_watermarks(self, worker: str) -> SimWatermarks:
        self._before("open watermarks")
        if self.read_only:
            raise AssertionError("a source is written that may not be")
        return SimWatermarks(self._simulation, self.database)

    def find_lock_holder(self, table: TableName) -> str | None:
        return None

    def strain(self) -> Strain:
        self._before("strain")
        return Strain(0.0, 1, len(self.database.log) - self.database.acknowledged)

    def stamps(self) -> None:
        """The log tells all."""

    def moment(self) -> None:
        """The log tells all."""

    def horizon(self) -> str | None:
        if self.kind != "postgres":
            return None
        self._before("horizon")
        return self.database.snapshot(begun=True)


class SimWatermarks(Connection):
    """Watermarks as transactions of their own; `write` returns once its commit is visible, as any client's does."""

    def __init__(self, simulation: Simulation, database: db.Database) -> None:
        super().__init__(simulation, "watermark")
        self._database = database

    def write(self, payload: str) -> None:
        self._before("write")
        transaction = self._database.begin()
        self._database.change(transaction, db.Change("w", MARKS, payload=payload))
        self._database.commit(transaction)
        while not self._database.is_over(transaction):
            self._simulation.wait(None, self._database.shown)
        self._after("write")

    def close(self) -> None:
        return None
