"""What may pass where columns are hidden: what is proven to be what was accepted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from dblog_core.config.source import ColumnRules
from dblog_core.model.events import Altered, Created, RowsMoved, SchemaSeen, Signal
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.schema_changes import Step
from dblog_core.model.table_identity import Origin
from dblog_core.rows.acceptance import Acceptance, Held, digest_columns
from dblog_core.rows.table_guard import TableGuard, accepted_as, is_still_as_accepted

PEOPLE, PLAIN = TableName("shop", "people"), TableName("shop", "plain")
RULES = {"shop.people": ColumnRules(mask=("iban",))}
ENTRIES = {"shop.people": "entry"}


def shape(table: TableName, *columns: str) -> TableSchema:
    return TableSchema(table, tuple(Column(c, "text", pa.string()) for c in columns), columns[:1])


ACCEPTED = shape(PEOPLE, "id", "iban", "note")


def by_log() -> TableGuard:
    """Of a server whose log tells; both tables are accepted."""
    acceptances = {"shop.people": Acceptance("entry", digest_columns(ACCEPTED)), "shop.plain": Acceptance()}
    return TableGuard(RULES, ENTRIES, acceptances)


def held(guard: TableGuard, *signals: Signal) -> dict[str, Held]:
    for signal in signals:
        guard.follow(signal)
    acceptances = guard.acceptances or {}
    return {table: a.why_held for table, a in acceptances.items() if a.why_held is not None}


def altered(step: Step | None, table: TableName = PEOPLE, *, anew: bool = False) -> Altered:
    return Altered(0, 0, table, step, anew=anew)


def seen(*columns: str, table: TableName = PEOPLE) -> SchemaSeen:
    return SchemaSeen(0, 0, shape(table, *columns))


@pytest.mark.parametrize(
    "signals",
    [
        [seen("id", "iban", "note")],
        [altered(Step())],
        [altered(Step(revalued=("note",)))],
        [altered(Step(renamed={"iban": "IBAN"}))],
        [altered(None, anew=True), Created(0, 0, PEOPLE), seen("id", "iban", "note")],
        [altered(None, PLAIN), seen("id", "anything", table=PLAIN)],
        [Created(0, 0, TableName("shop", "new")), seen("id", table=TableName("shop", "new"))],
    ],
)
def test_what_is_proven_to_be_the_accepted_shape_passes(signals: list[Signal]) -> None:
    guard = by_log()
    assert held(guard, *signals) == {} and guard.passes("shop.people") and guard.passes("shop.plain")


@pytest.mark.parametrize(
    ("signal", "why"),
    [
        (seen("id", "iban", "note", "more"), Held.RESHAPED),
        (seen("id", "note", "iban"), Held.RESHAPED),
        (seen("id", "iban"), Held.RESHAPED),
        (altered(None), Held.ALTERED),
        (altered(Step(renamed={"iban": "old"}, nulls=("iban",))), Held.RESHAPED),
        (altered(Step(renamed={"iban": "note", "note": "iban"})), Held.RESHAPED),
        (altered(Step(unknown=("more",))), Held.RESHAPED),
        (altered(Step(dropped=("note",))), Held.RESHAPED),
        (RowsMoved(0, 0, (PEOPLE,)), Held.ARRIVED),
        (RowsMoved(0, 0, (TableName("SHOP", "People"),), any_case=True), Held.ARRIVED),
        (Altered(0, 0, TableName("SHOP", "People"), None, any_case=True), Held.ALTERED),
    ],
)
def test_a_table_with_hidden_columns_is_held_by_whatever_may_have_moved_them(signal: Signal, why: Held) -> None:
    guard = by_log()
    assert held(guard, signal) == {"shop.people": why}
    assert not guard.passes("shop.people") and guard.passes("shop.plain") and guard.has_changes
    # Nothing in the log releases it.
    assert held(guard, seen("id", "iban", "note"), altered(None, anew=True), Created(0, 0, PEOPLE))


def test_any_table_is_held_that_arrives_or_that_nobody_has_watched() -> None:
    strange = TableName("shop", "strange")
    guard = by_log()
    assert held(guard, RowsMoved(0, 0, (PLAIN, strange))) == {"shop.plain": Held.ARRIVED, "shop.strange": Held.ARRIVED}
    guard = by_log()
    assert held(guard, seen("id", table=strange)) == {"shop.strange": Held.UNWATCHED}
    assert "dblog rules accept shop.strange" in guard.held()["shop.strange"].fix
    # Made again under a name that is held, there may be more log than of this table.
    assert held(guard, Created(0, 0, strange)) == {"shop.strange": Held.UNWATCHED}


def test_a_statement_that_nobody_knows_holds_every_table_but_those_that_are_made_later() -> None:
    guard = by_log()
    assert held(guard, RowsMoved(0, 0, None)) == {"shop.people": Held.UNKNOWN, "shop.plain": Held.UNKNOWN}
    assert not guard.passes("shop.people") and not guard.passes("shop.plain")
    new = TableName("shop", "new")
    assert held(guard, Created(0, 0, new), seen("id", table=new)).keys() == {"shop.people", "shop.plain"}


def test_a_table_of_an_entry_that_is_made_in_the_log_has_the_shape_that_it_shows_first() -> None:
    guard = TableGuard(RULES, ENTRIES, {})
    assert held(guard, Created(0, 0, PEOPLE), seen("id", "iban")) == {} and guard.passes("shop.people")
    assert held(guard, seen("id", "iban", "more")) == {"shop.people": Held.RESHAPED}


def test_what_comes_before_the_place_of_an_acceptance_neither_passes_nor_holds() -> None:
    guard = by_log()
    guard.accept("shop.people", Acceptance("entry", digest_columns(ACCEPTED), since="9"))
    before: Callable[[str], bool] = lambda place: True  # noqa: E731
    assert not guard.follow(altered(None), before) and not guard.follow(RowsMoved(0, 0, (PEOPLE,)), before)
    assert not guard.follow(seen("id", "other"), before) and not guard.passes("shop.people")
    assert not guard.follow(seen("id", "iban", "note"), before)
    assert guard.release(lambda place: place == "8") == ([], []) and guard.waiting() == {"shop.people"}
    assert guard.release(lambda place: place == "9") == ([PEOPLE], []) and guard.passes("shop.people")
    # A statement after that place holds it, though its batch is the one that reaches the place.
    guard.accept("shop.people", Acceptance("entry", digest_columns(ACCEPTED), since="9"))
    assert guard.follow(altered(None), lambda place: False) and guard.release(lambda place: True) == ([], [])
    # The last shape before the place is not the accepted one.
    guard.accept("shop.people", Acceptance("entry", digest_columns(ACCEPTED), since="9"))
    guard.follow(seen("id", "other"), before)
    released, holds = guard.release(lambda place: True)
    assert released == [] and [hold.table for hold in holds] == [PEOPLE]


def test_without_hidden_columns_all_passes_and_the_manifest_says_nothing() -> None:
    guard = TableGuard({"shop.people": ColumnRules(staged_as={"a": "text"})}, {"shop.people": "x"}, None)
    assert held(guard, RowsMoved(0, 0, (PEOPLE,)), seen("a")) == {} and guard.passes("shop.any")
    assert guard.acceptances is None and not guard.has_changes


# By the catalogue -----------------------------------------------------------------------------------------------------

MADE = Origin(7, brought="", attached="", numbers="n", columns="c", version="v", is_as_made=True)


class Catalogue:
    def __init__(self, **origins: Origin) -> None:
        self.tables = {TableName("shop", name): origin for name, origin in origins.items()}
        self.asked: list[TableName] = []

    def origins(self, tables: Collection[TableName]) -> Mapping[TableName, Origin]:
        self.asked = sorted(tables)
        return {table: origin for table, origin in self.tables.items() if table in tables}

    def current_position(self) -> str:
        return "9"


def by_catalogue(catalogue: Catalogue) -> TableGuard:
    acceptances = {
        "shop.people": accepted_as(MADE, "entry", hides=True),
        "shop.plain": accepted_as(replace(MADE, oid=8), "", hides=False),
    }
    return TableGuard(RULES, ENTRIES, acceptances, witness=catalogue)


def shown(table: TableName, oid: int) -> SchemaSeen:
    return SchemaSeen(0, 0, shape(table, "id"), oid=oid)


def judged(guard: TableGuard, table: TableName, *signals: Signal) -> str:
    """What becomes of rows of the table."""
    holds = guard.judge([table], signals)
    acceptance = guard.find(str(table))
    assert acceptance is not None
    if table not in [hold.table for hold in holds]:
        return "passes"
    return "waits" if acceptance.why_held is None else acceptance.why_held.value


def test_a_partition_that_comes_to_stand_beside_hidden_columns_is_held_though_it_was_proven_before() -> None:
    part = replace(MADE, oid=8, is_partition=True)
    catalogue = Catalogue(people=MADE, plain=part)
    guard = by_catalogue(catalogue)
    assert judged(guard, PLAIN, shown(PLAIN, 8)) == judged(guard, PLAIN) == "passes"
    catalogue.tables[PLAIN] = replace(part, brought="beside", is_beside_hidden=True)
    assert judged(guard, PLAIN) == "beside"
    # Somebody has accepted it there.
    guard.accept("shop.plain", accepted_as(catalogue.tables[PLAIN], "", hides=False))
    assert judged(guard, PLAIN) == "passes"


@pytest.mark.parametrize(
    ("now", "becomes"),
    [
        (MADE, "passes"),
        (replace(MADE, is_as_made=False), "passes"),
        (replace(MADE, version="another"), "waits"),  # described again, and the same: names may have come and gone
        (replace(MADE, numbers="others", version="x"), "reshaped"),
        (replace(MADE, numbers="others", columns="others", version="x"), "reshaped"),
        (replace(MADE, attached="a", brought="a"), "arrived"),
        (replace(MADE, oid=9, brought="renamed", version="x"), "arrived"),
        (replace(MADE, oid=9, version="x"), "waits"),  # made again, with the same columns
        (replace(MADE, oid=9, columns="others", version="x"), "reshaped"),
        (None, "gone"),
    ],
)
def test_rows_of_a_table_with_hidden_columns_pass_while_its_description_is_the_accepted_one(
    now: Origin | None, becomes: str
) -> None:
    catalogue = Catalogue() if now is None else Catalogue(people=now)
    guard = by_catalogue(catalogue)
    assert judged(guard, PEOPLE) == becomes
    if now is not None:
        accepted = accepted_as(MADE, "entry", hides=True)
        assert is_still_as_accepted(accepted, now, hides=True) == (becomes == "passes")


@pytest.mark.parametrize(
    ("now", "becomes"),
    [
        (replace(MADE, oid=8), "passes"),
        (replace(MADE, oid=8, numbers="others", version="x"), "passes"),
        (replace(MADE, oid=8, brought="renamed", version="x"), "arrived"),
        (replace(MADE, oid=8, brought="attached", attached="attached"), "arrived"),
        (replace(MADE, oid=5, brought="renamed"), "arrived"),
        (replace(MADE, oid=5), "waits"),
        (None, "gone"),
    ],
)
def test_rows_of_another_table_pass_while_nothing_has_arrived_in_it(now: Origin | None, becomes: str) -> None:
    guard = by_catalogue(Catalogue() if now is None else Catalogue(plain=now))
    assert judged(guard, PLAIN) == becomes


def test_a_new_table_passes_where_the_log_says_that_its_rows_are_of_it() -> None:
    new = TableName("shop", "new")
    assert judged(by_catalogue(Catalogue(new=MADE)), new, shown(new, 7)) == "passes"
    assert judged(by_catalogue(Catalogue(new=MADE)), new) == "waits"  # another one may have had the name
    assert judged(by_catalogue(Catalogue(new=MADE)), new, shown(new, 6)) == "waits"
    assert judged(by_catalogue(Catalogue(new=replace(MADE, brought="renamed"))), new, shown(new, 7)) == "arrived"


def test_rows_of_another_table_under_the_same_name_do_not_pass() -> None:
    catalogue = Catalogue(people=MADE, plain=replace(MADE, oid=8))
    guard = by_catalogue(catalogue)
    assert judged(guard, PLAIN, shown(PLAIN, 8)) == "passes"
    guard.follow(shown(PLAIN, 8))
    assert judged(guard, PLAIN) == "passes" and judged(guard, PLAIN) == "passes"
    catalogue.asked = []
    assert judged(guard, PLAIN) == "passes" and catalogue.asked == [], "made with this name: that stays so"
    assert judged(guard, PLAIN, shown(PLAIN, 3)) == "waits"
    guard = by_catalogue(catalogue)
    assert judged(guard, PEOPLE, shown(PEOPLE, 6)) == "waits"


def test_nothing_is_proven_for_good_where_a_table_may_have_been_a_part_of_one_with_hidden_columns() -> None:
    catalogue = Catalogue(people=replace(MADE, parts=True), plain=replace(MADE, oid=8))
    guard = by_catalogue(catalogue)
    guard.follow(shown(PLAIN, 8))
    assert judged(guard, PLAIN) == "passes"
    catalogue.tables[PLAIN] = replace(MADE, oid=8, brought="detached")
    assert [hold.table for hold in guard.judge([PLAIN, PEOPLE])] == [PLAIN], "in the same batch too"


PARTITIONED = replace(MADE, oid=8, parts=True)
DESCRIBED_AGAIN = replace(MADE, version="v2:all", described="all")


@pytest.mark.parametrize(
    ("people", "becomes"),
    [
        (MADE, "passes"),
        (replace(MADE, version="v2"), "passes"),  # an ALTER TABLE describes some columns again
        (DESCRIBED_AGAIN, "waits"),
        (replace(MADE, oid=9), "waits"),
        (None, "waits"),
    ],
)
def test_rows_of_a_partitioned_table_wait_where_one_with_hidden_columns_may_have_been_a_part_of_it(
    people: Origin | None, becomes: str
) -> None:
    catalogue = Catalogue(plain=PARTITIONED, **({} if people is None else {"people": people}))
    guard = by_catalogue(catalogue)
    assert judged(guard, PLAIN) == becomes
    assert (PLAIN in guard.release(lambda place: True)[0]) == (becomes == "waits")
    assert judged(guard, PLAIN) == "passes", "once"


def test_a_partitioned_table_with_a_part_that_arrived_is_held_though_it_waits() -> None:
    catalogue = Catalogue(plain=replace(PARTITIONED, brought="attached", attached="a"), people=DESCRIBED_AGAIN)
    assert judged(by_catalogue(catalogue), PLAIN) == "arrived"


def test_a_held_table_is_watched_under_whatever_name_it_has() -> None:
    catalogue = Catalogue(people=MADE, plain=PARTITIONED, kept=replace(MADE, oid=9, brought="renamed"))
    guard = by_catalogue(catalogue)
    kept = TableName("shop", "kept")
    assert judged(guard, kept) == "arrived" and judged(guard, PLAIN) == "passes"
    catalogue.tables[kept] = replace(DESCRIBED_AGAIN, oid=9, brought="renamed")
    assert judged(guard, PLAIN) == "waits"
    guard.release(lambda place: True)
    del catalogue.tables[kept]
    assert judged(guard, PLAIN) == "waits", "it may have been dropped since"
    guard.release(lambda place: True)
    assert judged(guard, PLAIN) == "passes"


def test_an_acceptance_of_what_may_have_been_a_part_counts_too() -> None:
    catalogue = Catalogue(people=DESCRIBED_AGAIN, plain=PARTITIONED)
    guard = by_catalogue(catalogue)
    guard.accept("shop.people", accepted_as(DESCRIBED_AGAIN, "entry", hides=True))
    assert judged(guard, PLAIN) == "waits"


def test_a_new_partitioned_table_waits() -> None:
    """A table with hidden columns may have been a part of it before its rows were read."""
    new = TableName("shop", "new")
    guard = by_catalogue(Catalogue(people=MADE, new=replace(MADE, oid=12, parts=True)))
    assert judged(guard, new, shown(new, 12)) == "waits"


def test_a_table_that_has_gone_passes_once_it_is_made_again() -> None:
    catalogue = Catalogue()
    guard = by_catalogue(catalogue)
    assert judged(guard, PLAIN) == "gone" and guard.held() == {} and "shop.plain" in guard.waiting()
    catalogue.tables[PLAIN] = replace(MADE, oid=12)
    assert judged(guard, PLAIN) == "waits"
    assert guard.release(lambda place: True) == ([PLAIN], []) and guard.passes("shop.plain")


def test_acceptances_keep_their_form() -> None:
    for acceptance in (Acceptance(), Acceptance("e", "7:", since="9"), Acceptance("e", "s", "c", "v", "", Held.GONE)):
        assert Acceptance.from_json(acceptance.to_json()) == acceptance
    assert Acceptance().to_json() == []
