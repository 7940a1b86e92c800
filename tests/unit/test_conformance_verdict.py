"""The judge of `tests/conformance`, without a server: what excuses a table that differs, and what is typed for it."""

# ruff: noqa: E501  (a fix and what is read of it stand on one line)
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dblog_core.interfaces import Problem
from dblog_core.monitoring.gone_tables import GONE
from tests.conformance import verdict
from tests.conformance.fixes import Command, Fix, Removal, Restart, Setting, Statements, read_fix
from tests.conformance.forms import Case, Form, Stop
from tests.conformance.reports import Report, Reports, from_problems, from_status, merge_reports
from tests.conformance.verdict import Judgement, Verdict

KEYLESS = Report(
    "s.c1t has no key", 'give it a primary key, or name columns: [source.keys] "s.c1t" = ["…"]', warns=True
)
UNLOGGED = Report("stopped: s.c1t is unlogged", 'ALTER TABLE s."c1t" SET LOGGED, or leave it out', blocks=True)


class FakeWorld:
    """Of one form whose tables are `c1t` and `c1tt`. `typed`: what the judge has typed; `refuses`: these statements."""

    def __init__(self, stops: Sequence[Stop] = (), refuses: str = "") -> None:
        self.database = self
        self.kind = "postgres"
        self.schema = "s"
        self.refused: list[str] = []
        self.cases = [Case(1, Form("f", ""), [], {"t": "c1t", "u": "c1tt"}, list(stops))]
        self.keys: dict[str, Any] = {}
        self.typed: list[object] = []
        self._refuses = refuses

    def execute(self, *statements: str) -> None:
        self.typed += statements

    def type_statements(self, statements: Sequence[str]) -> str | None:
        self.typed += statements
        return "syntax error" if self._refuses in statements else None

    def type_dump(self, table: str) -> None:
        self.typed.append(f"dump {table}")

    def add_rules(self, table: str, rules: object) -> None:
        self.typed.append((table, rules))

    def accept(self, table: str) -> None:
        self.typed.append(f"accept {table}")

    def remove(self, table: str) -> None:
        self.typed.append(f"remove {table}")

    def again(self) -> None:
        self.typed.append("again")


Judge = Callable[[FakeWorld, Verdict, Verdict], list[str]]


@pytest.fixture
def judge_looks(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The faults where the tables stand in one way, and in another once something was typed."""

    def judge(world: FakeWorld, first: Verdict, second: Verdict) -> list[str]:
        monkeypatch.setattr(verdict, "settle_lake", lambda *_: None)
        monkeypatch.setattr(verdict, "look", lambda *_: second if world.typed else first)
        monkeypatch.setattr(verdict, "_PATIENCE_SECONDS", 0.0)
        return Judgement(world, world).find_faults()  # type: ignore[arg-type]

    return judge


def differing(*tables: str, reports: Reports | None = None) -> Verdict:
    return Verdict(dict.fromkeys(tables, "1 row differs"), reports or {})


EQUAL = Verdict()


def test_a_table_that_differs_and_is_reported_by_nobody_is_a_fault(judge_looks: Judge) -> None:
    (fault,) = judge_looks(FakeWorld(), differing("s.c1t"), EQUAL)
    assert fault.startswith("s.c1t differs, and nobody says so: 1 row differs")


def test_a_warning_that_names_a_differing_table_does_not_excuse_it(judge_looks: Judge) -> None:
    warning = Problem("s.c1t: what ON DELETE changes is not in the log", "`dblog dump --table s.c1t`", False, "s.c1t")
    reports = from_problems([warning])
    (fault,) = judge_looks(FakeWorld(), differing("s.c1t", reports=reports), EQUAL)
    assert "differs, and nobody says so" in fault
    world = FakeWorld([Stop("c1t", "is not in the log", always=False)])
    assert judge_looks(world, differing("s.c1t", reports=reports), EQUAL) == []
    assert world.typed == ["dump s.c1t"]
    other = FakeWorld([Stop("c1t", "has no key", always=False)])
    assert "differs, and nobody says so" in judge_looks(other, differing("s.c1t", reports=reports), EQUAL)[0]


def test_a_report_without_a_table_or_of_a_table_with_a_longer_name_excuses_none(judge_looks: Judge) -> None:
    problems = [
        Problem("s.c1tt is unlogged, s.c1t beside it", "ALTER TABLE s.c1tt SET LOGGED", table="s.c1tt"),
        Problem("the publication lacks s.c1t", "ALTER PUBLICATION p ADD TABLE s.c1t"),
    ]
    world = FakeWorld()
    faults = judge_looks(world, differing("s.c1t", "s.c1tt", reports=from_problems(problems)), EQUAL)
    assert [fault.partition(":")[0] for fault in faults] == ["s.c1t differs, and nobody says so"]
    assert world.typed == ["ALTER TABLE s.c1tt SET LOGGED"]


def test_a_printed_statement_that_the_server_refuses_or_that_mends_nothing_is_a_fault(judge_looks: Judge) -> None:
    first = differing("s.c1t", reports={"s.c1t": [UNLOGGED]})
    refused = judge_looks(FakeWorld(refuses='ALTER TABLE s."c1t" SET LOGGED'), first, EQUAL)
    assert len(refused) == 1 and "that fix is refused: syntax error" in refused[0]
    (useless,) = judge_looks(FakeWorld(), first, first)
    assert "is not mended by its fix" in useless
    (unequal,) = judge_looks(FakeWorld(), first, differing("s.c1t"))
    assert "is not mended by its fix: 1 row differs" in unequal
    (stopped,) = judge_looks(FakeWorld(), first, Verdict({}, {"s.c1t": [UNLOGGED]}))
    assert "is not mended by its fix: it is equal" in stopped
    world = FakeWorld()
    assert judge_looks(world, first, EQUAL) == [] and world.typed == ['ALTER TABLE s."c1t" SET LOGGED']


def test_what_the_form_chooses_is_typed_only_where_the_report_prints_nothing_complete(judge_looks: Judge) -> None:
    chosen = ("ALTER TABLE c1t ADD PRIMARY KEY (a)",)
    first = differing("s.c1t", reports={"s.c1t": [KEYLESS]})
    world = FakeWorld([Stop("c1t", "has no key", chosen)])
    assert judge_looks(world, first, EQUAL) == [] and world.typed == list(chosen)
    (fault,) = judge_looks(FakeWorld([Stop("c1t", "has no key")]), first, EQUAL)
    assert "has no fix that can be typed as it is printed" in fault
    complete = Report(KEYLESS.why, 'name columns: [source.keys] "s.c1t" = ["a"]', warns=True)
    world = FakeWorld([Stop("c1t", "has no key", chosen)])
    assert judge_looks(world, differing("s.c1t", reports={"s.c1t": [complete]}), EQUAL) == []
    assert world.typed == ["again"] and world.keys == {"s.c1t": ["a"]}


def test_a_rule_is_applied_only_where_the_report_names_its_setting_and_its_column(judge_looks: Judge) -> None:
    stop = Stop("c1t", "exact form", rules={"staged_as": {"d": "or_null"}})
    vague = Report("stopped: column d: a value has no exact form", "correct the value", blocks=True)
    (fault,) = judge_looks(FakeWorld([stop]), differing("s.c1t", reports={"s.c1t": [vague]}), EQUAL)
    assert "has no fix that can be typed" in fault
    exact = Report(vague.why, 'correct the value, or stage the column as "or_null" (staged_as)', blocks=True)
    world = FakeWorld([stop])
    assert judge_looks(world, differing("s.c1t", reports={"s.c1t": [exact]}), EQUAL) == []
    assert world.typed == [("s.c1t", {"staged_as": {"d": "or_null"}}), "again"]


def test_a_table_that_has_to_be_reported_and_is_not_or_in_other_words_is_a_fault(judge_looks: Judge) -> None:
    stop = Stop("c1t", "has no key", ("SELECT 1",))
    (silent,) = judge_looks(FakeWorld([stop]), EQUAL, EQUAL)
    assert "is to be told of as 'has no key'" in silent
    (other,) = judge_looks(FakeWorld([stop]), Verdict({}, {"s.c1t": [UNLOGGED]}), EQUAL)
    assert "is to be told of as 'has no key', and is by ['stopped: s.c1t is unlogged" in other


def test_a_stopped_table_is_mended_even_if_it_is_equal_and_a_failed_dump_of_an_equal_one_is_not(
    judge_looks: Judge,
) -> None:
    failed = Report("its dump has failed: locked", "request it again", recorded=True)
    world = FakeWorld()
    first = Verdict({}, {"s.c1t": [UNLOGGED], "s.c1tt": [failed]})
    assert judge_looks(world, first, EQUAL) == [] and world.typed == ['ALTER TABLE s."c1t" SET LOGGED']


def test_a_table_that_is_gone_is_reported_and_its_copy_removed(judge_looks: Judge) -> None:
    gone = Problem(f"s.c1t {GONE}", "remove its lake table if nobody needs them", False, "s.c1t")
    world = FakeWorld()
    assert judge_looks(world, differing("s.c1t", reports=from_problems([gone])), EQUAL) == []
    assert world.typed == ["remove s.c1t"]


def test_each_fix_may_show_the_next_one_but_not_without_end(
    judge_looks: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeWorld()

    def look(*_: object) -> Verdict:
        step = Report(f"fault {len(world.typed)}", f"ALTER TABLE s.c1t SET (n = {len(world.typed)})", blocks=True)
        return differing("s.c1t", reports={"s.c1t": [step]}) if len(world.typed) < last else EQUAL

    monkeypatch.setattr(verdict, "settle_lake", lambda *_: None)
    monkeypatch.setattr(verdict, "look", look)
    last = 3
    assert Judgement(world, world).find_faults() == [] and len(world.typed) == 3  # type: ignore[arg-type]
    world.typed.clear()
    last = 100
    (fault,) = Judgement(world, world).find_faults()  # type: ignore[arg-type]
    assert "needs more than" in fault


@pytest.mark.parametrize(
    ("text", "table", "kind", "fix"),
    [
        ("ALTER TABLE public.t SET LOGGED, or a pattern", "public.t", "postgres", Statements(("ALTER TABLE public.t SET LOGGED",))),
        ("ALTER TABLE public.t REPLICA IDENTITY FULL, give it a key", "public.t", "postgres", Statements(("ALTER TABLE public.t REPLICA IDENTITY FULL",))),
        ('ALTER TABLE public."a, or ""b" SET LOGGED; then', 'public.a, or "b', "postgres", Statements(('ALTER TABLE public."a, or ""b" SET LOGGED',))),
        ("ALTER TABLE public.tt SET LOGGED", "public.t", "postgres", None),
        ("leave it out, or ALTER TABLE `s`.`a``; b` ENGINE = InnoDB", "s.a`; b", "mysql", Statements(("ALTER TABLE `s`.`a``; b` ENGINE = InnoDB",))),
        ("ALTER TABLE `s`.`t` ADD UNIQUE (its key's columns), all of them NOT NULL", "s.t", "mysql", None),
        ("SET STATEMENT a_b = KEEP FOR ALTER TABLE `s`.`t` DROP x", "s.t", "mariadb", Statements(("SET STATEMENT a_b = KEEP FOR ALTER TABLE `s`.`t` DROP x",))),
        ("GRANT USAGE ON SCHEMA s TO u; GRANT SELECT ON s.t TO u", "s.t", "postgres", Statements(("GRANT USAGE ON SCHEMA s TO u", "GRANT SELECT ON s.t TO u"))),
        ("ALTER TABLE s.t SET LOGGED; ALTER TABLE s.u SET LOGGED", "s.t", "postgres", Statements(("ALTER TABLE s.t SET LOGGED",))),
        ('name columns: [source.keys] "s.t" = ["a]", "b"]', "s.t", "mysql", Setting("s.t", None, ["a]", "b"])),
        ('[source.keys] "s.tt" = ["a"]', "s.t", "mysql", None),
        ('[source.keys] "s.t" = ["…"]', "s.t", "mysql", None),
        ('as text: [source.columns."s.\\"t"] staged_as = { "a }" = "text" } (`dblog schema accept x`)', 's."t', "postgres", Setting('s."t', "staged_as", {"a }": "text"})),
        ('exclude them: [source.columns."s.t"] exclude = ["g"]', "s.t", "mysql", Setting("s.t", "exclude", ["g"])),
        ("run `dblog schema accept 's.a `b'`, which", "s.a `b", "mysql", Command(("dblog", "schema", "accept", "s.a `b"))),
        ("run `dblog dump --table s.t`", "s.t", "mysql", Command(("dblog", "dump", "--table", "s.t"))),
        ("dblog dump --table s.t", "s.t", "mysql", Command(("dblog", "dump", "--table", "s.t"))),
        ("run `dblog dump --table s.tt`", "s.t", "mysql", None),
        ("set x = FULL for every session; then start the capture again, which dumps the table", "s.t", "mysql", Restart()),
        ("remove its lake table if nobody needs them", "s.t", "postgres", Removal()),
        ("give it a primary key", "s.t", "mysql", None),
    ],
)  # fmt: skip
def test_a_fix_is_read_as_it_is_printed(text: str, table: str, kind: str, fix: Fix | None) -> None:
    assert read_fix(text, table, kind) == fix


def test_reports_are_of_exactly_one_table_each_with_its_fix() -> None:
    ok = {"table": "s.a", "state": "ok", "error": None, "cause": None, "fix": None}
    stopped = {"table": "s.b", "state": "stopped", "error": "no key\n  fix: have one", "cause": "c", "fix": "f"}
    waits = {"table": "s.c", "state": "incomplete", "error": None, "cause": "rows wait", "fix": "`dblog merge`"}
    status = from_status([ok, stopped, waits])
    assert status == {
        "s.b": [Report("stopped: no key", "have one", blocks=True)],
        "s.c": [Report("incomplete: rows wait", "`dblog merge`", blocks=True)],
    }
    problems = from_problems([Problem("w", "x", False, "s.b"), Problem("of all", "y")])
    assert merge_reports(status, problems)["s.b"] == [*status["s.b"], Report("w", "x", warns=True)]
    assert merge_reports(status, problems).keys() == {"s.b", "s.c"}
