"""`spark.read.format("dblog")` and `readStream`: the super-changelog as rows, one for each line of `dblog log`.

The driver reads manifests and plans; executors read the segments. A stream's offset is the super-changelog's own:
{"offset": 17} means that every line up to 17 is read. It ends between transactions, so that no batch has half of one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from dblog_core.config import loader
from dblog_core.config.secret_settings import STORAGE, given_to
from dblog_core.config.settings import Config
from dblog_core.errors import RequestError
from dblog_core.lake.spark_submit import config_json
from dblog_core.model import table_names
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.reader import Follower, Line
from dblog_core.wiring import open_staging

# Spark 4.0 has neither filters that are pushed down nor limits of a batch, Spark 4.1 has no limits: each calls only the
# methods that it knows, which import what they need.
if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.streaming.datasource import ReadLimit

COLUMNS = {
    "offset": ("bigint", pa.int64()),
    "op": ("string", pa.string()),
    "table": ("string", pa.string()),
    "key": ("string", pa.string()),
    "before": ("string", pa.string()),
    "after": ("string", pa.string()),
    "unchanged": ("array<string>", pa.list_(pa.string())),
    "position": ("string", pa.string()),
    "transaction": ("string", pa.string()),
    "commit_time": ("timestamp", pa.timestamp("us", tz="UTC")),
    "origin": ("string", pa.string()),
    "moved_from": ("string", pa.string()),
    "mark": ("string", pa.string()),
}
"""Of each row: Spark's type and Arrow's. `key`, `before`, `after`, `moved_from` are JSON, as `dblog log` prints them;
`mark` is JSON of what s and f lines say beside that."""

_JSON = ("key", "before", "after", "moved_from")
_OPTIONS = ("config", "from", "to", "tables", "rowspertrigger", "path")
_ROWS = 200_000  # lines of one task, about: where a segment ends
_BATCH = 5_000  # lines that are one Arrow batch
_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Lines(InputPartition):
    """Lines from offset `first` to `last`, both included."""

    first: int
    last: int


class DblogSource(DataSource):
    """Registered once a session by `spark.dataSource.register(DblogSource)`.

    Options: `config`, the TOML file of the source; `from` and `to`, offsets, both included (a stream has no `to`);
    `tables`, SCHEMA.TABLE separated by commas, or a JSON array of them; `rowsPerTrigger`, about so many lines
    in a batch of a stream.
    """

    @classmethod
    def name(cls) -> str:
        return "dblog"

    def schema(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, (kind, _) in COLUMNS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Batch(_Query.of(self.options, schema, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        query = _Query.of(self.options, schema, stream=True)
        if query.rows is not None and not hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
            raise RequestError("rowsPerTrigger needs Spark 4.2 or newer", fix="leave the option out")
        return _Stream(query)


@dataclass(frozen=True, slots=True)
class _Query:
    """What the reader wants. It goes to executors: `config` is JSON, with storage's secrets alone."""

    config: str = field(repr=False)
    columns: tuple[str, ...]
    tables: frozenset[str] | None
    first: int
    last: int
    rows: int | None

    @classmethod
    def of(cls, options: Any, schema: StructType, *, stream: bool) -> _Query:
        """Raises RequestError and ConfigError."""
        unknown = sorted(name for name in options if name.lower() not in _OPTIONS)
        if unknown or not options.get("config"):
            what = f"unknown option {', '.join(unknown)}" if unknown else "the option config is missing"
            raise RequestError(what, where='format("dblog")', fix=f"options are {', '.join(_OPTIONS[:5])}")
        if stream and options.get("to"):
            raise RequestError("a stream has no end", where="option to", fix="leave it out, or use spark.read")
        if missing := [name for name in schema.names if name not in COLUMNS]:
            raise RequestError(
                f"no column {', '.join(missing)}", where="schema", fix=f"choose from {', '.join(COLUMNS)}"
            )
        loaded = loader.load(Path(options["config"]), needs=STORAGE)
        tables = frozenset(map(table_names.canonical, _names(options.get("tables", ""))))
        return cls(
            config_json(given_to(loaded, STORAGE)),
            tuple(schema.names),
            tables or None,
            _number(options, "from", 0),
            _number(options, "to", _END),
            _number(options, "rowsPerTrigger", 0) or None,
        )

    def staging(self) -> Staging:
        return open_staging(Config.model_validate_json(self.config))

    def read(self, partition: Lines) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        follower: Follower = Follower(
            self.staging(),
            from_offset=partition.first,
            tables=self.tables,
            pause=lambda: follower.passed >= partition.last,
        )
        lines = itertools.takewhile(lambda line: line["offset"] <= partition.last, follower.lines())
        while rows := list(itertools.islice(lines, _BATCH)):
            yield _batch(rows, self.columns)


def _names(text: str) -> list[str]:
    """Names, separated by commas; as a JSON array they may hold commas, and spaces at their ends."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return [str(name) for name in json.loads(text)]
    return [name for part in text.split(",") if (name := part.strip())]


def _number(options: Any, name: str, default: int) -> int:
    text = options.get(name, default)
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise RequestError(f"{text!r} is no whole number from 0 on", where=f"option {name}", fix="give an offset")
    return number


def _batch(lines: Sequence[Line], columns: Sequence[str]) -> pa.RecordBatch:
    arrays = [pa.array([_value(line, name) for line in lines], COLUMNS[name][1]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _value(line: Line, name: str) -> Any:
    if name in _JSON:
        value = line.get(name)
        return None if value is None else orjson.dumps(value).decode()
    if name == "commit_time":
        return dt.datetime.fromisoformat(line[name])
    if name == "mark":
        more = {key: value for key, value in line.items() if key not in COLUMNS}
        return orjson.dumps(more).decode() if more else None
    return line[name]


def _plan(staging: Staging, first: int, last: int) -> list[Lines]:
    """Stretches of whole segments from `first` to `last` at most, each of some `_ROWS` lines.

    Raises CorruptSegment where staging no longer reaches back that far.
    """
    if (head := staging.head()) is None or first > last:
        return []
    if first > 1:
        staging.check_begun(first)
    stretches = list[Lines]()
    begin = first
    rows = 0
    for manifest in _from(staging, first, head):
        if manifest.first_offset > last:
            break
        rows += _lines(manifest)
        if rows >= _ROWS:
            stretches.append(Lines(begin, min(manifest.last_offset, last)))
            begin = manifest.last_offset + 1
            rows = 0
    end = min(last, head.last_offset)
    return [*stretches, Lines(begin, end)] if begin <= end else stretches


def _from(staging: Staging, first: int, head: Manifest) -> Iterator[Manifest]:
    """Segments from the one on that holds offset `first`."""
    number = staging.segment_of(max(first, 1), head)
    return staging.manifests(number - 1, upto=head.segment)


def _lines(manifest: Manifest) -> int:
    return sum(file.rows for file in manifest.files) + sum(chunk.rows for chunk in manifest.chunks)


class _Batch(DataSourceReader):
    """A DataFrame: all that is published when it is planned, up to the last whole transaction."""

    def __init__(self, query: _Query) -> None:
        self._query = query
        self._first = query.first
        self._last = query.last
        self._tables = query.tables

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Ranges of offsets and names of tables are taken; Spark keeps to the rest."""
        for condition in filters:
            if not self._takes(condition):
                yield condition

    def _takes(self, condition: Filter) -> bool:
        from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

        column = getattr(condition, "attribute", None)
        if column == ("table",) and isinstance(condition, EqualTo | In):
            names = frozenset(condition.value if isinstance(condition, In) else (condition.value,))
            self._tables = names if self._tables is None else self._tables & names
        elif column == ("offset",) and isinstance(
            condition, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
        ):
            self._narrow(condition)
        else:
            return False
        return True

    def _narrow(self, condition: Any) -> None:
        from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

        if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._first = max(self._first, condition.value + isinstance(condition, GreaterThan))
        if isinstance(condition, EqualTo | LessThan | LessThanOrEqual):
            self._last = min(self._last, condition.value - isinstance(condition, LessThan))

    def partitions(self) -> Sequence[InputPartition]:
        staging = self._query.staging()
        last = min(self._last, _whole_upto(staging, self._first, None))
        return _plan(staging, self._first, last) or [Lines(0, -1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Lines)
        if partition.last >= partition.first:
            query = _Query(self._query.config, self._query.columns, self._tables, 0, 0, None)
            yield from query.read(partition)


class _Stream(DataSourceStreamReader):
    """A stream: each batch ends between transactions."""

    def __init__(self, query: _Query) -> None:
        self._query = query
        self._last = self.initialOffset()["offset"]

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"offset": max(self._query.first - 1, 0)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        return ReadAllAvailable() if self._query.rows is None else ReadMaxRows(self._query.rows)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """`start`, `limit`: None before Spark 4.2."""
        begin = self._last if start is None else start["offset"]
        most = getattr(limit, "max_rows", None)
        self._last = max(begin, _whole_upto(self._query.staging(), begin + 1, most))
        return {"offset": self._last}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _plan(self._query.staging(), start["offset"] + 1, end["offset"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Lines)
        yield from self._query.read(partition)


def _whole_upto(staging: Staging, first: int, most: int | None) -> int:
    """The offset up to which whole transactions are published; `most`: of the first place after so many lines."""
    if (head := staging.head()) is None:
        return 0
    if most is None and not head.partial:
        return head.last_offset
    end = first - 1
    rows = 0
    for manifest in _from(staging, first, head):
        rows += _lines(manifest)
        if not manifest.partial:
            end = manifest.last_offset
            if most is not None and rows >= most:
                break
    return end
