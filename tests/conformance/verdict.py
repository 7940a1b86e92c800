"""What became of every table: equal, or told of by name; and the fix of those, typed as it is printed.

A table that differs needs a report of exactly this table that says that it is not right: `stopped` or `incomplete` in
`status`, a fatal problem of `check`, or a newest dump that has failed. A warning of `check` counts where the table's
form expects it. The judge types what the report prints (`fixes`), and what the form chooses only where the report
leaves that to the person.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dblog_core import wiring
from dblog_core.errors import DblogError
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import quote_for_shell
from dblog_core.monitoring.gone_tables import GONE
from tests.conformance import judge
from tests.conformance.fixes import Command, Fix, Removal, Restart, Setting, Statements, read_fix
from tests.conformance.forms import Case, Stop
from tests.conformance.judge import Row
from tests.conformance.known import list_known
from tests.conformance.reports import Report, Reports, merge_reports
from tests.conformance.world import World

_ROUNDS = 6
"""Of merges and the dumps that these request, at most."""
_FIXES = 5
"""Of one table, one after the other, at most: each may show what the next one is for."""
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

    def reports(self) -> Reports:
        """What it says of tables that stand still or are incomplete."""

    def accept(self, table: str) -> None:
        """`dblog schema accept TABLE`."""

    def remove(self, table: str) -> None:
        """Removes what it has of a table that is gone."""


class PlainLake:
    """The lake that the merge would make, without Spark."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._accepted = dict[str, int]()
        self._copies: dict[str, judge.Copy] = {}
        self._removed = set[str]()

    def merge(self) -> None:
        self._copies = judge.fold_copies(self._world.config, self._accepted)

    def wants(self) -> list[str]:
        return [table for table, copy in self._copies.items() if copy.lacks and not copy.faults]

    def awaits(self) -> bool:
        return False

    def rows(self) -> Mapping[str, list[Row]]:
        return {table: copy.all_rows for table, copy in self._copies.items() if table not in self._removed}

    def reports(self) -> Reports:
        reports: Reports = {}
        for table, copy in self._copies.items():
            name = quote_for_shell(table)
            if copy.faults:
                reports[table] = [Report("; ".join(copy.faults), f"`dblog schema accept {name}`", blocks=True)]
            elif copy.lacks_since is not None:  # no reason to dump all tables that a capture begins with
                reports[table] = [Report("incomplete: no full dump of it is merged", f"`dblog dump --table {name}`")]
        return reports

    def accept(self, table: str) -> None:
        head = wiring.open_staging(self._world.config).head()
        assert head is not None
        self._accepted[table] = head.last_offset
        self._world.dump([table])

    def remove(self, table: str) -> None:
        self._removed.add(table)


@dataclass(slots=True)
class Verdict:
    """`differs`: of tables that are not equal, how; `reports`: what is said of exactly these tables."""

    differs: dict[str, str] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)

    def find_excuses(self, table: str, stop: Stop | None) -> list[Report]:
        """The reports that say that the table is not right; a warning does where the table's form expects it."""
        reports = self.reports.get(table, [])
        return [
            *(report for report in reports if not report.warns),
            *(report for report in reports if report.warns and stop is not None and stop.means(report.text)),
        ]

    def is_blocked(self, table: str) -> bool:
        """Whether a report says that the table stands still."""
        return any(report.blocks for report in self.reports.get(table, ()))


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
    rows = lake.rows()
    verdict = Verdict(reports=merge_reports(world.reports(), lake.reports()))
    with judge.source_of(world.database, world.config, world.schemas()) as source:
        tables = source.tables()
        for table in tables:
            difference = _difference(source, table, rows.get(str(table), []))
            if difference is not None:
                verdict.differs[str(table)] = difference
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
    return Judgement(world, lake).find_faults()


class Judgement:
    """The judge of one world. `faults`: what is wrong so far."""

    def __init__(self, world: World, lake: Lake) -> None:
        self._world = world
        self._lake = lake
        self._restart = False
        self._typed = set[tuple[str, str]]()
        self.faults = [f"the server refuses {refused}" for refused in world.refused]

    def find_faults(self) -> list[str]:
        """Looks, types the fixes that are printed, and looks again, until no table has another fix."""
        stopping = [name for name, stop in self._list_stops() if stop.always]
        verdict = self._look_until(lambda v: all(self._find_excuses(v, name) for name in {*v.differs, *stopping}))
        pending = [
            name for name in sorted({*verdict.differs, *verdict.reports, *stopping}) if self._admit(verdict, name)
        ]
        for _ in range(_FIXES):
            if not pending:
                break
            verdict, pending = self._mend(verdict, pending)
        for name in pending:
            self._add(name, f"needs more than {_FIXES} fixes: {self._show(verdict, name)}")
        listed = list_known(self._world.database.kind)
        return [fault for fault in self.faults if not any(entry.means(fault) for entry in listed)]

    def _admit(self, verdict: Verdict, name: str) -> bool:
        """Whether there is a fix of the table to be typed."""
        stop = self._find_stop(name)
        excuses = self._find_excuses(verdict, name)
        is_expected = stop is not None and (stop.always or verdict.is_blocked(name))
        if stop is not None and is_expected and not any(stop.means(report.text) for report in excuses):
            shown = [report.text for report in verdict.reports.get(name, ())]
            self._add(name, f"is to be told of as {stop.says!r}, and is by {shown}")
        if not excuses and name in verdict.differs:
            self._add(name, f"differs, and nobody says so: {self._show(verdict, name)}")
        if name in verdict.differs or verdict.is_blocked(name):
            return bool(excuses)
        return bool(excuses) and stop is not None and stop.always

    def _mend(self, before: Verdict, tables: list[str]) -> tuple[Verdict, list[str]]:
        """Types the next fix of each of the tables; how all stands then, and which have another one."""
        typed = {name: report.text for name in tables if (report := self._type(before, name)) is not None}
        self._typed |= typed.items()
        if self._restart:
            self._world.again()
            self._restart = False
        verdict = self._look_until(lambda v: all(self._is_over(v, name) for name in typed))
        pending = []
        for name, text in typed.items():
            if self._is_settled(verdict, name):
                continue
            if self._is_over(verdict, name):
                pending.append(name)
            else:
                self._add(name, f"is not mended by its fix: {self._show(verdict, name)}; it was told {text!r}")
        return verdict, pending

    def _find_excuses(self, verdict: Verdict, name: str) -> list[Report]:
        """Those of the verdict, without records whose fix was typed: they stay, whatever it has mended."""
        excuses = verdict.find_excuses(name, self._find_stop(name))
        return [r for r in excuses if not (r.recorded and (name, r.text) in self._typed)]

    def _is_over(self, verdict: Verdict, name: str) -> bool:
        """Whether the fix has had its effect: the table is mended, or has a report whose fix was not typed yet."""
        excuses = self._find_excuses(verdict, name)
        return self._is_settled(verdict, name) or any((name, report.text) not in self._typed for report in excuses)

    def _is_settled(self, verdict: Verdict, name: str) -> bool:
        if name in verdict.differs:
            return False
        if any(GONE in report.why for report in verdict.reports.get(name, ())):
            return True  # its copy is removed: `status` has the table as it was
        stop = self._find_stop(name)
        expected = stop is not None and stop.always and bool(self._find_excuses(verdict, name))
        return not verdict.is_blocked(name) and not expected

    def _type(self, verdict: Verdict, name: str) -> Report | None:
        """Types the table's fix; the report that prints it, or None where nothing could be typed."""
        kind = self._world.database.kind
        stop = self._find_stop(name)
        excuses = self._find_excuses(verdict, name)
        for report in excuses:
            if stop is not None and (rules := stop.find_named_rules(report.text)):
                self._take_rules(name, rules)
                return report
        # Where a table stands still, `status` says nothing else of it.
        for report in sorted(excuses, key=lambda r: ((name, r.text) in self._typed, GONE not in r.why, not r.blocks)):
            if (fix := read_fix(report.fix, name, kind)) is not None:
                refusal = self._carry_out(name, fix)
                if refusal:
                    self._add(name, f"is told {report.text!r}, and that fix is refused: {refusal}")
                return None if refusal else report
        if stop is not None and stop.chosen:
            self._world.database.execute(*stop.chosen)
            return excuses[0]
        self._add(name, f"has no fix that can be typed as it is printed: {[report.text for report in excuses]}")
        return None

    def _take_rules(self, name: str, rules: Mapping[str, Any]) -> None:
        self._world.add_rules(name, rules)
        self._restart = True

    def _carry_out(self, name: str, fix: Fix) -> str | None:
        """Types it; why it is refused."""
        match fix:
            case Statements():
                return self._world.type_statements(fix.sql)
            case Setting(rule=None):
                self._world.keys[name] = fix.value
                self._restart = True
            case Setting():
                assert fix.rule is not None
                self._take_rules(name, {fix.rule: fix.value})
            case Command(words=("dblog", "dump", "--table", table)):
                return self._world.type_dump(table)
            case Command(words=("dblog", "schema", "accept", table)):
                self._lake.accept(table)
            case Command():
                return f"the judge cannot type {fix.words}"
            case Restart():
                self._restart = True
            case Removal():
                self._lake.remove(name)
        return None

    def _look_until(self, is_done: Callable[[Verdict], bool]) -> Verdict:
        """How the tables stand once that is as it is to be, or the time for it is over: what no log tells of, a broken
        table and a mended one, the capture finds out at its own looks at the catalogue, and only then requests a
        dump."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            settle_lake(self._world, self._lake)
            verdict = look(self._world, self._lake)
            if is_done(verdict) or time.monotonic() >= deadline:
                return verdict

    def _list_stops(self) -> list[tuple[str, Stop]]:
        schema = self._world.database.schema
        return [(f"{schema}.{stop.table}", stop) for case in self._world.cases for stop in case.stops]

    def _find_stop(self, name: str) -> Stop | None:
        case = case_of(self._world.cases, name)
        return next((s for s in case.stops if name.partition(".")[2] == s.table), None) if case else None

    def _show(self, verdict: Verdict, name: str) -> str:
        reports = [report.text for report in verdict.reports.get(name, ())]
        return f"{verdict.differs.get(name, 'it is equal')}; reports are {reports}"

    def _add(self, table: str, what: str) -> None:
        case = case_of(self._world.cases, table)
        form = f"\n  of the form {case.form.name}, early {case.early}:\n{case.script}" if case else ""
        self.faults.append(f"{table} {what}{form}")


def case_of(cases: Sequence[Case], table: str) -> Case | None:
    """The case that a table belongs to, by its name."""
    match = re.search(r"\.[cC](\d+)", table)
    return next((case for case in cases if match and case.number == int(match[1])), None)
