"""What is said of renamed and added columns is true: statements as they are read, and what they prove of two shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.config.source import ColumnRules
from dblog_core.model.column_defaults import Constant
from dblog_core.model.events import (
    Altered,
    Created,
    LogBatch,
    Rewritten,
    SchemaSeen,
    Signal,
    Transaction,
    Truncated,
)
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.schema_changes import (
    MOST_STEPS,
    Facts,
    Layout,
    Pending,
    Step,
    match_layouts,
    prove_changes,
)
from dblog_core.rows.column_rules import Rules
from dblog_core.schema_evolution.renames import Renames, describe_stale
from dblog_core.sources.mysql.ddl.alter_table import NOTHING, step
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark, Manifest
from dblog_core.staging.reader import lines
from tests.unit import mysql_binlog as binlog
from tests.unit.sources.mysql.binlog.test_log_state import state
from tests.unit.staged import table

STRICT = 1 << 21
ANSI = 1 << 2
BASE = table("shop.t", id=pa.int64(), a=pa.string(), b=pa.string())
ZERO = Constant("number", "0")
FIVE = Constant("number", "5")
EMPTY = Constant("text", "")
EXTRA = table("shop.t", m=pa.int64(), n=pa.int64(), key=()).columns


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("ALTER TABLE t RENAME COLUMN a TO b", Step({"a": "b"})),
        ("alter table `s`.`t`\n rename column `a``b` to `c d`", Step({"a`b": "c d"})),
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", Step({"a": "b", "b": "a"})),
        ("ALTER TABLE t CHANGE a b BIGINT(20) UNSIGNED NOT NULL DEFAULT -1 COMMENT 'x, y' AFTER c", Step({"a": "b"})),
        ("ALTER TABLE t CHANGE COLUMN a b DECIMAL(10, 2) NULL FIRST", Step({"a": "b"})),
        ("ALTER TABLE t ADD c INT", Step(nulls=("c",))),
        ("ALTER TABLE t ADD COLUMN `c` ENUM('a','b)') CHARACTER SET latin1 DEFAULT NULL AFTER a", Step(nulls=("c",))),
        ("ALTER TABLE t ADD c INT NOT NULL", Step(constants={"c": Constant("number", "0")})),
        (
            "ALTER TABLE t ADD c INT DEFAULT 5, ADD d TEXT NULL",
            Step(nulls=("d",), constants={"c": Constant("number", "5")}),
        ),
        (
            "ALTER TABLE t ADD c DECIMAL(9,2) UNSIGNED DEFAULT '1.5' NOT NULL, ADD d BOOL DEFAULT TRUE AFTER c",
            Step(constants={"c": Constant("number", "1.5"), "d": Constant("number", "1")}),
        ),
        (
            "ALTER TABLE t ADD c VARCHAR(9) DEFAULT 'it''s ', ADD d ENUM('new','old') NOT NULL DEFAULT \"old\"",
            Step(constants={"c": Constant("text", "it's "), "d": Constant("text", "old")}),
        ),
        (
            "ALTER TABLE t ADD c DATE DEFAULT '2024-02-30', ADD d DATETIME(6) DEFAULT '2024-02-29 01:02:03'",
            Step(constants={"c": Constant("date", "2024-02-30"), "d": Constant("moment", "2024-02-29 01:02:03")}),
        ),
        ("ALTER TABLE t ADD c TEXT NOT NULL, ADD d DOUBLE DEFAULT -0.0", Step(constants={"c": EMPTY, "d": ZERO})),
        (  # what the server may store in another form
            "ALTER TABLE t ADD c CHAR(3) DEFAULT 'a ', ADD d ENUM('new') DEFAULT 'NEW', ADD e VARCHAR(9) DEFAULT 5, "
            "ADD f FLOAT DEFAULT 0.1, ADD g DOUBLE(5,1) DEFAULT 0.15, ADD h BIT(3) DEFAULT 5, ADD i YEAR DEFAULT 24, "
            "ADD j DATETIME DEFAULT '2024-01-01', ADD k SET('a','b') DEFAULT 'b,a', ADD l VARBINARY(3) DEFAULT 'a', "
            "ADD m ENUM('a') NOT NULL, ADD n DATE NOT NULL, ADD o INT DEFAULT 'x', ADD p BINARY(3) NOT NULL",
            Step(unknown=tuple("cdefghijklmnop")),
        ),
        ("ALTER TABLE t ADD a INT, RENAME COLUMN a TO b", Step({"a": "b"}, nulls=("a",))),
        ("ALTER TABLE t ADD INDEX i (a, b) USING BTREE, ALGORITHM=INPLACE, LOCK = NONE", NOTHING),
        ("ALTER TABLE t ADD UNIQUE KEY (a), DROP INDEX x, RENAME INDEX y TO z", NOTHING),
        ("ALTER TABLE t DROP PARTITION p0, p1", NOTHING),
        ("ALTER TABLE t ADD PARTITION (PARTITION p2 VALUES LESS THAN (10))", NOTHING),
        ("ALTER TABLE t REORGANIZE PARTITION p INTO (PARTITION a VALUES IN (1), PARTITION b VALUES IN (2))", NOTHING),
        ("ALTER TABLE t REMOVE PARTITIONING", NOTHING),
        ("ALTER TABLE t DROP COLUMN a, DROP b", Step(dropped=("a", "b"))),
        ("ALTER TABLE t DROP c, ADD c INT", Step(nulls=("c",), dropped=("c",))),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a), DROP FOREIGN KEY f, DROP CHECK k", NOTHING),
        (
            "ALTER TABLE t ENGINE=InnoDB, FORCE, COMMENT='x', ALTER COLUMN a SET DEFAULT 5, ALTER b DROP DEFAULT",
            NOTHING,
        ),
        ("ALTER TABLE t CONVERT TO CHARACTER SET latin1 COLLATE latin1_bin", NOTHING),
        ("ALTER TABLE t MODIFY a INT, MODIFY COLUMN b VARCHAR(300) NOT NULL FIRST, MODIFY c ENUM('a')", NOTHING),
        ("ALTER TABLE t CHANGE a A VARCHAR(9)", Step({"a": "A"})),
        ("ALTER TABLE t MODIFY a DATETIME, MODIFY b BINARY(6), MODIFY c DOUBLE(9,1)", Step(revalued=("a", "b", "c"))),
        ("ALTER TABLE t MODIFY a SET('x','y'), MODIFY b CHAR(9), CHANGE c c JSON", Step(revalued=("a", "b", "c"))),
        ("ALTER TABLE t CHANGE a b VARCHAR(9)", Step(unknown=("b",), dropped=("a",))),
        ("ALTER TABLE t CHANGE a b YEAR, ADD c INT AS (a)", Step(unknown=("b", "c"), dropped=("a",))),
        ("ALTER TABLE t ADD c INT DEFAULT (1), ADD d SERIAL", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c TEXT DEFAULT _ucs2'1', ADD d INT DEFAULT x'31'", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c VARCHAR(9) DEFAULT 'a' 'b', ADD d TEXT DEFAULT 'a' COLLATE x", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c TIMESTAMP, ADD d DATETIME DEFAULT CURRENT_TIMESTAMP", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c INT UNIQUE, ADD CHECK (a), ADD d INT AUTO_INCREMENT", Step(unknown=("c", "d"))),
    ],
)
def test_a_statement_is_read_whole(sql: str, found: Step) -> None:
    assert step(sql, STRICT) == found


@pytest.mark.parametrize(
    "rest",
    [
        *("RENAME TO x", "ADD c INT DEFAULT 1e5", "ADD (c INT)", "ADD c", "MODIFY a", "MODIFY a GEOMETRY", "DROP"),
        *("ADD c INT /* why */", "ADD c INT -- why", "ADD c INT # why", "/*!50000 ADD c INT */", "ADD `ç` INT"),
        *("RENAME COLUMN IF EXISTS a TO b", "RENAME COLUMN a TO b,", "RENAME COLUMN a TO b c", "RENAME COLUMN a b"),
        *("RENAME COLUMN a TO b, RENAME COLUMN A TO c", "DROP PARTITION p0, ADD c INT", "", "DROP IF EXISTS c"),
        *("ADD c INT DEFAULT 'a\\'", "ADD c INT COMMENT 'it\\'s'", "ADD IF NOT EXISTS c INT", "MODIFY a INT AS (b)"),
        *("ADD c INT DEFAULT 1, ALTER C SET DEFAULT 2"),
        *('ADD "c" INT', "ADD c INT)", "ADD KEY (a", "EXCHANGE PARTITION p WITH TABLE u", "DISCARD TABLESPACE"),
    ],
)  # fmt: skip
def test_what_the_grammar_does_not_know_says_nothing(rest: str) -> None:
    assert step(f"ALTER TABLE t {rest}", STRICT) is None


def test_the_session_decides_what_quotes_mean_and_whether_values_stay() -> None:
    assert step('ALTER TABLE "t" RENAME COLUMN "a" TO "b"', ANSI) == Step({"a": "b"})
    assert step('ALTER TABLE t ADD c INT COMMENT "x"', 0) == Step(nulls=("c",))
    assert step("ALTER TABLE t CHANGE a b INT", 0) == Step(unknown=("b",), dropped=("a",))
    assert step("ALTER TABLE t MODIFY a INT", 0) == Step(revalued=("a",))
    assert step("ALTER TABLE t CONVERT TO CHARACTER SET latin1", 0) is None
    assert step("ALTER TABLE t RENAME COLUMN a TO b", None) is None
    assert step("ALTER IGNORE TABLE t RENAME COLUMN a TO b", STRICT) is None


def named(schema: TableSchema, *names: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    columns = tuple(replace(c, name=n) for c, n in zip(schema.columns, names, strict=True))
    return replace(schema, columns=columns, key=key)


def test_facts_follow_names_from_statement_to_statement() -> None:
    then = named(BASE, "id", "c", "a")
    assert prove_changes(BASE, then, [Step({"a": "x"}), Step({"B": "a"}), Step({"X": "c"})]) == Facts(
        {"c": "a", "a": "b"}, {}
    )
    assert prove_changes(BASE, named(BASE, "id", "b", "a"), [Step({"a": "b", "b": "a"})]) == Facts(
        {"b": "a", "a": "b"}, {}
    )
    assert prove_changes(BASE, named(BASE, "k", "a", "b", key=("k",)), [Step({"id": "k"})]) == Facts({"k": "id"}, {})
    more = replace(BASE, columns=(*BASE.columns, replace(BASE.columns[1], name="n")))
    assert prove_changes(BASE, more, [Step(nulls=("m",)), Step({"m": "n"})]) == Facts({}, {"n": None})
    assert prove_changes(BASE, more, [Step(unknown=("n",))]) == Facts({}, {})
    assert prove_changes(BASE, more, [Step(constants={"n": FIVE})]) == Facts({}, {})  # it became a text later
    more = replace(BASE, columns=(*BASE.columns, EXTRA[1]))
    assert prove_changes(BASE, more, [Step(constants={"m": FIVE}), Step({"M": "n"})]) == Facts({}, {"n": 5})
    assert prove_changes(BASE, more, [Step(constants={"n": FIVE}), Step(revalued=("N",))]) == Facts({}, {})


@pytest.mark.parametrize(
    ("constant", "source_type", "kind", "value"),
    [
        (FIVE, "int", pa.int32(), 5),
        (Constant("number", "300"), "tinyint", pa.int8(), None),
        (Constant("number", "1.0"), "int", pa.int32(), None),
        (Constant("number", "1.5"), "decimal(9,2)", pa.decimal128(9, 2), "1.50"),
        (Constant("number", "1.555"), "decimal(9,2)", pa.decimal128(9, 2), None),
        (Constant("number", "1.5"), "decimal(65,2)", pa.string(), None),
        (Constant("number", "0.1"), "double", pa.float64(), 0.1),
        (FIVE, "varchar(9)", pa.string(), None),  # MODIFY made a text of it
        (Constant("text", "5"), "int", pa.int32(), None),
        (Constant("text", "a "), "varchar(9)", pa.string(), "a "),
        (Constant("text", "a "), "char(9)", pa.string(), None),
        (Constant("text", "a "), "character(9)", pa.string(), "a "),
        (Constant("text", "{}"), "json", pa.string(), None),
        (Constant("text", "{a}"), "text[]", pa.string(), None),
        (Constant("date", "2024-02-29"), "date", pa.date32(), "2024-02-29"),
        (Constant("date", "2023-02-29"), "date", pa.date32(), None),
        (Constant("date", "infinity"), "date", pa.date32(), None),
        (Constant("date", "2024-02-29"), "datetime", pa.timestamp("us"), None),
        (Constant("moment", "2024-02-29 01:02:03.5"), "datetime(1)", pa.timestamp("us"), "2024-02-29T01:02:03.500000"),
        (
            Constant("moment", "2024-02-29 01:02:03+00"),
            "timestamp with time zone",
            pa.timestamp("us", tz="UTC"),
            "2024-02-29T01:02:03Z",
        ),
        (Constant("flag", "t"), "boolean", pa.bool_(), True),
        (Constant("flag", "f"), "boolean", pa.bool_(), False),
    ],
)
def test_a_constant_is_a_value_of_its_column_or_not_known(
    constant: Constant, source_type: str, kind: pa.DataType, value: object
) -> None:
    assert constant.value(Column("c", source_type, kind)) == value


@pytest.mark.parametrize(
    ("after", "steps"),
    [
        (named(BASE, "id", "c", "b"), [Step({"x": "c"})]),  # of a column that it did not have
        (named(BASE, "id", "c", "b"), [Step({"a": "d"})]),  # to a name that it does not have
        (named(BASE, "id", "c", "d"), [Step({"a": "c"})]),  # and nothing said of the other
        (named(BASE, "id", "c", "b"), [Step({"a": "b"}), Step({"b": "c"})]),  # a name that was taken
        (named(BASE, "id", "c", "b", key=("c",)), [Step({"a": "c"})]),  # with another key
        (replace(BASE, columns=(*BASE.columns[:2], replace(BASE.columns[0], name="c"))), [Step({"b": "c"})]),  # retyped
        (replace(BASE, columns=BASE.columns[:2]), [Step({"a": "b"}), Step({"b": "a"})]),  # and a drop
    ],
)
def test_statements_that_do_not_lead_to_the_shape_prove_nothing(after: TableSchema, steps: list[Step]) -> None:
    assert prove_changes(BASE, after, steps) is None


NAMES = st.sampled_from("abcxyz")


class World:
    """A table whose columns have identities, which nobody else sees."""

    def __init__(self) -> None:
        self.columns: list[tuple[str, int]] = [("id", 0), ("a", 1), ("b", 2)]
        self.next = 3

    def shape(self) -> TableSchema:
        return table("shop.t", **{name: pa.int64() for name, _ in self.columns})

    def alter(self, what: str, name: str, other: str) -> Step | None:
        """Does it if the server would; what is told of it (None: not understood)."""
        names = [n for n, _ in self.columns]
        if what == "swap" and name in names and other in names and name != other:
            renamed = {name: other, other: name}
        elif what == "rename" and name in names and other not in names:
            renamed = {name: other}
        else:
            return self._other(what, name, other, names)
        self.columns = [(renamed.get(n, n), who) for n, who in self.columns]
        return Step(renamed)

    def _other(self, what: str, name: str, other: str, names: list[str]) -> Step | None:
        if what == "add" and name not in names:
            constant = Constant("number", str(self.next))
            self.columns.append((name, self.next))
            self.next += 1
            return Step(nulls=(name,)) if other < name else Step(constants={name: constant})
        if what == "drop" and name in names:
            self.columns = [c for c in self.columns if c[0] != name]
            return None
        return NOTHING


ACTS = st.tuples(
    st.sampled_from(["rename", "swap", "add", "drop", "nothing"]), NAMES, NAMES, st.booleans(), st.booleans()
)


@settings(deadline=None)
@given(st.lists(ACTS, max_size=12))
def test_what_is_said_is_true_wherever_shapes_are_seen_and_it_restarts(
    acts: list[tuple[str, str, str, bool, bool]],
) -> None:
    world = World()
    pending = Pending({})
    before = world.shape()
    was = dict(world.columns)
    for what, name, other, seen, restarts in acts:
        told = world.alter(what, name, other)
        if told != NOTHING:
            pending.add(before.table, told, ["shop.t"])
        if restarts:
            pending = Pending(pending.to_json())
        if not seen:
            continue
        after = world.shape()
        now = dict(world.columns)
        found = pending.settle(before, after, plain=True)
        if found is not None:
            assert {n: was[o] for n, o in found.renamed.items()} == {n: now[n] for n in found.renamed}
            assert all(now[n] not in was.values() and value in (None, now[n]) for n, value in found.filled.items())
            left = now.keys() - found.renamed.keys() - found.filled.keys()
            assert {n: was[n] for n in left} == {n: now[n] for n in left}
        if found is not None or before.fingerprint != after.fingerprint:
            before = after
            was = now


class Capture:
    """A capture of shop.t that is told one signal a transaction."""

    def __init__(self, path: Path, rules: Rules | None = None) -> None:
        self.staging = Staging(str(path), source="shop")
        self.rules = rules or Rules({})
        self.place = 0
        self.staging.publish(Manifest("shop", 1, 1, 1, 0, "0", 0, "", None, 0))
        self.restart()

    def restart(self) -> None:
        head = self.staging.head()
        assert head is not None
        self.sequencer = Sequencer(
            self.staging, source="shop", epoch=1, head=head, visibility=LogOrder(), rules=self.rules
        )

    def take(self, signal: Signal) -> None:
        self.place += 1
        at = Transaction(str(self.place), str(self.place), self.place)
        self.sequencer.process(LogBatch((), (signal,), (at,), str(self.place)))

    def see(self, schema: TableSchema) -> None:
        self.take(SchemaSeen(0, 0, schema))

    def alter(self, told: Step | None, name: str = "t") -> None:
        self.take(Altered(0, 0, TableName("shop", name), told))

    def publish(self) -> tuple[LogMark, ...]:
        manifest = self.sequencer.seal(0)
        self.staging.publish(manifest)
        self.sequencer.begin_next_segment()
        found = self.staging.manifest(manifest.segment)
        assert found == manifest
        return found.marks


def test_a_mark_tells_what_is_proven_over_a_restart(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    capture.see(BASE)
    capture.alter(Step({"a": "c"}))
    capture.publish()
    capture.restart()
    capture.alter(Step(nulls=("n",)))
    after = named(BASE, "id", "c", "b")
    after = replace(after, columns=(*after.columns, replace(BASE.columns[1], name="n")))
    capture.see(after)
    (mark,) = capture.publish()
    assert (mark.renamed, mark.filled) == ({"c": "a"}, {"n": None})
    told = list(lines(capture.staging))[-1]
    assert (told["op"], told["renamed"], told["filled"]) == ("s", {"c": "a"}, {"n": None})
    assert capture.staging.manifest(3).altered == {}


def test_columns_that_swap_names_are_told_although_the_shape_is_the_same(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    capture.see(BASE)
    capture.alter(Step({"a": "b", "b": "a"}))
    capture.see(BASE)
    capture.see(BASE)
    first, second = capture.publish()
    assert (first.renamed, second.renamed) == (None, {"a": "b", "b": "a"})


@pytest.mark.parametrize("how", ["unknown", "rules", "case", "new"])
def test_a_mark_tells_nothing_where_a_statement_is_not_known(tmp_path: Path, how: str) -> None:
    rules = Rules({"shop.t": ColumnRules(mask=("b",))}) if how == "rules" else None
    capture = Capture(tmp_path, rules)
    if how != "new":
        capture.see(BASE)
    if how == "unknown":
        capture.alter(None)
        capture.see(BASE)  # a column may have been dropped and added
    capture.alter(Step({"a": "c"}), name="T" if how == "case" else "t")
    capture.see(named(BASE, "id", "c", "b"))
    assert capture.publish()[-1].renamed is None


@pytest.mark.parametrize(
    ("steps", "dumped"),
    [
        ([Step(unknown=("a",), dropped=("a",))], True),  # another column under the name of one
        ([Step(dropped=("a",)), Step(nulls=("A",))], True),
        ([Step({"a": "x"}), Step({"b": "a"})], True),
        ([Step({"a": "b", "b": "a"})], True),
        ([Step({"a": "x"}, nulls=("n",))], False),
        ([Step({"a": "A"}), Step(dropped=("b",)), Step(unknown=("m",))], False),
    ],
)
def test_a_table_is_dumped_where_a_name_stands_for_another_column(
    tmp_path: Path, steps: list[Step], dumped: bool
) -> None:
    capture = Capture(tmp_path)
    capture.see(BASE)
    for told in steps:
        capture.publish()
        capture.restart()
        capture.alter(told)
    assert list(capture.sequencer.tables.follow_ups.take_rewritten()) == [BASE.table] * dumped


def test_the_log_says_of_ddl_on_captured_tables_what_it_does_to_columns() -> None:
    def told(sql: str, variables: bytes = b"\0" + bytes(4) + b"\1" + STRICT.to_bytes(8, "little")) -> list[Signal]:
        log = state(mariadb=False)
        for data in (binlog.gtid(1), binlog.query(sql, variables=variables)):
            log.take(binlog.parse(data, 0, False))
        return list(log.flush().signals)

    name = TableName("shop", "t")
    assert told("ALTER TABLE t RENAME COLUMN a TO b") == [Altered(0, 0, name, Step({"a": "b"}), shows=True)]
    assert told("ALTER TABLE shop.t RENAME COLUMN a TO b", b"\1" + bytes(8)) == [
        Altered(0, 0, name, Step({"a": "b"}), shows=True)
    ]
    assert told("ALTER TABLE t RENAME COLUMN a TO b", b"") == [
        Altered(0, 0, name, None, shows=True),
        Rewritten(1, 0, name),
    ]
    assert told("ALTER TABLE Shop.T ADD c INT") == [
        Altered(0, 0, TableName("Shop", "T"), Step(nulls=("c",)), shows=True)
    ]
    revalued = Altered(0, 0, name, Step(revalued=("c",)), shows=True)
    assert told("ALTER TABLE t MODIFY c BINARY(9)") == [revalued, Rewritten(1, 0, name)]
    assert told("DROP TABLE t") == [Truncated(0, 0, name), Altered(1, 0, name, None)]
    assert told("CREATE TABLE t (id INT)") == [Altered(0, 0, name, None, shows=True), Created(1, 0, name)]
    assert told("ALTER TABLE t MODIFY c TEXT") == [Altered(0, 0, name, Step(), shows=True)]
    for sql in (
        "ALTER TABLE other.t ADD c INT",
        "CREATE INDEX i ON t (a)",
        "ALTER TABLE t ADD KEY (a)",
        "ANALYZE TABLE t",
    ):
        assert told(sql) == []


def test_names_of_older_rows_are_those_of_now() -> None:
    marks = [
        LogMark(10, "s", "shop.t", "p", 0, renamed={"b": "a", "a": "b"}),
        LogMark(20, "s", "shop.t", "p", 0),
        LogMark(30, "s", "shop.t", "p", 0, renamed={"k": "id", "c": "a"}, filled={"b": None}),
    ]
    renames = Renames.of(marks)
    assert [[renames.after(o).current_name(n) for n in ("id", "a", "b", "c")] for o in (5, 10, 30)] == [
        ["k", "_dblog_stale_30_b", "c", "_dblog_stale_30_c"],
        ["k", "c", "_dblog_stale_30_b", "_dblog_stale_30_c"],
        ["id", "a", "b", "c"],
    ]
    assert (
        describe_stale("_dblog_stale_30_b") == "b_until_30" and describe_stale("_dblog_stale_30_7_x") == "7_x_until_30"
    )
    assert renames.rename_columns(BASE).key == ("k",) and renames.last_offset == 30
    assert renames.columns_with_known_value == {"b"} and renames.after(30).columns_with_known_value == set()


def test_places_prove_what_columns_are_where_the_table_never_had_others() -> None:
    more = named(BASE, "k", "b", "a", key=("k",))
    more = replace(more, columns=(*more.columns, *EXTRA))
    told = match_layouts(BASE, more, "1/2", Layout("1/2", {"k": None, "m": 5}))
    assert told == Facts({"k": "id", "b": "a", "a": "b"}, {"m": 5})
    assert match_layouts(BASE, BASE, "1/2", Layout("1/2")) == Facts({}, {})


@pytest.mark.parametrize(
    ("before", "after", "token"),
    [
        (BASE, named(BASE, "id", "c", "b"), None),
        (BASE, named(BASE, "id", "c", "b"), "1/3"),  # rows were written anew, or it is another table
        (BASE, replace(BASE, columns=BASE.columns[:2]), "1/2"),
        (BASE, table("shop.t", id=pa.int64(), c=pa.int64(), b=pa.string()), "1/2"),
        (BASE, named(BASE, "k", "a", "b", key=("a",)), "1/2"),
    ],
)
def test_places_prove_nothing_otherwise(before: TableSchema, after: TableSchema, token: str | None) -> None:
    assert match_layouts(before, after, token, Layout("1/2", {"c": None})) is None
    assert match_layouts(before, after, "1/2", None) is None


def test_a_layout_is_known_over_a_restart_and_not_after_a_shape_without_one(tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    shapes = [named(BASE, "id", name, "b") for name in "acdef"]
    layout = Layout("1/2")
    found = []
    for shape, told in zip(shapes, (layout, layout, None, layout, layout), strict=True):
        capture.take(SchemaSeen(0, 0, shape, told))
        found.append(capture.publish()[0].renamed)
        capture.restart()
    assert found == [None, {"c": "a"}, None, None, {"f": "e"}]


class Catalogue:
    """A PostgreSQL table: each column's name, number, whether it is generated, whether the catalogue keeps a value for
    older rows, and what a row holds in it that nobody touches."""

    def __init__(self) -> None:
        self.columns = [["id", 1, False, False, "id"], ["a", 2, False, False, "a"], ["b", 3, False, False, "b"]]
        self.file = 1
        self.next = 4
        self.dropped = False
        self.values = 0

    def row(self) -> dict[str, str | None]:
        return {name: value for name, _, generated, _, value in self.columns if not generated}

    def shape(self) -> TableSchema:
        return table("shop.t", key=(), **{name: pa.int64() for name in self.row()})

    def look(self, shape: TableSchema) -> Layout | None:
        """As `layouts.layout`."""
        if self.dropped or [c[0] for c in self.columns] != [c.name for c in shape.columns]:
            return None
        if any(generated for _, _, generated, *_ in self.columns):
            return None
        return Layout(f"1/{self.file}", {name: value if kept else None for name, _, _, kept, value in self.columns})

    def alter(self, what: str, name: str, other: str) -> None:
        found = {c[0]: c for c in self.columns}
        if what == "rename" and name in found and other not in found:
            found[name][0] = other
        elif what == "swap" and name in found and other in found:
            found[name][0], found[other][0] = other, name
        elif what == "drop" and name in found:
            self.columns.remove(found[name])
            self.dropped = True
        elif what == "express" and name in found:
            found[name][2] = False
        elif what in ("add", "default", "generated") and name not in found:
            self.values += 1
            value = None if what == "add" else f"value {self.values}"
            self.columns.append([name, self.next, what == "generated", what == "default", value])
            self.next += 1
            if what == "generated":
                self._written_anew()
        elif what == "rewrite" and name in found:
            self.values += 1
            found[name][4] = f"value {self.values}"
            self._written_anew()

    def _written_anew(self) -> None:
        self.file += 1
        for column in self.columns:
            column[3] = False


PLACES = st.tuples(
    st.sampled_from(["rename", "rename", "swap", "drop", "express", "add", "add", "default", "generated", "rewrite"]),
    *(NAMES, NAMES, st.booleans(), st.integers(0, 2)),
)


@settings(deadline=None)
@given(st.lists(PLACES, max_size=14))
def test_places_say_what_is_true_however_far_the_log_is_behind_the_catalogue(
    acts: list[tuple[str, str, str, bool, int]],
) -> None:
    catalogue = Catalogue()
    token = None
    shown = [(catalogue.shape(), catalogue.row())]
    before: tuple[TableSchema, dict[str, str | None]] | None = None

    def read() -> None:
        nonlocal before, token
        shape, row = shown.pop(0)
        layout = catalogue.look(shape)
        if before is not None and (found := match_layouts(before[0], shape, token, layout)) is not None:
            assert {n: before[1][o] for n, o in found.renamed.items()} == {n: row[n] for n in found.renamed}
            assert {n: row[n] for n in found.filled} == found.filled
            same = [n for n in row if n in before[1] and n not in found.renamed and n not in found.renamed.values()]
            assert {n: before[1][n] for n in same} == {n: row[n] for n in same}
        if layout is not None:
            token = layout.token
        elif before is None or before[0].fingerprint != shape.fingerprint:
            token = None
        before = shape, row

    for what, name, other, writes, reads in acts:
        if what == "rewrite":  # `stamps` looks for those that a log behind the catalogue does not show
            while shown:
                read()
            read_now = (catalogue.shape(), catalogue.row())
            shown.append(read_now)
            read()
        catalogue.alter(what, name, other)
        if writes:
            shown.append((catalogue.shape(), catalogue.row()))
        for _ in range(min(reads, len(shown))):
            read()
    while shown:
        read()


def test_statements_that_no_row_follows_are_remembered_up_to_a_number() -> None:
    shape = table("shop.t", id=pa.int64(), c=pa.int64())
    name = str(shape.table)
    pending = Pending({})
    for _ in range(10 * MOST_STEPS):
        pending.add(shape.table, Step(), [name])
    assert pending.to_json() == {}, "what touches no column is nothing to remember"
    for number in range(10 * MOST_STEPS):
        pending.add(shape.table, Step(renamed={"cd"[number % 2]: "dc"[number % 2]}), [name])
    assert pending.to_json() == {name: None}
    assert pending.settle(shape, shape, plain=True) is None
