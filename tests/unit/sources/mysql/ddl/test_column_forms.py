"""Which changes of a column are proven to keep its values, and what is known of a table after a statement."""

from __future__ import annotations

import pytest

from dblog_core.model.schema_changes import Step
from dblog_core.sources.mysql.ddl import alter_table, column_forms
from dblog_core.sources.mysql.ddl.altered_columns import Reading
from dblog_core.sources.mysql.ddl.column_forms import ColumnForm, TableForm
from tests.unit.statement_facts import STRICT


def form_of(definition: str) -> ColumnForm | None:
    """The form of a column with this definition in a table of utf8mb4."""
    reading = read(f"ADD c {definition}", TableForm({}, "utf8mb4"))
    return reading.after.columns["c"] if reading.after is not None else None


def read(what: str, before: TableForm | None, *, mode: int = STRICT, plain: bool = True) -> Reading:
    reading = alter_table.read(f"ALTER TABLE t {what}", mode, before, plain=plain)
    assert reading is not None
    return reading


def table(*columns: str, charset: str = "utf8mb4", computed: tuple[str, ...] = ()) -> TableForm:
    """Columns c0, c1, … with these definitions."""
    forms = {f"c{number}": form_of(definition) for number, definition in enumerate(columns)}
    return TableForm(forms, charset, frozenset(computed))


KEPT = [
    ("INT", "BIGINT"),
    ("TINYINT(1)", "BOOL"),
    ("INT UNSIGNED", "BIGINT"),
    ("SMALLINT UNSIGNED", "BIGINT UNSIGNED"),
    ("DECIMAL(10,2)", "NUMERIC(12,2)"),
    ("DECIMAL(50,2)", "DECIMAL(60,2)"),
    ("VARCHAR(20)", "VARCHAR(400)"),
    ("VARCHAR(20)", "VARCHAR(20) COLLATE utf8mb4_bin"),
    ("VARCHAR(20)", "TEXT"),
    ("VARCHAR(20) CHARSET utf8mb3", "VARCHAR(20)"),
    ("VARCHAR(20) CHARSET utf8mb3", "VARCHAR(20) CHARSET utf8"),
    ("TEXT", "LONGTEXT"),
    ("CHAR(3)", "CHAR(9)"),
    ("VARBINARY(3)", "TINYBLOB"),
    ("BLOB", "MEDIUMBLOB"),
    ("ENUM('a','b')", "ENUM('a','b','c')"),
    ("SET('a','b')", "SET('a','b','c')"),
    ("JSON", "JSON"),
    ("BINARY(3)", "BINARY(3)"),
    ("BIT(12)", "BIT(12) COMMENT 'x'"),
    ("FLOAT(7,2)", "FLOAT(7,2)"),
    ("TIME(3)", "TIME(3)"),
    ("INT", "INT NOT NULL"),
]
WIDENED = [
    ("DECIMAL(10,2)", "DECIMAL(12,4)"),
    ("FLOAT", "DOUBLE"),
    ("DATE", "DATETIME(3)"),
    ("DATETIME(3)", "DATETIME(6)"),
]
OTHERS = [
    ("BIGINT", "INT"),
    ("INT", "INT UNSIGNED"),
    ("INT UNSIGNED", "INT"),
    ("BIGINT UNSIGNED", "BIGINT"),
    ("INT", "DECIMAL(12,2)"),
    ("INT", "INT AUTO_INCREMENT"),
    ("DECIMAL(12,2)", "DECIMAL(10,2)"),
    ("DECIMAL(50,2)", "DECIMAL(52,4)"),
    ("DECIMAL(10,2)", "DECIMAL(50,2)"),
    ("DECIMAL(10,2)", "DECIMAL(11,4)"),
    ("DECIMAL(10,2)", "DECIMAL(10,2) UNSIGNED"),
    ("FLOAT", "FLOAT(7,2)"),
    ("FLOAT(7,2)", "DOUBLE"),
    ("FLOAT", "FLOAT(53)"),
    ("DOUBLE", "FLOAT"),
    ("VARCHAR(20)", "VARCHAR(19)"),
    ("VARCHAR(20)", "CHAR(20)"),
    ("CHAR(20)", "VARCHAR(20)"),
    ("TEXT", "VARCHAR(400)"),
    ("VARCHAR(100)", "TINYTEXT"),
    ("LONGTEXT", "TEXT"),
    ("VARCHAR(20)", "TEXT(400)"),
    ("VARCHAR(20)", "VARCHAR(20) CHARSET latin1"),
    ("VARCHAR(20) CHARSET latin1", "VARCHAR(20)"),
    ("VARCHAR(20)", "VARCHAR(20) CHARSET utf8"),
    ("VARCHAR(20) CHARSET utf8", "VARCHAR(20) CHARSET utf8"),
    ("VARCHAR(20)", "VARCHAR(20) COLLATE latin1_bin"),
    ("VARCHAR(20)", "VARBINARY(80)"),
    ("BINARY(3)", "BINARY(6)"),
    ("BINARY(3)", "VARBINARY(3)"),
    ("VARBINARY(3)", "BINARY(3)"),
    ("BIT(4)", "BIT(5)"),
    ("ENUM('a','b')", "ENUM('b','a')"),
    ("ENUM('a','b')", "ENUM('a','c','b')"),
    ("ENUM('a','b')", "ENUM('a')"),
    ("ENUM('a','b')", "ENUM('A','b')"),
    ("ENUM('61')", "ENUM(x'61','61')"),
    ("ENUM('a')", "SET('a')"),
    ("SET('a','b')", "SET('b','a')"),
    ("VARCHAR(20)", "ENUM('a')"),
    ("LONGTEXT", "JSON"),
    ("JSON", "LONGTEXT"),
    ("TIME", "TIME(3)"),
    ("DATETIME(3)", "DATETIME"),
    ("DATETIME", "DATE"),
    ("DATE", "TIMESTAMP NULL"),
    ("YEAR", "SMALLINT"),
]


@pytest.mark.parametrize(("old", "new"), KEPT)
def test_values_and_their_texts_stay(old: str, new: str) -> None:
    for plain in (True, False):
        assert read(f"MODIFY c0 {new}", table(old), plain=plain).keeps_values
    assert read(f"CHANGE C0 other {new}", table(old)).step == Step({"C0": "other"})


@pytest.mark.parametrize(("old", "new"), WIDENED)
def test_values_stay_and_their_texts_do_not(old: str, new: str) -> None:
    assert read(f"MODIFY c0 {new}", table(old)).keeps_values
    assert not read(f"MODIFY c0 {new}", table(old), plain=False).keeps_values


@pytest.mark.parametrize(("old", "new"), OTHERS)
def test_values_may_be_others(old: str, new: str) -> None:
    reading = read(f"MODIFY c0 {new}", table(old))
    assert (reading.keeps_values, reading.step) == (False, Step(revalued=("c0",)))


def test_null_stays_null_or_is_refused() -> None:
    assert read("MODIFY c0 INT NOT NULL", table("INT")).keeps_values
    assert not read("MODIFY c0 INT NOT NULL", table("INT"), mode=0).keeps_values
    assert read("MODIFY c0 INT NOT NULL", table("INT NOT NULL"), mode=0).keeps_values
    known = TableForm({"c0": ColumnForm("TIMESTAMP", (0,))})
    assert not read("MODIFY c0 TIMESTAMP", known).keeps_values and read("MODIFY c0 TIMESTAMP NULL", known).keeps_values
    assert not read("ADD PRIMARY KEY (c0)", table("INT"), mode=0).keeps_values
    assert not read("ADD CONSTRAINT k PRIMARY KEY (c0)", table("INT"), mode=0).keeps_values
    assert read("ADD PRIMARY KEY (c0)", table("INT")).keeps_values


def test_of_a_table_that_nobody_knows_nothing_is_proven() -> None:
    for what in ("MODIFY c0 INT", "ENGINE = InnoDB", "FORCE", "CONVERT TO CHARACTER SET utf8mb4", "ALGORITHM = COPY"):
        assert not read(what, None).keeps_values
    for what in (
        "ADD c INT",
        "DROP c",
        "RENAME COLUMN a TO b",
        "ADD INDEX (a)",
        "COMMENT 'x'",
        "ALTER a SET DEFAULT 1",
    ):
        assert read(what, None).keeps_values


@pytest.mark.parametrize("what", ["MODIFY c0 BIGINT", "ENGINE = InnoDB", "FORCE", "ADD e INT, ALGORITHM = COPY"])
def test_what_the_server_computes_is_computed_anew(what: str) -> None:
    reading = read(what, table("INT", "INT", computed=("c1",)))
    assert (reading.keeps_values, reading.step.revalued) == (False, ("c1",))
    assert read("ADD e INT, RENAME COLUMN c0 TO x", table("INT", computed=("c1",))).keeps_values
    added = read("ADD g INT AS (c0)", table("INT")).after
    assert added is not None and added.computed == {"g"}


def test_a_conversion_of_all_texts_keeps_the_older_utf8_alone() -> None:
    older = "VARCHAR(9) CHARSET utf8mb3"
    to_utf8 = "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    assert read(to_utf8, table("INT", older, "ENUM('a') CHARSET utf8mb3", "TEXT")).keeps_values
    reading = read(to_utf8, table("INT", "TEXT CHARSET latin1"))
    assert (reading.keeps_values, reading.step.revalued) == (False, ("c1",))
    assert not read(to_utf8, TableForm({"c0": None})).keeps_values
    assert not read("CONVERT TO CHARACTER SET utf8", table("TEXT")).keeps_values


@pytest.mark.parametrize("option", ["DEFAULT CHARSET = ascii", "CHARACTER SET ascii", "COLLATE = ascii_bin"])
def test_a_default_that_changes_in_the_same_statement_leaves_new_definitions_unsure(option: str) -> None:
    for what in (f"{option}, MODIFY c0 VARCHAR(20)", f"MODIFY c0 VARCHAR(20), {option}"):
        assert not read(what, table("VARCHAR(20)")).keeps_values
    after = read(option, table("VARCHAR(20)")).after
    assert after is not None and read("MODIFY c0 VARCHAR(20) CHARSET utf8mb4", after).keeps_values
    assert not read("MODIFY c0 VARCHAR(20)", after).keeps_values


def test_each_statement_leads_to_the_form_that_the_next_one_is_judged_by() -> None:
    known: TableForm | None = table("INT", "VARCHAR(20)", "DECIMAL(10,2)")
    for what, keeps in (
        ("MODIFY c1 VARCHAR(40), ADD e ENUM('a')", True),
        ("MODIFY c1 VARCHAR(30)", False),
        ("RENAME COLUMN c1 TO c2, RENAME COLUMN c2 TO c1", True),
        ("MODIFY c2 VARCHAR(30), MODIFY c1 DECIMAL(12,2)", True),
        ("MODIFY e ENUM('a','b')", True),
        ("CHANGE c0 k BIGINT", True),
        ("MODIFY k INT", False),
        ("DROP e, ADD e TEXT", True),
        ("MODIFY e ENUM('a','b')", False),
    ):
        reading = read(what, known)
        assert reading.keeps_values is keeps, what
        known = reading.after


@pytest.mark.parametrize(
    ("data_type", "text", "charset", "form"),
    [
        ("int", "int", None, ColumnForm("INT")),
        ("int", "int(10) unsigned zerofill", None, ColumnForm("INT", unsigned=True)),
        ("decimal", "decimal(10,2) unsigned", None, ColumnForm("DECIMAL", (10, 2), unsigned=True)),
        ("float", "float(7,4)", None, ColumnForm("FLOAT", (7, 4))),
        ("varchar", "varchar(20)", "utf8", ColumnForm("VARCHAR", (20,), charset="utf8mb3")),
        ("timestamp", "timestamp(6)", None, ColumnForm("TIMESTAMP", (6,))),
        ("datetime", "datetime", None, ColumnForm("DATETIME", (0,))),
        ("enum", "enum('a','it''s')", "utf8mb4", ColumnForm("ENUM", charset="utf8mb4", labels=("a", "it's"))),
        ("enum", "enum('a','?')", "utf8mb4", None),
        ("enum", "enum('é')", "utf8mb4", None),
        ("enum", r"enum('a\'')", "utf8mb4", None),
        ("varchar", "varchar(20) /*M!100301 COMPRESSED*/", "utf8mb4", None),
        ("datetime", "datetime /* mariadb-5.3 */", None, None),
        ("json", "json", None, ColumnForm("JSON")),
    ],
)
def test_the_catalogue_is_read_where_it_says_all(
    data_type: str, text: str, charset: str | None, form: ColumnForm | None
) -> None:
    assert column_forms.read_catalogue(data_type, text, charset, nullable=True, is_numbered=False) == form
