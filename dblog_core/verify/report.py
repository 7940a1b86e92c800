"""What a verification has found: one record a table, and the JSON that users script against."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dblog_core.interfaces import Json
from dblog_core.verify.compared_columns import NotCompared
from dblog_core.verify.pinned_version import Pin

if TYPE_CHECKING:
    from dblog_core.dumps.dump_records import Refusal


@dataclass(frozen=True, slots=True)
class Sample:
    """What was drawn, and what it tells: with `confidence` at most these shares (0 to 1) of the source's rows are
    missing or different, and of the lake's rows extra or different."""

    source_rows: int
    lake_rows: int
    confidence: float
    source_at_most: float
    lake_at_most: float

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Differences:
    """Keys (JSON) that differ, in the contract's three lists; `different`: (key, columns)."""

    missing: tuple[Any, ...] = ()
    extra: tuple[Any, ...] = ()
    different: tuple[tuple[Any, tuple[str, ...]], ...] = ()

    @property
    def count(self) -> int:
        return len(self.missing) + len(self.extra) + len(self.different)

    def to_json(self) -> Json:
        return {
            "missing": list(self.missing),
            "extra": list(self.extra),
            "different": [{"key": key, "columns": list(columns)} for key, columns in self.different],
        }


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """How the last line of each key of a table's history differs from the table: `missing` in the history, `extra` in
    it, or `different`. `not_compared`: why nothing is compared; `gap`: what another program has done to the history, so
    that it may lack lines."""

    differences: Differences = field(default_factory=Differences)
    more: bool = False
    not_compared: str | None = None
    gap: str | None = None
    fix: str | None = None

    @property
    def is_wrong(self) -> bool:
        return self.differences.count > 0 or self.gap is not None

    def without(self, keys: Collection[str]) -> HistoryReport:
        """Without differences of these keys (by their `repr`)."""
        differences = Differences(
            missing=tuple(key for key in self.differences.missing if repr(key) not in keys),
            extra=tuple(key for key in self.differences.extra if repr(key) not in keys),
            different=tuple(pair for pair in self.differences.different if repr(pair[0]) not in keys),
        )
        return replace(self, differences=differences)

    def to_json(self) -> Json:
        details = {name: getattr(self, name) for name in ("more", "not_compared", "gap", "fix")}
        return {**self.differences.to_json(), **details}


@dataclass(frozen=True, slots=True)
class Repair:
    """The dump that has repaired a table, and what differed before it."""

    dump_id: str
    differences: Differences

    def to_json(self) -> Json:
        return {"dump": self.dump_id, **self.differences.to_json()}


@dataclass(frozen=True, slots=True)
class TableReport:
    """Keys are JSON. `rows`, `lake_rows`: how many were compared; `twice`: keys that the lake has more than once, which
    are in `extra` too; `undecided`: keys that changed all the time; `more`: more differ than are named; `not_compared`:
    columns that the comparison is not of; `note`: what explains it; `error`: why the table could not be compared to its
    end; `history`: of a table that has one, where the whole table was compared."""

    table: str
    rows: int = 0
    lake_rows: int = 0
    missing: tuple[Any, ...] = ()
    extra: tuple[Any, ...] = ()
    different: tuple[tuple[Any, tuple[str, ...]], ...] = ()
    undecided: tuple[Any, ...] = ()
    twice: tuple[Any, ...] = ()
    more: bool = False
    not_compared: tuple[NotCompared, ...] = ()
    note: str | None = None
    error: str | None = None
    pin: Pin | None = None
    staged: int = 0
    sample: Sample | None = None
    repaired: Repair | None = None
    history: HistoryReport | None = None
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether it is certain that nothing differs in the columns that are compared."""
        is_history_wrong = self.history is not None and self.history.is_wrong
        return not (self.difference_count or self.undecided or self.more or self.error or is_history_wrong)

    @property
    def history_count(self) -> int:
        """How many keys of its history differ, of those that are named."""
        return 0 if self.history is None else self.history.differences.count

    @property
    def outcome(self) -> str:
        """In a few words, for who waits for the other tables."""
        if self.error is not None:
            return "cannot be compared"
        if self.difference_count:
            return f"{self.difference_count:,}{' and more' if self.more else ''} keys differ"
        if self.undecided:
            return f"{len(self.undecided):,} keys undecided"
        if self.history_count:
            return f"{self.history_count:,} keys of its history differ"
        if self.history is not None and self.history.gap is not None:
            return "its history may lack lines"
        if not self.not_compared:
            return "equal"
        columns = "1 column is" if len(self.not_compared) == 1 else f"{len(self.not_compared):,} columns are"
        return f"equal; {columns} not compared"

    @property
    def difference_count(self) -> int:
        """How many keys differ, of those that are named."""
        return self.differences.count

    @property
    def differing_keys(self) -> list[Any]:
        """The keys that differ, each once."""
        # A key that the lake has twice is in `extra`, and may be in `different` as well.
        keys = [*self.missing, *self.extra, *(key for key, _ in self.different)]
        return list({repr(key): key for key in keys}.values())

    def to_json(self) -> Json:
        optional = {
            "note": self.note,
            "sample": self.sample and self.sample.to_json(),
            "repaired": self.repaired and self.repaired.to_json(),
            "history": self.history and self.history.to_json(),
        }
        return {
            "table": self.table,
            "rows": self.rows,
            **self.differences.to_json(),
            "undecided": list(self.undecided),
            "twice": list(self.twice),
            "more": self.more,
            "not_compared": [column.to_json() for column in self.not_compared],
            "error": self.error,
            "lake_rows": self.lake_rows,
            "lake_offset": self.pin.offset if self.pin else None,
            "staged": self.staged,
            "seconds": round(self.seconds, 3),
            **{name: value for name, value in optional.items() if value is not None},
        }

    @property
    def differences(self) -> Differences:
        return Differences(self.missing, self.extra, self.different)


@dataclass(frozen=True, slots=True)
class Report:
    """All tables. `left_out`: those that were asked for, by a pattern or as one of all, and cannot be compared;
    `passed_over`: they do not count."""

    tables: tuple[TableReport, ...] = field(default_factory=tuple)
    left_out: tuple[Refusal, ...] = ()
    passed_over: bool = False

    @property
    def equal(self) -> bool:
        """Whether it is certain that nothing differs, in any table that the lake should have."""
        return not self.missing_tables and all(table.equal for table in self.tables)

    @property
    def missing_tables(self) -> tuple[Refusal, ...]:
        """Tables that the lake should have, and that were not compared. One without a key is not in it either."""
        return () if self.passed_over else tuple(left for left in self.left_out if not left.keyless)

    def with_table(self, table: TableReport) -> Report:
        """The report with one table's record replaced."""
        return replace(self, tables=tuple(table if t.table == table.table else t for t in self.tables))

    def to_json(self) -> Json:
        left_out = [left.to_json() for left in self.left_out]
        return {"equal": self.equal, "tables": [table.to_json() for table in self.tables], "left_out": left_out}
