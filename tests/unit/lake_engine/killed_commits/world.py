"""A lake of one table, what its source has told, and what a reader of that has; and the judgement of the lake."""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from dblog_core.config.lake import SchemaChanges
from dblog_core.config.settings import Config
from dblog_core.delta_writer.checkpoints.checkpoint_reader import list_log
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import history_location
from dblog_core.lake.task_requests import TaskRequest, read_request
from dblog_core.lake.task_results import AcceptResult, RebuildResult, ReplayResult, ResetResult, TaskResult
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.maintenance.maintain_result import MaintainResult
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from tests.duckdb_reader import read_delta
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, SegmentBuilder, table
from tests.unit.delta_writer.tables import check_log, commit_of, newest

T = table("t", id=pa.int64(), v=pa.string(), big=pa.string())
DAY = 86_400.0
RESULTS: dict[str, type[TaskResult]] = {
    "replay": ReplayResult,
    "rebuild": RebuildResult,
    "reset": ResetResult,
    "accept": AcceptResult,
    "maintain": MaintainResult,
}
Line = tuple[Any, ...]
"""Of a history: offset, op, and the source's columns."""


@dataclass(frozen=True)
class Kind:
    """A kind of commit: `prepare` makes a past and what is to be done, and `World.work` does it.

    `is_one_commit`: readers see all of it, or nothing. `patched`: thresholds for tables as small as these; also in a
    process that is killed. `compact_after`: commits behind which a table is put in order. `widens`: columns get wider
    types, which delta-rs does not read.
    """

    name: str
    prepare: Callable[[World], None]
    is_one_commit: bool = True
    history: bool = False
    vectors: bool = True
    drop_columns: bool = False
    widens: bool = False
    changes: SchemaChanges = "evolve"
    keep: str = "7d"
    compact_after: int = 0
    patched: Callable[[], AbstractContextManager[Any]] = nullcontext
    check: Callable[[World], None] = lambda world: None
    """What else is to hold behind the work."""
    later: Row = field(default_factory=lambda: {"id": 100, "v": "later", "big": "b"})
    """A row that the log has when all is done."""


@dataclass
class Told:
    """What the source has told, as readers of the table and of its history have it; `at`: the table at each offset."""

    schema: TableSchema = T
    rows: dict[Any, Row] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    at: dict[int, list[list[Row]]] = field(default_factory=dict)
    ids: dict[Any, int] = field(default_factory=dict)


class World:
    """A lake at a directory, which is copied for each of its deaths."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = path
        self.kind = kind
        staging = Staging(str(path / "staging"), source="shop")
        self.lake = TestLake(None, staging, path / "lake")
        self.lake.history = kind.history
        self.lake.vectors = kind.vectors
        self.lake.drop_columns = kind.drop_columns
        self.lake.changes = kind.changes
        self.build = self.lake.build
        self.told = Told()
        self.before: list[Row] = []
        self.check_alive: Callable[[], None] = lambda: None
        self._task: tuple[TaskRequest, str] | None = None

    @classmethod
    def prepare(cls, path: Path, kind: Kind) -> World:
        world = cls(path, kind)
        with kind.patched():
            kind.prepare(world)
        world.before = world.read() if world.exists() else []
        return world

    def copy_to(self, path: Path) -> World:
        """The same at another place, for a process of its own."""
        shutil.copytree(self.path, path)
        other = World(path, self.kind)
        build, shapes = self.build, dict(self.build._newest)  # all else is sealed
        other.build = SegmentBuilder(
            other.lake.staging, build.offset, build.segment, _newest=shapes, _first=build._first
        )
        other.lake.build = other.build
        other.told = copy.deepcopy(self.told)
        other.before = self.before
        other._task = self._task
        return other

    # What the source tells ------------------------------------------------------------------------------------------

    def put(self, row: Row, *, unchanged: tuple[str, ...] = ()) -> None:
        """The log has the row, new or not; without the values of `unchanged`, which stay."""
        schema = self.told.schema
        key = row[schema.key[0]]
        former = self.told.rows.get(key, {})
        whole = {**row, **{name: former[name] for name in unchanged}}
        staged = {**row, **dict.fromkeys(unchanged)}
        op = "u" if key in self.told.rows else "c"
        write = self.build.create if op == "c" else self.build.update
        offset = write(schema, staged, **({"unchanged": unchanged} if unchanged else {}))
        self.told.rows[key] = whole
        self._tell(offset, op, whole)

    def delete(self, key: Any) -> None:
        name = self.told.schema.key[0]
        offset = self.build.delete(self.told.schema, {name: key})
        del self.told.rows[key]
        self._tell(offset, "d", {name: key})

    def move(self, old: Any, row: Row, *, unchanged: tuple[str, ...] = ()) -> None:
        """A row gets another key; values of `unchanged` go with it."""
        name = self.told.schema.key[0]
        former = self.told.rows.pop(old)
        whole = {**row, **{column: former[column] for column in unchanged}}
        staged = {**row, **dict.fromkeys(unchanged)}
        offset = self.build.move(self.told.schema, {name: old}, staged, unchanged=unchanged)
        self.told.rows[row[name]] = whole
        self._tell(offset - 1, "d", {name: old})
        self._tell(offset, "c", whole)

    def truncate(self) -> None:
        self.build.truncate(self.told.schema)
        self.told.rows.clear()
        self._tell(self.build.offset, "t", {})

    def _tell(self, offset: int, op: str, row: Row) -> None:
        self.told.lines.append((offset, op, *(row.get(c.name) for c in self.told.schema.columns)))

    def full_dump(self, *, lost: tuple[Any, ...], born: tuple[Row, ...] = ()) -> None:
        """A dump of the whole table, without rows that are gone of which no delete was ever logged. Rows that are born
        while it runs are in the log alone."""
        dump = f"full {self.build.offset}"
        since, segment = self.build.offset, self.build.segment + 1
        for key in lost:
            del self.told.rows[key]
        dumped = list(self.told.rows.values())
        for row in born:
            self.put(row)
        self.build.chunk(self.told.schema, dumped, dump=dump)
        self.build.finished(self.told.schema, dump, since=since, since_segment=segment)
        for key in sorted(set(lost) - self.told.rows.keys()):
            self._tell(self.build.offset, "d", {self.told.schema.key[0]: key})

    def seal(self) -> None:
        self.build.seal()
        self.note_state()

    def note_state(self) -> None:
        """What the table holds at this offset: the source's rows."""
        states = self.told.at.setdefault(self.build.offset, [])
        states.append(self.model())

    def model(self) -> list[Row]:
        return in_order(list(self.told.rows.values()), self.told.schema)

    # What a process does --------------------------------------------------------------------------------------------

    def config(self) -> Config:
        return Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(self.path / "staging"), "keep": "7d"},
                "state": {"url": f"sqlite:///{self.path / 'state.db'}"},
                "lake": {"path": str(self.path / "lake"), "keep": self.kind.keep},
            }
        )

    def file_task(self, kind: str, arguments: dict[str, Any]) -> None:
        request = read_request(kind, arguments)
        self._task = request, lake_tasks.file_task(self.lake.location, request).id

    def find_failures(self) -> list[Any]:
        """What of the task has failed: all of it, or its work on some tables."""
        if self._task is None:
            return []
        request, task = self._task
        outcome = lake_tasks.read_outcome(self.lake.location, task, RESULTS[request.kind])
        if outcome is None:
            return []
        result = {} if outcome.result is None else outcome.result.to_json()
        of_tables = [each["error"] for each in result.get("tables", ()) if each.get("error")]
        return [*([outcome.error] if outcome.error else []), *of_tables, *result.get("failed", ())]

    def ask_again(self) -> None:
        """A task that has failed is asked for once more."""
        if self._task is not None and self.find_failures():
            request = self._task[0]
            self._task = request, lake_tasks.file_task(self.lake.location, request).id

    def work(self) -> None:
        """All that a new process finds to do: lake tasks, merges, and files that are put in order. It tries tables that
        stop, and files that cannot be written, once more."""
        with self.kind.patched(), self._merging() as merger:
            while merger.run_task() is not None:
                pass
            for _ in range(2):
                is_first = True
                while merger.run_round(retry_stopped=is_first) is not None:
                    is_first = False
                with suppress(LakeError, StagingError):
                    while self.kind.compact_after and merger.compact() is not None:
                        pass

    @contextmanager
    def _merging(self, **options: Any) -> Iterator[Merger]:
        options |= {"config": self.config(), "compact_after": self.kind.compact_after}
        merger = self.lake.merger(check=self.check_alive, **options)
        checkpoints = merger._lake.open_tables.checkpoints
        try:
            yield merger
            checkpoints.wait()
        finally:
            merger.close()
            checkpoints.close()

    def merge_of_the_past(self, days: float) -> None:
        """A merge of what was told, that many days ago."""
        self.seal()
        then = time.time() - days * DAY
        seen = {path for path in self.lake.path.rglob("*") if path.is_file()}
        with self._merging(now=lambda: then) as merger:
            while merger.run_round(retry_stopped=True) is not None:
                pass
        for path in self.lake.path.rglob("*"):
            if path.is_file() and path not in seen:
                os.utime(path, (then, then))

    # How it is judged -----------------------------------------------------------------------------------------------

    @property
    def place(self) -> Path:
        return Path(str(self.lake.table(self.told.schema)))

    @property
    def history_place(self) -> Path:
        return Path(str(history_location(self.lake.location, self.told.schema.table)))

    def exists(self) -> bool:
        return any(self.place.glob("_delta_log/*.json"))

    def read(self, version: int | None = None) -> list[Row]:
        """The source's columns of the rows, as delta-rs reads them; DuckDB where that cannot."""
        return rows_of(read_delta(self.place, version=version) if self.kind.widens else read_rust(self.place, version))

    def data_files(self) -> set[str]:
        """All files of data and of deletion vectors below the table."""
        paths = (path.relative_to(self.place) for path in self.place.rglob("*") if path.suffix in (".parquet", ".bin"))
        return {path.as_posix() for path in paths if path.parts[0] != "_delta_log"}

    def check_death(self) -> None:
        """Right behind a death, readers see a state that the table was to have."""
        self._check_cuts()
        if self.exists() and self.kind.is_one_commit:
            rows = self.read()
            assert rows in (self.before, self.model()), "readers see half of a commit"

    def judge(self) -> None:
        """The lake is what the source has told, and nothing is left to do; so it is with what is told later."""
        self._check_copies()
        assert not self.find_failures()
        self.kind.check(self)
        versions = newest(self.place)
        assert self.lake.merge_well() == [], "something is merged again"
        assert newest(self.place) == versions, "something is written again"
        self.put(dict(self.kind.later))
        self.seal()
        self.work()
        self._check_copies()
        self._check_cuts()
        self._check_log()
        assert rows_of(read_delta(self.place)) == self.model(), "as DuckDB reads it"

    def _check_copies(self) -> None:
        assert self.read() == self.model(), "the table"
        self._check_transactions(self.place)
        if self.kind.history:
            self._check_history()

    def _check_cuts(self) -> None:
        """Each cut that is kept is there once, and every table version that one names is read as it was."""
        cuts = self.cuts()
        numbers = [cut["cut"] for cut in cuts]
        assert not cuts or numbers == list(range(numbers[0], numbers[0] + len(cuts))), "a cut lacks, or is there twice"
        for cut in cuts:
            version = dict(cut["tables"]).get(str(self.told.schema.table))
            rows = [] if version is None else self.read(version)
            offset = dict(cut["behind"]).get(str(self.told.schema.table), cut["offset"])
            assert rows in self.told.at[offset], f"cut {cut['cut']}"

    def cuts(self) -> list[Row]:
        """The cuts that are kept, in their order."""
        place = self.lake.path / "_dblog" / "cuts"
        rows = read_rust(place).to_pylist() if any(place.glob("_delta_log/*.json")) else []
        return sorted(rows, key=lambda cut: cut["cut"])

    def oldest_kept(self) -> int:
        """The oldest version of the table that a cut names."""
        return min(dict(cut["tables"])[str(self.told.schema.table)] for cut in self.cuts())

    def _check_transactions(self, place: Path) -> None:
        """No transaction has committed twice."""
        numbers = [int(path.stem) for path in (place / "_delta_log").glob("*.json") if path.stem.isdigit()]
        actions = (action for number in numbers for action in commit_of(place, number))
        done = Counter((a["txn"]["appId"], a["txn"]["version"]) for a in actions if "txn" in a)
        assert set(done.values()) <= {1}, done

    def _check_log(self) -> None:
        log = self.place / "_delta_log"
        if (log / f"{0:020d}.json").exists():
            check_log(self.place, vectors=self.kind.vectors)
        listing = list_log(path.name for path in log.iterdir())
        states = [state for states in self.told.at.values() for state in states]
        for version, _ in listing.checkpoints:  # a reader that begins with one has the same
            assert version < self.oldest_kept() or self.read(version) in states, f"checkpoint {version}"

    def _check_history(self) -> None:
        rows = read_rust(self.history_place).to_pylist()
        lines = [(r["_dblog_offset"], r["_dblog_op"], *(r[c.name] for c in self.told.schema.columns)) for r in rows]
        assert sorted(lines, key=repr) == sorted(self.told.lines, key=repr), "the history"
        self._check_transactions(self.history_place)


def read_rust(path: Path, version: int | None = None) -> pa.Table:
    table = DeltaTable(str(path), version=version)
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def rows_of(table: pa.Table) -> list[Row]:
    """Without our own columns, in order."""
    names = [name for name in table.column_names if not name.startswith("_dblog_")]
    return _sort_rows(table.select(names).to_pylist())


def in_order(rows: list[Row], schema: TableSchema) -> list[Row]:
    names = [c.name for c in schema.columns]
    return _sort_rows([{name: row[name] for name in names} for row in rows])


def _sort_rows(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))
