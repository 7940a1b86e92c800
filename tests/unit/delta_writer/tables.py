"""Delta tables of tests: made by hand, changed by our writer, read by delta-rs; and a model that says what is right."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer.changes import Changes
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.delta_writer.vectors import read_vector
from dblog_core.errors import StagingUnavailable
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from tests.duckdb_reader import read_delta

TRACKED_FEATURES = ("rowTracking", "domainMetadata", "inCommitTimestamp", "changeDataFeed")
TRACKED_CONF = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-1",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-2",
    "delta.enableInCommitTimestamps": "true",
}

Row = dict[str, Any]
Key = tuple[Any, ...]

OFFSET = "_dblog_offset"
FIELDS = {"id": "long", "note": "string", "amount": "decimal(20,4)", OFFSET: "long"}
APP = "dblog:shop:shop.orders"
ARROW = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "decimal(20,4)": pa.decimal128(20, 4),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "boolean": pa.bool_(),
    "double": pa.float64(),
}


def schema_string(fields: Mapping[str, str], *, mapped: bool = False, about: Mapping[str, Any] | None = None) -> str:
    """`about`: metadata of all columns."""

    def column_metadata(number: int, name: str) -> dict[str, Any]:
        if not mapped:
            return dict(about or {})
        return {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": f"col-{number}"}

    columns = [
        {"name": name, "type": kind, "nullable": True, "metadata": column_metadata(i, name)}
        for i, (name, kind) in enumerate(fields.items())
    ]
    return json.dumps({"type": "struct", "fields": columns})


def protocol(*features: str, reader: Sequence[str] = (), vectors: bool = True) -> dict[str, Any]:
    both = [*(["deletionVectors"] if vectors else []), "timestampNtz", *reader]
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": both,
            "writerFeatures": [*both, *features],
        }
    }


def metadata(schema: str, **configuration: str) -> dict[str, Any]:
    conf = {"delta.enableDeletionVectors": "true", **configuration}
    return {
        "metaData": {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [],
            "configuration": conf,
            "createdTime": 0,
        }
    }


def write_commit(table: Path, version: int, *actions: Mapping[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("".join(json.dumps(a) + "\n" for a in actions))


def commit_of(table: Path, version: int) -> list[dict[str, Any]]:
    text = (table / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def newest(table: Path) -> int:
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


@dataclass
class Table:
    """A table below a lake of its own, and what its rows should be."""

    lake: Path
    fields: dict[str, str] = field(default_factory=lambda: dict(FIELDS))
    keys: tuple[str, ...] = ("id",)
    rows: dict[Key, Row] = field(default_factory=dict)
    merges: int = 0
    mapped: bool = False
    vectors: bool = True
    partitions: tuple[str, ...] = ()
    tracked: bool = False
    """Whether all is switched on that a commit has to serve: ids of rows, times, a change data feed."""
    ids: dict[Key, int] = field(default_factory=dict)
    """The ids of rows that were seen, as long as their key lives."""

    @property
    def path(self) -> Path:
        return self.lake / "table"

    @classmethod
    def create_at(cls, lake: Path, *, mapped: bool = False, reader: Sequence[str] = (), **options: Any) -> Table:
        """`vectors`: whether the table takes deletion vectors."""
        table = cls(lake, mapped=mapped, **options)
        conf = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"} if mapped else {}
        more = ["columnMapping"] if mapped else []
        conf["delta.enableDeletionVectors"] = str(table.vectors).lower()
        schema = schema_string(table.fields, mapped=mapped)
        features = TRACKED_FEATURES if table.tracked else ()
        conf |= TRACKED_CONF if table.tracked else {}
        conf |= {"delta.enableChangeDataFeed": "true"} if table.tracked else {}
        about = metadata(schema, **conf)
        about["metaData"]["partitionColumns"] = list(table.partitions)
        info = {"commitInfo": {"timestamp": 1, "inCommitTimestamp": 1, "operation": "CREATE TABLE"}}
        first = [info, protocol(*features, reader=[*reader, *more], vectors=table.vectors), about]
        write_commit(table.path, 0, *first)
        return table

    def location(self) -> Location:
        return Location(LocalStorage(self.lake, temporary="_dblog/tmp"), "table")

    def writer(self, location: Location | None = None, **options: Any) -> OpenTable:
        place = location or self.location()
        return OpenTable(place, self.keys, order=OFFSET, mark="dblog", **options)

    def arrow(self, rows: Sequence[Row]) -> pa.Table:
        return pa.table({n: pa.array([row.get(n) for row in rows], ARROW[k]) for n, k in self.fields.items()})

    def changes(self, puts: Sequence[Row], deletes: Sequence[Row] = (), *, dump: bool = False) -> Changes:
        """`deletes`: rows of key and offset. `dump`: all are guarded by their offset."""
        rows = [*puts, *deletes]
        deleted = np.arange(len(rows)) >= len(puts)
        return Changes(self.arrow(rows), deleted, np.full(len(rows), dump))

    def key(self, row: Row) -> Key:
        return tuple(row[name] for name in self.keys)

    def expect(self, puts: Sequence[Row], deletes: Sequence[Row] = ()) -> None:
        """What a change does to the model."""
        for row in puts:
            self.rows[self.key(row)] = {name: row.get(name) for name in self.fields}
        for row in deletes:
            self.rows.pop(self.key(row), None)
            self.ids.pop(self.key(row), None)

    def merge(self, writer: OpenTable, puts: Sequence[Row], deletes: Sequence[Row] = ()) -> Any:
        """Changes table and model alike."""
        self.merges += 1
        done = upsert(writer, self.changes(puts, deletes), APP, self.merges)
        self.expect(puts, deletes)
        return done

    def read(self, where: str = "true") -> list[Row]:
        """As delta-rs reads the table."""
        query = f"select * from t where {where}"
        return self._in_order(pa.table(QueryBuilder().register("t", DeltaTable(str(self.path))).execute(query)))

    def _in_order(self, rows: pa.Table) -> list[Row]:
        return sorted(rows.to_pylist(), key=lambda row: repr(self.key(row)))

    def model(self) -> list[Row]:
        return sorted(self.rows.values(), key=lambda row: repr(self.key(row)))

    def check(self) -> None:
        """delta-rs and DuckDB read what the model says, and the log tells it too."""
        assert self.read() == self.model()
        # DuckDB reads NULL in a partition's column of tables with column mapping, those of Spark too.
        if not (self.mapped and self.partitions):
            assert self._in_order(read_delta(self.path)) == self.model(), "as DuckDB reads it"
        check_log(self.path, vectors=self.vectors)
        if self.tracked:
            self._check_ids()

    def _check_ids(self) -> None:
        """Each row has an id of its own, which it keeps as long as its key lives, and a version that it has had."""
        tracked = read_tracked(self.path, self.fields, self.keys, mapped=self.mapped)
        assert len({row_id for _, row_id, _ in tracked}) == len(tracked) == len(self.rows)
        assert all(0 <= version <= newest(self.path) for _, _, version in tracked)
        for key, row_id, _ in tracked:
            assert self.ids.setdefault(key, row_id) == row_id, f"the row {key} has got another id"


def row(number: int, note: str | None = None, *, offset: int = 0, **more: Any) -> Row:
    text = f"note {number}" if note is None else note
    return {"id": number, "note": text, OFFSET: offset, "amount": None, **more}


def check_log(table: Path, *, vectors: bool = True) -> None:
    """Every version keeps to the protocol's rules on files and vectors; there is none in a table without `vectors`."""
    _check_ids_and_times(table)
    live: dict[str, str | None] = {}
    versions = sorted(int(p.stem) for p in (table / "_delta_log").glob("*.json") if p.stem.isdigit())
    for version in versions if versions[0] == 0 else []:
        removed = [a["remove"] for a in commit_of(table, version) if "remove" in a]
        added = [a["add"] for a in commit_of(table, version) if "add" in a]
        for actions in (removed, added):
            assert len({a["path"] for a in actions}) == len(actions), f"version {version} names a file twice"
        for action in removed:
            assert live.pop(action["path"], "none") == _vector(action), f"version {version} removes what is not there"
        for action in added:
            if action["path"] in live:  # it may get other tags, as the same file with the same vector
                is_same = live[action["path"]] == _vector(action) and not action["dataChange"]
                assert is_same, f"version {version} adds a file that is there"
            live[action["path"]] = _vector(action)
            assert vectors or "deletionVector" not in action, f"version {version} has a vector"
            if "deletionVector" in action:
                statistics = json.loads(action["stats"])
                assert statistics["numRecords"] > action["deletionVector"]["cardinality"] > 0, "a file without rows"
                assert statistics.get("tightBounds") is False or version < 1, "bounds of rows that may be dead"


def _check_ids_and_times(table: Path) -> None:
    """Of a table that has them: each file's ids are new, kept by later actions, and below the highest one."""
    commits = [commit_of(table, version) for version in range(newest(table) + 1)]
    if not any("rowTracking" in a["protocol"].get("writerFeatures", ()) for a in commits[0] if "protocol" in a):
        return
    first_ids: dict[str, tuple[int, int]] = {}
    highest, time = -1, 0
    for version, actions in enumerate(commits):
        assert actions[0]["commitInfo"]["inCommitTimestamp"] > time, f"version {version} is not later"
        time = actions[0]["commitInfo"]["inCommitTimestamp"]
        domains = [json.loads(a["domainMetadata"]["configuration"]) for a in actions if "domainMetadata" in a]
        before, highest = highest, max([highest, *(domain["rowIdHighWaterMark"] for domain in domains)])
        for name in ("remove", "add"):
            for action in (a[name] for a in actions if name in a):
                ids = action["baseRowId"], action["defaultRowCommitVersion"]
                if action["path"] not in first_ids:
                    rows = json.loads(action["stats"])["numRecords"]
                    assert before < ids[0] <= ids[0] + rows - 1 <= highest and ids[1] == version
                assert first_ids.setdefault(action["path"], ids) == ids, "a file has got other ids"


def live_adds(table: Path) -> list[dict[str, Any]]:
    """The `add` actions of the newest version, by its commits."""
    live: dict[str, dict[str, Any]] = {}
    for version in range(newest(table) + 1):
        actions = commit_of(table, version)
        for action in actions:
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        live |= {a["add"]["path"]: a["add"] for a in actions if "add" in a}
    return list(live.values())


def read_tracked(
    table: Path, fields: Mapping[str, str], keys: Sequence[str], *, mapped: bool = False
) -> list[tuple[Key, int, int]]:
    """Key, id and version of each row, as PROTOCOL.md has readers find them."""
    physical = {name: f"col-{i}" if mapped else name for i, name in enumerate(fields)}
    tracked_rows = []
    for add in live_adds(table):
        rows = pq.read_table(table / unquote(add["path"]), partitioning=None)
        files = TableFiles.at(Location(LocalStorage(table.parent, temporary="_dblog/tmp"), table.name))
        vector = add.get("deletionVector")
        dead = set() if vector is None else set(read_vector(files, vector).rows().tolist())
        columns = [rows[physical[name]].to_pylist() for name in keys]
        ids, versions = (
            rows[TRACKED_CONF[f"delta.rowTracking.materialized{name}ColumnName"]].to_pylist()
            if TRACKED_CONF[f"delta.rowTracking.materialized{name}ColumnName"] in rows.column_names
            else [None] * len(rows)
            for name in ("RowId", "RowCommitVersion")
        )
        for place in range(len(rows)):
            if place not in dead:
                key = tuple(column[place] for column in columns)
                row_id = add["baseRowId"] + place if ids[place] is None else ids[place]
                version = add["defaultRowCommitVersion"] if versions[place] is None else versions[place]
                tracked_rows.append((key, row_id, version))
    return tracked_rows


def _vector(action: Mapping[str, Any]) -> str | None:
    vector = action.get("deletionVector")
    return None if vector is None else f"{vector['pathOrInlineDv']}@{vector.get('offset')}"


class Broken(OSError):
    """Storage failed here."""


class FaultyStorage(LocalStorage):
    """Counts its calls, and fails at one of them: before it has done anything, or after all of it (`late`)."""

    def __init__(self, root: Path, *, fail_at: int = 0, late: bool = False, error: BaseException | None = None) -> None:
        super().__init__(root, temporary="_dblog/tmp")
        self.fail_at = fail_at
        self.late = late
        self.calls: list[str] = []
        self.error = error

    def readable_by_others(self) -> LocalStorage:
        return self

    def _call(self, name: str, relative: str, work: Callable[[], Any]) -> Any:
        self.calls.append(f"{name} {relative}")
        hit = len(self.calls) == self.fail_at
        if hit and not self.late:
            raise self.error or _away(relative)
        done = work()
        if hit:
            raise self.error or _away(relative)
        return done

    def exists(self, relative: str) -> bool:
        return bool(self._call("exists", relative, lambda: LocalStorage.exists(self, relative)))

    def read(self, relative: str) -> bytes | None:
        return self._call("read", relative, lambda: LocalStorage.read(self, relative))

    def read_part(self, relative: str, start: int, size: int) -> bytes | None:
        return self._call("read", relative, lambda: LocalStorage.read_part(self, relative, start, size))

    def names(self, directory: str) -> Iterator[str]:
        yield from self._call("names", directory, lambda: list(LocalStorage.names(self, directory)))

    def create(self, relative: str, data: Any) -> bool:
        return bool(self._call("create", relative, lambda: LocalStorage.create(self, relative, data)))

    def replace(self, relative: str, data: Any) -> None:
        self._call("replace", relative, lambda: LocalStorage.replace(self, relative, data))

    def remove(self, relative: str) -> None:
        self._call("remove", relative, lambda: LocalStorage.remove(self, relative))


def _away(relative: str) -> BaseException:

    return StagingUnavailable("storage does not answer", where=relative)


def fill_table(table: Table, count: int = 100, **options: Any) -> OpenTable:
    """A writer that has put rows 0 to count - 1, in two files."""
    writer = table.writer(**options)
    half = count // 2
    table.merge(writer, [row(i, offset=1) for i in range(half)])
    table.merge(writer, [row(i, offset=1) for i in range(half, count)])
    return writer
