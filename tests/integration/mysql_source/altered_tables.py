"""ALTER statements that many make, and such as change values by the manuals of MySQL and MariaDB."""

from __future__ import annotations

from typing import Any

from tests.integration.mysql_source.conversions import LENIENT, Case

_MIXED = "a VARCHAR(20), b VARCHAR(20), n INT, d DATETIME(3), c DECIMAL(10,2)"
_MIXED_INTO = "a, b, n, d, c"
_MIXED_ROWS = ("'a  ', 'ä', 7, '2024-02-29 12:34:56.789', 1.25", "NULL, NULL, NULL, NULL, NULL", "'x', '9', 0, NULL, 0")
_PARTED = "PARTITION BY LIST (id) (PARTITION p VALUES IN (1, 2), PARTITION q VALUES IN (3, 4, 5))"
_RANGES = "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (3), PARTITION q VALUES LESS THAN (9))"


def mixed(alter: str, **more: Any) -> Case:
    """Over a table of columns of some types."""
    return Case(_MIXED, _MIXED_ROWS, alter, into=_MIXED_INTO, **more)


HARMLESS = (
    mixed("ADD COLUMN e INT"),
    mixed("ADD COLUMN e VARCHAR(9) NOT NULL DEFAULT 'x', ALGORITHM=INSTANT"),
    mixed("DROP COLUMN b"),
    mixed("RENAME COLUMN a TO z"),
    mixed("ADD INDEX i (a), ADD UNIQUE KEY (id, n)"),
    mixed("ADD CONSTRAINT k CHECK (n < 100)"),
    mixed("MODIFY n BIGINT"),
    mixed("MODIFY a VARCHAR(400)"),
    mixed("CHANGE a z VARCHAR(60) COMMENT 'longer'"),
    mixed("MODIFY a MEDIUMTEXT"),
    mixed("MODIFY c DECIMAL(14,2)"),
    mixed("MODIFY c DECIMAL(14,4)"),
    mixed("MODIFY d DATETIME(6)"),
    mixed(
        "MODIFY n INT COMMENT 'how many', "
        "MODIFY d DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)"
    ),
    mixed("ALTER COLUMN n SET DEFAULT 5, ALTER COLUMN a SET DEFAULT 'x'"),
    mixed("COMMENT = 'what it is for'"),
    mixed("ENGINE = InnoDB"),
    mixed("FORCE"),
    mixed("ROW_FORMAT = COMPRESSED KEY_BLOCK_SIZE = 8"),
    mixed("AUTO_INCREMENT = 1000"),
    mixed("CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", options="CHARACTER SET utf8mb3"),
    mixed("DEFAULT CHARACTER SET latin1"),
    mixed("MODIFY n BIGINT DEFAULT 4", sql_mode=LENIENT),
    Case("c ENUM('a','b')", ("'a'", "'b'", "NULL"), "MODIFY c ENUM('a','b','c')"),
    Case("c SET('a','b')", ("'a,b'", "''", "NULL"), "MODIFY c SET('a','b','c','d','e','f','g','h','i')"),
    Case("c INT UNSIGNED", ("0", "4294967295"), "MODIFY c BIGINT"),
    Case("c FLOAT", ("0.1", "1.5", "-3.4e38"), "MODIFY c DOUBLE"),
    Case("c VARBINARY(5)", ("x'00ff20'", "''"), "MODIFY c BLOB"),
    Case("c DATE", ("'2024-02-29'", "NULL"), "MODIFY c DATETIME"),
    Case("c INT", ("1",), "MODIFY c BIGINT NOT NULL"),
    Case(
        "c INT NOT NULL AUTO_INCREMENT",
        ("1", "2"),
        "MODIFY c BIGINT NOT NULL AUTO_INCREMENT",
        key="PRIMARY KEY (id), KEY (c)",
    ),
    Case("c INT", ("1", "2"), "ADD PARTITION (PARTITION r VALUES LESS THAN (99))", options=_RANGES),
    Case(
        "c INT",
        ("1", "2"),
        "REORGANIZE PARTITION q INTO (PARTITION q1 VALUES LESS THAN (5), PARTITION q2 VALUES LESS THAN (9))",
        options=_RANGES,
    ),
    Case("c INT", ("1", "2"), "REMOVE PARTITIONING", options=_RANGES),
)
"""What many a migration does: no dump is needed."""

_FLOATS = ("0.1", "1.5", "2.345678", "-0.005")
TELLING = (
    mixed("RENAME COLUMN a TO b, RENAME COLUMN b TO a"),
    Case("c DECIMAL(50,10)", ("1.5", "2.3456789", "-0.005"), "MODIFY c DECIMAL(50,2)"),
    Case("c DECIMAL(50,10)", ("1.5", "2.3456789"), "CHANGE c z DECIMAL(50,2)"),
    Case("c DECIMAL(50,2)", ("1.5",), "MODIFY c DECIMAL(52,4)"),
    Case("c DECIMAL(10,4)", ("1.2345",), "MODIFY c DECIMAL(10,2)"),
    Case("c DECIMAL(10,4)", ("1.5",), "MODIFY c DECIMAL(50,2)"),
    Case("c DECIMAL(10,2)", ("1.25", "2.5"), "MODIFY c INT"),
    Case("c DECIMAL(10,2)", ("-1.25",), "MODIFY c DECIMAL(10,2) UNSIGNED", sql_mode=LENIENT),
    Case("c TEXT", ("'abc    '", "'abcd'"), "MODIFY c VARCHAR(5)"),
    Case("c VARCHAR(9)", ("'abc    '",), "MODIFY c VARCHAR(4)", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("'abc  '",), "MODIFY c CHAR(9)"),
    Case("c VARCHAR(9)", ("'abc  '",), "MODIFY c TINYTEXT, MODIFY id INT COMMENT 'x'"),
    Case("c VARCHAR(9)", ("'abcdef'",), "MODIFY c VARCHAR(3)", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("'ä日'",), "MODIFY c VARCHAR(9) CHARACTER SET latin1", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("'ä日'",), "CONVERT TO CHARACTER SET ascii", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("'ä'",), "MODIFY c VARCHAR(9), DEFAULT CHARACTER SET ascii", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("'ä'",), "DEFAULT CHARACTER SET ascii, MODIFY c VARCHAR(9)", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("'ä'",), "MODIFY c VARCHAR(9) COLLATE ascii_bin", sql_mode=LENIENT),
    Case("c CHAR(9)", ("'abc'",), "MODIFY c VARCHAR(9)", sql_mode="PAD_CHAR_TO_FULL_LENGTH"),
    Case(
        "c TEXT CHARACTER SET latin1",
        ("CONCAT(REPEAT('ä', 40000), REPEAT(' ', 20000))",),
        "MODIFY c TEXT CHARACTER SET utf8mb4",
        sql_mode=LENIENT,
    ),
    Case("c FLOAT", _FLOATS, "MODIFY c FLOAT(7,2)"),
    Case("c FLOAT(7,4)", _FLOATS, "MODIFY c DOUBLE(7,4)"),
    Case("c FLOAT", _FLOATS, "MODIFY c FLOAT(53)"),
    Case("c DOUBLE", _FLOATS, "MODIFY c FLOAT"),
    Case("c DOUBLE", _FLOATS, "MODIFY c DOUBLE(9,1)"),
    Case("c DOUBLE", ("-1.5", "2"), "MODIFY c DOUBLE UNSIGNED", sql_mode=LENIENT),
    Case("c DOUBLE", ("1.5", "2.5"), "MODIFY c BIGINT"),
    Case("c INT", ("300", "-300"), "MODIFY c TINYINT", sql_mode=LENIENT),
    Case("c INT", ("-1",), "MODIFY c INT UNSIGNED", sql_mode=LENIENT),
    Case("c INT UNSIGNED", ("4294967295",), "MODIFY c INT", sql_mode=LENIENT),
    Case("c INT", ("-1", "7"), "MODIFY c INT ZEROFILL", sql_mode=LENIENT),
    Case("c INT", ("0", "9"), "MODIFY c INT AUTO_INCREMENT UNIQUE"),
    Case("c INT NOT NULL", ("0", "9"), "MODIFY c INT NOT NULL AUTO_INCREMENT, ADD UNIQUE KEY (c)"),
    Case("c INT NOT NULL", ("0", "9"), "ADD UNIQUE KEY (c), CHANGE c c BIGINT NOT NULL AUTO_INCREMENT"),
    Case("c INT", ("0", "9", "NULL"), "MODIFY c INT NOT NULL", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("''", "NULL"), "MODIFY c VARCHAR(9) NOT NULL DEFAULT 'x'", sql_mode=LENIENT),
    Case("c DATETIME", ("'2024-02-29 00:00:00'", "NULL"), "MODIFY c DATETIME NOT NULL", sql_mode=LENIENT),
    Case(
        "c TIMESTAMP NULL",
        ("'2024-02-29 00:00:00'", "NULL"),
        "MODIFY c TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
        sql_mode=LENIENT,
    ),
    Case("c TIMESTAMP NULL", ("'2024-02-29 00:00:00'", "NULL"), "MODIFY c TIMESTAMP", sql_mode=LENIENT),
    Case("c INT", ("1", "NULL"), "DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)", sql_mode=LENIENT),
    Case("c INT", ("1", "NULL"), "DROP PRIMARY KEY, ADD CONSTRAINT k PRIMARY KEY (id, c)", sql_mode=LENIENT),
    Case("c ENUM('a','b')", ("'a'", "'b'"), "MODIFY c ENUM('b','a','c')"),
    Case("c ENUM('a','b')", ("'a'", "'b'"), "MODIFY c ENUM('a','x','b')"),
    Case("c ENUM('a','b')", ("'a'", "'b'"), "MODIFY c ENUM('a','x')", sql_mode=LENIENT),
    Case("c ENUM('a','b')", ("'a'", "'b'"), "MODIFY c ENUM('A','b')"),
    Case("c ENUM('61','b')", ("'61'", "'b'"), "MODIFY c ENUM(x'61','b','61')"),
    Case("c ENUM('a','b')", ("'a'", "'b'"), "MODIFY c ENUM('b')", sql_mode=LENIENT),
    Case("c SET('a','b')", ("'a,b'", "'a'"), "MODIFY c SET('b','a')"),
    Case("c SET('a','b')", ("'a,b'", "'a'"), "MODIFY c SET('z','a','b')"),
    Case("c SET('a','b')", ("'a,b'", "'a'"), "MODIFY c SET('a')", sql_mode=LENIENT),
    Case("c VARCHAR(9)", ("'A'", "'b'"), "MODIFY c ENUM('a','b')"),
    Case("c VARCHAR(9)", ("'b,a'",), "MODIFY c SET('a','b')"),
    Case("c VARCHAR(20)", ("'1.50'", "' 12'"), "MODIFY c DECIMAL(9,1)", sql_mode=LENIENT),
    Case("c DATETIME(6)", ("'2024-02-29 12:34:56.789012'",), "MODIFY c DATETIME"),
    Case("c DATETIME(6)", ("'2024-02-29 12:34:56.789012'",), "MODIFY c DATETIME(3)"),
    Case("c DATETIME", ("'2024-02-29 12:34:56'",), "MODIFY c DATE"),
    Case("c TIMESTAMP(6) NULL", ("'2024-02-29 12:34:56.789012'",), "MODIFY c TIMESTAMP NULL"),
    Case("c TIMESTAMP NULL", ("'2024-02-29 12:34:56'",), "MODIFY c DATETIME", settings="time_zone = '+05:00'"),
    Case("c DATETIME", ("'2024-02-29 12:34:56'",), "MODIFY c TIMESTAMP NULL", settings="time_zone = '+05:00'"),
    Case("c TIME(6)", ("'12:34:56.789012'",), "MODIFY c TIME"),
    Case("c TIME", ("'12:34:56'",), "MODIFY c TIME(3)"),
    Case("c YEAR", ("2024", "0"), "MODIFY c TINYINT", sql_mode=LENIENT),
    Case("c BIT(4)", ("b'1010'",), "MODIFY c BIT(12)"),
    Case("c BIT(12)", ("b'101010101010'",), "MODIFY c BIT(4)", sql_mode=LENIENT),
    Case("c BINARY(3)", ("'a'", "'abc'"), "MODIFY c BINARY(6)"),
    Case("c BINARY(3)", ("'a'",), "MODIFY c VARBINARY(3)"),
    Case("c VARBINARY(6)", ("'a'",), "MODIFY c BINARY(6)"),
    Case("c VARBINARY(9)", ("'abcdef'",), "MODIFY c VARBINARY(3)", sql_mode=LENIENT),
    Case("c JSON", ('\'{"b": 1, "a": 1.10}\'',), "MODIFY c LONGTEXT"),
    Case("c LONGTEXT", ('\'{"b" : 1,"a":1.10}\'',), "MODIFY c JSON"),
    Case("c INT, g INT AS (c + 1) STORED", ("1", "2"), "MODIFY g INT AS (c + 2) STORED"),
    Case("c INT, g INT AS (c + 1) VIRTUAL", ("1", "2"), "DROP COLUMN g, ADD COLUMN g INT AS (c + 2) VIRTUAL"),
    Case("c INT, g VARCHAR(20) AS (CONCAT(c)) STORED", ("1", "2"), "MODIFY c INT(5) ZEROFILL"),
    Case("c DECIMAL(9,1), g VARCHAR(20) AS (CONCAT(c)) STORED", ("1", "2"), "MODIFY c DECIMAL(9,3)"),
    Case("c DATE, g VARCHAR(30) AS (CONCAT(c)) STORED", ("'2024-02-29'",), "MODIFY c DATETIME"),
    Case("c INT, g VARCHAR(20) AS (CONCAT(c)) STORED", ("1", "2"), "ADD COLUMN e INT, MODIFY c DOUBLE"),
    Case("c INT DEFAULT 1", ("1", "2"), "DROP COLUMN c, ADD COLUMN c INT DEFAULT 1"),
    Case("c INT", ("1", "2"), "ENGINE = BLACKHOLE", sql_mode=LENIENT),
    Case("c INT", ("1", "2"), "ENGINE = MyISAM"),
    Case("c INT", ("1", "2", "3", "4"), "DROP PARTITION p", options=_PARTED),
    Case(
        "c INT", ("1", "2", "3", "4"), "REORGANIZE PARTITION p, q INTO (PARTITION r VALUES IN (1, 4))", options=_PARTED
    ),
    Case("c INT", ("1", "2", "3", "4"), "TRUNCATE PARTITION q", options=_PARTED),
    Case("c INT", ("1", "2"), "MODIFY c TINYINT /* smaller */", sql_mode=LENIENT),
    Case("c DECIMAL(50,4)", ("1.2345",), "MODIFY c DECIMAL(50,2) /*!50000 COMMENT 'x' */"),
    Case("c DECIMAL(50,4)", ("1.2345",), "MODIFY c DECIMAL(50,2) COMMENT 'für'"),
    Case("`ç` DECIMAL(50,4)", ("1.2345",), "MODIFY `ç` DECIMAL(50,2)", into="`ç`"),
    Case("c DECIMAL(50,4)", ("1.2345",), "MODIFY COLUMN C NUMERIC(50,2) AFTER id"),
    Case("c DECIMAL(50,4)", ("1.2345",), "CHANGE `c` `C` DECIMAL(50,2)"),
    Case("c GEOMETRY", ("ST_GeomFromText('POINT(1 2)')",), "MODIFY c LONGBLOB"),
)
"""What changes a value, or may, by the manuals of both servers."""

MARIADB = (
    Case("c DECIMAL(50,4)", ("1.2345",), "ADD COLUMN e INT", head="ALTER ONLINE TABLE {t} "),
    Case("c DECIMAL(50,4)", ("1.2345",), "MODIFY c DECIMAL(50,2)", head="ALTER TABLE IF EXISTS {t} WAIT 5 "),
    Case(
        "c DECIMAL(50,4)",
        ("1.2345",),
        "MODIFY COLUMN IF EXISTS c DECIMAL(50,2)",
        head="ALTER TABLE IF EXISTS {t} NOWAIT ",
    ),
    Case(
        "c DECIMAL(50,4)",
        ("1.2345",),
        "ALTER TABLE {t} MODIFY c DECIMAL(50,2)",
        head="SET STATEMENT sql_mode = '' FOR ",
    ),
    Case("c INT", ("1", "1", "2"), "ADD UNIQUE KEY (c)", head="ALTER IGNORE TABLE {t} "),
    Case("c INT", ("300",), "MODIFY c TINYINT", head="ALTER IGNORE TABLE {t} "),
    Case("c INET6", ("'::1'", "'1::2'"), "MODIFY c VARCHAR(40)"),
    Case("c INET4", ("'10.0.0.1'",), "MODIFY c VARCHAR(20)"),
    Case("c UUID", ("'123e4567-e89b-12d3-a456-426655440000'",), "MODIFY c CHAR(36)"),
    Case("c CHAR(36)", ("'123e4567-e89b-12d3-a456-426655440000'",), "MODIFY c UUID"),
    Case("c INT", ("1",), "ADD COLUMN IF NOT EXISTS c INT DEFAULT 5"),
    Case("c DATETIME(3)", ("'2024-02-29 12:34:56.789'",), "MODIFY c DATE", sql_mode="ORACLE"),
    Case("c VARCHAR(20)", ("'2024-02-29'",), "MODIFY c DATE", sql_mode="ORACLE"),
    Case(
        "c TIMESTAMP NULL",
        ("'2024-02-29 12:34:56'",),
        "MODIFY c TIMESTAMP NULL",
        sql_mode="MAXDB",
        settings="time_zone = '+05:00'",
    ),
)
"""What MariaDB alone takes."""
