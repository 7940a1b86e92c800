"""Runs of merges with faults: changes of two tables, a fault for each of some merges, and the judgement at the end.

The lake is judged by another reader of Delta than the one that wrote it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import orjson
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from dblog_core.lake.lake_status import LakeStatus, history_location, own_directory, read_status
from dblog_core.model.events import DELETE
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.storage.location import Location
from tests.spark.faults import BEGINNING, KINDS, LOST, OFTEN, Fault, Happened
from tests.spark.lakes import TestLake
from tests.spark.segments import Row
from tests.spark.worlds import SHAPE, Key, Oracle, Source
from tests.spark.worlds_history import Expected, Told

KeepHouse = Callable[[Location], None]

WORLDS = 3
NAMES = ("first", "second")


@dataclass(frozen=True)
class Plan:
    """A fault for each burst of changes but the last, whose merge is well; and how others keep house in between."""

    faults: Sequence[Fault | None]
    housekeeping: float = 0.0
    """How likely a table is joined and vacuumed by somebody after a fault."""
    then: bool = True
    """Whether there are changes after the last fault."""
    plain: bool = False
    """Whether all changes are of whole rows, and without dumps: merges of those are quick."""


def in_turn(seed: str, number: int) -> Plan:
    """Run `number` of many: a merger dies at each kind of step in turn; what else happens is drawn."""
    dice = random.Random(f"plan {seed}")
    kind = KINDS[number % len(KINDS)]
    often = kind.split(maxsplit=1)[1] in OFTEN
    death = Fault("killed", (kind,), dice.choice((1, 1, 2)) if often and number // len(KINDS) % 2 else 1)
    other = dice.choice(
        (
            Fault("unanswered", LOST, dice.randrange(1, 7)),
            Fault(dice.choice(("killed", "overtaken", "together")), KINDS, dice.randrange(1, 30)),
        )
    )
    faults = (death, other) if kind in BEGINNING else (other, death)
    return Plan(faults, housekeeping=dice.choice((0.0, 0.5)), then=dice.random() < 0.5)


class PlainSource(Source):
    """One that never leaves a value out, and never changes a key."""

    def change(self, world: int) -> None:
        key = (world, self.dice.choice("abcd"))
        if key not in self.rows:
            self._create(key)
        elif self.dice.random() < 0.2:
            self._delete(key)
        else:
            self._update(key, frozenset())


class Model:
    """Two tables of a source, and what a reader of their lines has at any offset."""

    def __init__(self, lake: TestLake, dice: random.Random, *, plain: bool) -> None:
        self._lake = lake
        self._dice = dice
        self._plain = plain
        kind = PlainSource if plain else Source
        self.sources = {name: kind(lake.build, dice, WORLDS, _shape(name)) for name in NAMES}
        for source in self.sources.values():
            source.add_unseen_rows(0.0 if plain else 0.3)

    def change(self, fault: Fault | None) -> None:
        """A segment or two of changes; among them what it takes to come by the fault's point."""
        kind_to_hit = fault.kinds[0] if fault is not None and len(fault.kinds) == 1 else ""
        for _ in range(self._dice.choice((1, 2))):
            for source in self.sources.values():
                for world in range(WORLDS):
                    source.change(world)
                what = 1.0 if self._plain else self._dice.random()
                if kind_to_hit.endswith("truncate"):  # with rows behind it, it is no commit of its own
                    source.truncate()
                elif what < 0.1:
                    source.truncate()
                    source.change(0)
                elif what < 0.2 or kind_to_hit.endswith("ghosts"):
                    source.full_dump()
                elif what < 0.4:
                    source.dump_chunk()
            self._lake.build.seal()

    def at(self, name: str, ends: list[int]) -> list[Oracle]:
        """What the table held at each of the merges' ends: a copy of the reader there."""
        oracle = Oracle()
        oracles = []
        for end in ends:
            oracle.read(self.sources[name].lines, end)
            oracles.append(
                replace(oracle, rows=dict(oracle.rows), withheld=set(oracle.withheld), may_wait=set(oracle.may_wait))
            )
        return oracles

    def history(self, name: str, ends: list[int]) -> Expected:
        expected = Expected()
        for end in ends:
            expected.read(self.sources[name].lines, end)
        return expected


def _shape(name: str) -> TableSchema:
    return TableSchema(TableName("shop", name), SHAPE.columns, SHAPE.key)


def by_delta_rs(path: Location) -> None:
    """OPTIMIZE and VACUUM of a program that uses delta-rs."""
    table = DeltaTable(str(path))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def run(lake: TestLake, seed: str, plan: Plan, keep_house: KeepHouse = by_delta_rs) -> list[Happened]:
    """One run; what happened in it. Asserts that the lake is right at its end. `keep_house`: how others join a table's
    files and remove old ones, where the plan has them."""
    dice = random.Random(seed)
    model = Model(lake, dice, plain=plan.plain)
    happened = list[Happened]()
    vacuumed = 0
    for fault in plan.faults:
        model.change(fault)
        if fault is None:
            lake.merge_well()
        else:
            happened.append(fault.befall(lake))
        vacuumed = max(vacuumed, _housekeeping(lake, dice, keep_house, plan.housekeeping))
    if plan.then:
        model.change(None)
    lake.merge_well()
    judge(lake, model, vacuumed)
    return happened


def _has_committed(lake: TestLake, name: str) -> bool:
    """Whether a merge has brought rows into the table."""
    return (lake.table(_shape(name)) / "_delta_log" / f"{1:020d}.json").exists()


def _housekeeping(lake: TestLake, dice: random.Random, keep_house: KeepHouse, share: float) -> int:
    """OPTIMIZE and VACUUM of somebody who does not ask; the newest cut whose versions may be gone by that."""
    cuts = [row["cut"] for row in _cuts(lake)] if read_status(lake.location) is not None else []
    oldest_cut = 0
    for name in NAMES:
        path = lake.table(_shape(name))
        if dice.random() < share and _has_committed(lake, name):
            keep_house(path)
            oldest_cut = max(cuts, default=0)  # a cut that names a version before this may have lost its files
    return oldest_cut


def judge(lake: TestLake, model: Model, vacuumed: int, *, with_late_tables: bool = False) -> None:
    """`vacuumed`: the newest cut that may have lost its files. `with_late_tables`: some merges have none."""
    cuts = _cuts(lake)
    numbers = [c["cut"] for c in cuts]
    assert numbers == sorted(set(numbers)), "a cut is there twice"
    assert with_late_tables or numbers == list(range(1, len(cuts) + 1)), "a cut is missing"
    assert [c["offset"] for c in cuts] == sorted(c["offset"] for c in cuts)
    assert cuts[-1]["offset"] == lake.build.offset
    assert not cuts[-1]["behind"]
    for name in NAMES:
        # A table that had stopped stands where it was.
        ends = [dict(c["behind"]).get(f"shop.{name}", c["offset"]) for c in cuts]
        expected = model.at(name, ends)
        for cut, oracle in zip(cuts, expected, strict=True):
            if cut["cut"] > vacuumed:
                version = dict(cut["tables"]).get(f"shop.{name}")
                rows_by_key = {} if version is None else _by_key(_rows(lake.table(_shape(name)), version))
                assert rows_by_key == oracle.rows, f"cut {cut['cut']} of {name}"
        newest = _by_key(_rows(lake.table(_shape(name))))
        oracle = expected[-1]
        assert newest == oracle.rows, name
        assert all(model.sources[name].rows[key] == row for key, row in newest.items())
        assert lake.withheld is not None
        assert oracle.waits(set(lake.withheld.keys(f"shop.{name}", SHAPE)))
        if lake.history:
            history_rows = Expected.as_all_told(_rows(history_location(lake.location, TableName("shop", name))))
            # A merge that has left a table late has no cut of its own.
            ends_of_merges = _ends_of_merges(lake, name) if with_late_tables else _ends_of_cuts(cuts, name)
            right = [model.history(name, list(upto)).in_order() for upto in product(*ends_of_merges)]
            if any(len(ends) > 1 for ends in ends_of_merges):
                history_rows = _in_order(history_rows)
                right = [_in_order(expected_rows) for expected_rows in right]
            assert history_rows in right, f"the history of {name}"


def _in_order(history_rows: list[Told]) -> list[tuple[Any, ...]]:
    """The lines of each key in their order. By which dump a key is told to be gone is left out: a merge that stopped
    after it had told and merged is done again from where its table is said to stand, and every later dump shows it."""
    others = len(SHAPE.columns) - len(SHAPE.key)
    lines = sorted(history_rows, key=lambda line: (line[2] or (-1, ""), line[0]))
    return [(line[0] if line[1] != DELETE or len(line[4]) < others else None, *line[1:]) for line in lines]


def _ends_of_cuts(cuts: list[Row], name: str) -> list[set[int]]:
    """Where each merge may have ended that the history of a table has been told by. One in which the table stopped may
    have told all of it before: what a dump in it shows to be gone is told then, and later rows do not undo that."""
    return [{cut["offset"], dict(cut["behind"]).get(f"shop.{name}", cut["offset"])} for cut in cuts]


def _ends_of_merges(lake: TestLake, name: str) -> list[set[int]]:
    """As `_ends_of_cuts`, by what the lake has recorded of each merge."""
    merges = own_directory(lake.location) / "merges"
    files = sorted(file for file in merges.names() if file.endswith(".done.json"))
    outcomes = [LakeStatus.from_json(orjson.loads((merges / file).read() or b"")) for file in files]
    places = [(outcome.offset, outcome.tables.get(f"shop.{name}")) for outcome in outcomes]
    return [{offset, offset if table is None else table.offset} for offset, table in places]


def _cuts(lake: TestLake) -> list[Row]:
    return sorted(_rows(lake.location / "_dblog" / "cuts"), key=lambda row: row["cut"])


def _rows(path: Location, version: int | None = None) -> list[Row]:
    """A Delta table as its files and their deletion vectors say."""
    table = DeltaTable(str(path), version=version)
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t")).to_pylist()


def _by_key(rows: list[Row]) -> Mapping[Key, dict[str, Any]]:
    rows_by_key = {(row["world"], row["k"]): {c: row[c] for c in ("a", "f", "big")} for row in rows}
    assert len(rows_by_key) == len(rows), "a key is there twice"
    return rows_by_key
