"""What became of every table: equal, or told of by name; and the fix of those, typed as it is told."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dblog_core import wiring
from dblog_core.errors import DblogError
from dblog_core.model.schema import TableName
from tests.conformance import judge
from tests.conformance.forms import Case, Stop
from tests.conformance.judge import Row
from tests.conformance.known import list_known
from tests.conformance.world import World

_ROUNDS = 6
"""Of merges and the dumps that these request, at most."""
_PATIENCE_SECONDS = 120.0
"""For a table to be told of, and to be equal after its fix."""


class Lake(Protocol):
    """Where the lake is: merged tables, or what `judge.fold_copies` says that they would be."""

    def merge(self) -> None:
        """All that is staged by now."""

    def wants(self) -> list[str]:
        """Tables that a dump has to be requested of, since the lake does not request it by itself."""

    def awaits(self) -> bool:
        """Whether a dump that it has requested is on its way."""

    def rows(self) -> Mapping[str, list[Row]]:
        """What it holds of each table."""

    def stopped_tables(self) -> dict[str, str]:
        """Tables that stand still, with the reason and the fix."""

    def accept(self, table: str) -> None:
        """`dblog schema accept TABLE`."""


class PlainLake:
    """The lake that the merge would make, without Spark."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._accepted = dict[str, int]()
        self._copies: dict[str, judge.Copy] = {}

    def merge(self) -> None:
        self._copies = judge.fold_copies(self._world.config, self._accepted)

    def wants(self) -> list[str]:
        return [table for table, copy in self._copies.items() if copy.lacks and not copy.faults]

    def awaits(self) -> bool:
        return False

    def rows(self) -> Mapping[str, list[Row]]:
        return {table: copy.all_rows for table, copy in self._copies.items()}

    def stopped_tables(self) -> dict[str, str]:
        fix = "fix: `dblog schema accept {}`"
        return {t: f"{'; '.join(c.faults)}; {fix.format(t)}" for t, c in self._copies.items() if c.faults}

    def accept(self, table: str) -> None:
        head = wiring.open_staging(self._world.config).head()
        assert head is not None
        self._accepted[table] = head.last_offset
        self._world.dump([table])


@dataclass(slots=True)
class Verdict:
    """`differs`: of tables that are not equal, how; `reports`: what is said of tables by name."""

    differs: dict[str, str] = field(default_factory=dict)
    reports: dict[str, str] = field(default_factory=dict)
    equal: list[str] = field(default_factory=list)


def settle_lake(world: World, lake: Lake) -> None:
    """Merges, and the dumps that they request, until nothing more is to come."""
    for _ in range(_ROUNDS):
        world.settle()
        lake.merge()
        if not (wanted_tables := lake.wants()) and not lake.awaits():
            return
        world.dump(wanted_tables)
    world.settle()
    lake.merge()


def look(world: World, lake: Lake) -> Verdict:
    """How every table stands."""
    verdict = Verdict()
    rows = lake.rows()
    checked = world.check_source()
    verdict.reports = {**world.table_faults(), **lake.stopped_tables()}
    with judge.source_of(world.database, world.config, world.schemas()) as source:
        tables = source.tables()
        for table in tables:
            name = str(table)
            if check_texts := [text for text in checked if name in text]:
                verdict.reports[name] = "\n".join([verdict.reports.get(name, ""), *check_texts])
            difference = _difference(source, table, rows.get(name, []))
            if difference is None:
                verdict.equal.append(name)
            else:
                verdict.differs[name] = difference
        if world.database.kind != "postgres":  # PostgreSQL's log has no DROP TABLE
            for name in rows.keys() - {str(table) for table in tables}:
                if rows[name]:
                    verdict.differs[name] = f"the source has no such table, the copy {len(rows[name])} rows"
    return verdict


def _difference(source: judge.Source, table: TableName, rows: list[Row]) -> str | None:
    try:
        schema = source.shape(table)
    except DblogError as error:
        return f"has no shape: {error}"
    return judge.differences(schema, source.rows(schema), rows)


def judge_world(world: World, lake: Lake) -> list[str]:
    """Everything that is wrong, in words; none: each table is equal, or was told of and is equal once mended."""
    stopping = _stopping(world)
    first = _look_until(world, lake, lambda verdict: verdict.reports.keys() >= {*verdict.differs, *stopping})
    faults = [f"the server refuses {refused}" for refused in world.refused]
    mended: list[str] = []
    rules = False
    for name in sorted({*first.differs, *first.reports, *stopping}):
        case = case_of(world, name)
        stop = next((s for s in case.stops if name.partition(".")[2] == s.table), None) if case else None
        report = first.reports.get(name)
        if stop is not None and (report is not None or stop.always):
            if report is None or not re.search(stop.says, report, re.DOTALL):
                faults.append(_describe_fault(world, name, f"is to be told of as {stop.says!r}, and is by {report!r}"))
            rules |= _type(world, name, stop)
            mended.append(name)
        elif name not in first.differs and name not in lake.stopped_tables():
            continue  # equal all the same: a warning, or a dump that failed before another one did not
        elif report is None:
            faults.append(_describe_fault(world, name, f"differs, and nobody says so: {first.differs[name]}"))
        elif "schema accept" in report:
            lake.accept(name)
            mended.append(name)
        else:
            world.dump([name])
            mended.append(name)
    if not mended:
        return _unknown_faults(faults, world)
    if rules:
        world.again()
    second = _look_again(world, lake, mended)
    for name in mended:
        if name in second.differs:
            report = second.reports.get(name) or first.reports.get(name)
            faults.append(
                _describe_fault(world, name, f"differs after its fix: {second.differs[name]}; told was {report!r}")
            )
    return _unknown_faults(faults, world)


def _look_again(world: World, lake: Lake, mended: list[str]) -> Verdict:
    """How the tables stand after their fixes. The lake asks first before a column takes another type that a fix gives
    it: then that is typed too."""
    verdict = _look_until(world, lake, lambda v: not _unequal(v, mended) - _reshaped(v, mended))
    if not (reshaped := _reshaped(verdict, mended)):
        return verdict
    for name in reshaped:
        lake.accept(name)
    return _look_until(world, lake, lambda v: not _unequal(v, mended))


def _unequal(verdict: Verdict, tables: list[str]) -> set[str]:
    return verdict.differs.keys() & set(tables)


def _reshaped(verdict: Verdict, tables: list[str]) -> set[str]:
    """Tables that `dblog schema accept` is the next fix of."""
    return {name for name in _unequal(verdict, tables) if "schema accept" in verdict.reports.get(name, "")}


def _look_until(world: World, lake: Lake, is_done: Callable[[Verdict], bool]) -> Verdict:
    """How the tables stand once that is as it is to be, or the time for it is over: what no log tells of, a broken
    table and a mended one, the capture finds out at its own looks at the catalogue, and only then requests a dump."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        settle_lake(world, lake)
        verdict = look(world, lake)
        if is_done(verdict) or time.monotonic() >= deadline:
            return verdict


def _stopping(world: World) -> list[str]:
    schema = world.database.schema
    return [f"{schema}.{stop.table}" for case in world.cases for stop in case.stops if stop.always]


def _type(world: World, name: str, stop: Stop) -> bool:
    """Types the fix; whether that was into the configuration."""
    if stop.sql:
        world.database.execute(*stop.sql)
    elif stop.rules is None:
        world.dump([name])
    else:
        world.rules[name] = stop.rules
    return stop.rules is not None


def case_of(world: World, table: str) -> Case | None:
    """The case that a table belongs to, by its name."""
    match = re.search(r"\.[cC](\d+)", table)
    return next((case for case in world.cases if match and case.number == int(match[1])), None)


def _describe_fault(world: World, table: str, what: str) -> str:
    case = case_of(world, table)
    return f"{table} {what}" + (f"\n  of the form {case.form.name}, early {case.early}:\n{case.script}" if case else "")


def _unknown_faults(faults: list[str], world: World) -> list[str]:
    listed = list_known(world.database.kind)
    return [fault for fault in faults if not any(entry.means(fault) for entry in listed)]
