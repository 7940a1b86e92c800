"""What an ALTER TABLE of MySQL or MariaDB does to columns, as far as its grammar says."""

from __future__ import annotations

import pytest

from dblog_core.model.column_defaults import Constant
from dblog_core.model.events import (
    Altered,
    Created,
    Rewritten,
    Signal,
    Truncated,
)
from dblog_core.model.schema import TableName
from dblog_core.model.schema_changes import (
    Step,
)
from dblog_core.sources.mysql.ddl.alter_table import NOTHING, step
from tests.unit import mysql_binlog as binlog
from tests.unit.sources.mysql.binlog.test_log_state import state
from tests.unit.statement_facts import ANSI, EMPTY, ORACLE, STRICT, ZERO


@pytest.mark.parametrize(
    ("sql", "expected"),
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
        ("ALTER TABLE t REORGANIZE PARTITION p INTO (PARTITION a VALUES LESS THAN (1))", NOTHING),
        ("ALTER TABLE t REMOVE PARTITIONING", NOTHING),
        ("ALTER TABLE t DROP COLUMN a, DROP b", Step(dropped=("a", "b"))),
        ("ALTER TABLE t DROP c, ADD c INT", Step(nulls=("c",), dropped=("c",))),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a), DROP FOREIGN KEY f, DROP CHECK k", NOTHING),
        (
            "ALTER TABLE t ENGINE=InnoDB, FORCE, COMMENT='x', ALTER COLUMN a SET DEFAULT 5, ALTER b DROP DEFAULT",
            NOTHING,
        ),
        ("ALTER ONLINE TABLE IF EXISTS t WAIT 5 ALTER INDEX i INVISIBLE, ADD CHECK (a >= 1)", NOTHING),
        ("ALTER TABLE t CONVERT TO CHARACTER SET latin1 COLLATE latin1_bin", NOTHING),
        ("ALTER TABLE t MODIFY a INT, MODIFY COLUMN b VARCHAR(9) FIRST", Step(revalued=("a", "b"))),
        ("ALTER TABLE t CHANGE a A VARCHAR(9)", Step({"a": "A"}, revalued=("A",))),
        ("ALTER TABLE t CHANGE a b DECIMAL(50,2)", Step(unknown=("b",), dropped=("a",))),
        ("ALTER TABLE t CHANGE a b INT AUTO_INCREMENT", Step(unknown=("b",), dropped=("a",))),
        ("ALTER TABLE t MODIFY a DATETIME, MODIFY b BINARY(6), MODIFY c DOUBLE(9,1)", Step(revalued=("a", "b", "c"))),
        ("ALTER TABLE t MODIFY a SET('x','y'), MODIFY b CHAR(9), MODIFY c JSON", Step(revalued=("a", "b", "c"))),
        ("ALTER TABLE t CHANGE a b VARCHAR(9)", Step(unknown=("b",), dropped=("a",))),
        ("ALTER TABLE t CHANGE a b YEAR, ADD c INT AS (a)", Step(unknown=("b", "c"), dropped=("a",))),
        ("ALTER TABLE t ADD c INT DEFAULT (1), ADD d SERIAL", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c TEXT DEFAULT _ucs2'1', ADD d INT DEFAULT x'31'", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c VARCHAR(9) DEFAULT 'a' 'b', ADD d TEXT DEFAULT 'a' COLLATE x", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c TIMESTAMP, ADD d DATETIME DEFAULT CURRENT_TIMESTAMP", Step(unknown=("c", "d"))),
        ("ALTER TABLE t ADD c INT UNIQUE, ADD CHECK (a), ADD d INT AUTO_INCREMENT", Step(unknown=("c", "d"))),
    ],
)
def test_a_statement_is_read_whole(sql: str, expected: Step) -> None:
    assert step(sql, STRICT) == expected


@pytest.mark.parametrize(
    "rest",
    [
        *("RENAME TO x", "ADD c INT DEFAULT 1e5", "ADD (c INT)", "ADD c", "MODIFY a", "MODIFY a GEOMETRY", "DROP"),
        *("ADD c INT /* why */", "ADD c INT -- why", "ADD c INT # why", "/*!50000 ADD c INT */", "ADD `ç` INT"),
        *("RENAME COLUMN IF EXISTS a TO b", "RENAME COLUMN a TO b,", "RENAME COLUMN a TO b c", "RENAME COLUMN a b"),
        *("RENAME COLUMN a TO b, RENAME COLUMN A TO c", "DROP PARTITION p0, ADD c INT", "", "DROP IF EXISTS c"),
        *("REORGANIZE PARTITION p INTO (PARTITION a VALUES IN (1))", "REPAIR PARTITION p", "ENGINE = BLACKHOLE"),
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
    assert step("ALTER TABLE t MODIFY a DATE", STRICT | ORACLE) is None
    assert step("ALTER TABLE t RENAME COLUMN a TO b", None) is None
    assert step("ALTER IGNORE TABLE t RENAME COLUMN a TO b", STRICT) is None


def test_the_log_says_of_ddl_on_captured_tables_what_it_does_to_columns() -> None:
    def signals_of(
        sql: str, variables: bytes = b"\0" + bytes(4) + b"\1" + STRICT.to_bytes(8, "little")
    ) -> list[Signal]:
        log = state(mariadb=False)
        for data in (binlog.gtid(1), binlog.query(sql, variables=variables)):
            log.take(binlog.parse(data, 0, False))
        return list(log.flush().signals)

    name = TableName("shop", "t")
    assert signals_of("ALTER TABLE t RENAME COLUMN a TO b") == [Altered(0, 0, name, Step({"a": "b"}), shows=True)]
    assert signals_of("ALTER TABLE shop.t RENAME COLUMN a TO b", b"\1" + bytes(8)) == [
        Altered(0, 0, name, Step({"a": "b"}), shows=True)
    ]
    assert signals_of("ALTER TABLE t RENAME COLUMN a TO b", b"") == [
        Altered(0, 0, name, None, shows=True),
        Rewritten(1, 0, name),
    ]
    assert signals_of("ALTER TABLE Shop.T ADD c INT") == [
        Altered(0, 0, TableName("Shop", "T"), Step(nulls=("c",)), shows=True)
    ]
    revalued = Altered(0, 0, name, Step(revalued=("c",)), shows=True)
    assert signals_of("ALTER TABLE t MODIFY c BINARY(9)") == [revalued, Rewritten(1, 0, name)]
    assert signals_of("DROP TABLE t") == [Truncated(0, 0, name), Altered(1, 0, name, None, anew=True)]
    assert signals_of("CREATE TABLE t (id INT)") == [
        Altered(0, 0, name, None, shows=True, anew=True),
        Created(1, 0, name),
    ]
    revalued = Altered(0, 0, name, Step(revalued=("c",)), shows=True)
    assert signals_of("ALTER TABLE t MODIFY c TEXT") == [revalued, Rewritten(1, 0, name)]
    assert signals_of("ALTER TABLE t FORCE") == [Altered(0, 0, name, Step(), shows=True), Rewritten(1, 0, name)]
    assert signals_of("REPAIR TABLE t") == [Rewritten(0, 0, name), Altered(1, 0, name, None)]
    for sql in (
        "ALTER TABLE other.t ADD c INT",
        "CREATE INDEX i ON t (a)",
        "ALTER TABLE t ADD KEY (a)",
        "ANALYZE TABLE t",
    ):
        assert signals_of(sql) == []
