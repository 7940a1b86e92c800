"""Forms of statements of MySQL and MariaDB, and those that are made of tables of types, character sets and settings."""

# ruff: noqa: E501, SIM905  (a statement reads better in one line, and many names as text)
from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.forms import Form, Make, Stop, read_forms
from tests.contract import any_mysql
from tests.contract.any_value import decimals, integers, moments
from tests.contract.generated import makers
from tests.integration import mysql_types

_FILE = Path(__file__).with_name("mysql.sql")


def values(kind: str) -> dict[str, Make]:
    """What fills the holes of forms."""
    common: dict[str, Make] = {
        "int": integers(-(2**31), 2**31 - 1),
        "small": lambda r: str(r.randint(0, 99)),
        "key": lambda r: str(r.randint(1, 12)),
        "text": any_mysql.BOTH["c"],
        "word": lambda r: "'" + "".join(r.choices("abcdxyz", k=r.randint(1, 8))) + "'",
        "big": lambda r: f"REPEAT('{r.choice('abc')}é', {r.randint(4000, 9000)})",
        "dec": decimals(10, 2),
        "date": any_mysql.BOTH["da"],
        "ts": moments(*any_mysql._STAMPS, 0),
        "bytes": any_mysql.BOTH["b"],
        "json": any_mysql.BOTH["j"],
        "float": any_mysql.BOTH["g"],
    }
    return {**common, **{f"val_{name}": make for name, make in makers(kind).items()}}


_ROUND = """
INSERT INTO <t> VALUES (1, <text>, <int>, <date>), (2, <text>, <int>, <date>), (3, <text>, NULL, NULL)
UPDATE <t> SET v = <text>, n = n - 1 WHERE id = 1
UPDATE <t> SET id = id + 20 WHERE id = 2
ALTER TABLE <t> ADD COLUMN e int DEFAULT 6
INSERT INTO <t> VALUES (5, <text>, 5, <date>, 5)
DELETE FROM <t> WHERE id = 3
"""
_TABLE = "CREATE TABLE <t> (id int PRIMARY KEY, v varchar(40), n bigint, d date)"
SETTINGS = """\
sql_mode = ''
sql_mode = 'ANSI'
sql_mode = 'TRADITIONAL'
sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'
sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'
sql_mode = 'PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE'
sql_mode = 'NO_UNSIGNED_SUBTRACTION,REAL_AS_FLOAT'
sql_mode = 'NO_BACKSLASH_ESCAPES'
time_zone = '+05:30'
time_zone = '-11:00'
NAMES latin1
NAMES utf8mb4 COLLATE utf8mb4_bin
CHARACTER SET utf8mb4
character_set_results = NULL
collation_connection = utf8mb4_unicode_ci
foreign_key_checks = 0
unique_checks = 0
sql_safe_updates = 0
autocommit = 1
big_tables = 1
sql_auto_is_null = 1
sql_select_limit = 1
low_priority_updates = 1
transaction_isolation = 'READ-COMMITTED'
transaction_isolation = 'SERIALIZABLE'
tx_isolation = 'READ-UNCOMMITTED'
completion_type = 1
lc_time_names = 'de_DE'
div_precision_increment = 0
default_storage_engine = MyISAM
default_week_format = 3
explicit_defaults_for_timestamp = 0
innodb_strict_mode = 0
old_alter_table = 1
alter_algorithm = 'COPY'
auto_increment_increment = 7
binlog_rows_query_log_events = 1
binlog_annotate_row_events = 0
binlog_alter_two_phase = 1
binlog_transaction_compression = 1
transaction_allow_batching = 1
show_create_table_verbosity = 1
skip_parallel_replication = 1
sql_generate_invisible_primary_key = 1
gtid_domain_id = 7
server_id = 4711
check_constraint_checks = 0
system_versioning_alter_history = KEEP
rand_seed1 = 1
max_sort_length = 8
character_set_filesystem = latin1
keep_files_on_create = 1
optimizer_switch = 'derived_merge=off'
session_track_gtids = 'OWN_GTID'
gtid_next = 'AUTOMATIC:tagged'
windowing_use_high_precision = 0
terminology_use_previous = BEFORE_8_0_26
sql_log_off = 1
print_identified_with_as_hex = 1
binlog_row_event_max_size = 256
foreign_key_checks = 1
note_verbosity = ''
sql_quote_show_create = 0
""".splitlines()
"""Settings of a session; a server that does not know one refuses it."""

CHARSETS = """
armscii8 ascii binary cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 dec8 geostd8 greek hebrew hp8 keybcs2
koi8r koi8u latin1 latin2 latin5 latin7 macce macroman swe7 tis620 ucs2 utf16 utf16le utf32 utf8mb3 utf8mb4
""".split()
MULTIBYTE = ("big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis")
MYSQL_ALONE = ("gb18030",)
"""Character sets that MariaDB does not have."""
COLLATIONS = """
utf8mb4_general_ci utf8mb4_unicode_ci utf8mb4_bin utf8mb4_unicode_520_ci utf8mb4_turkish_ci utf8mb4_0900_ai_ci
utf8mb4_0900_as_cs utf8mb4_0900_bin utf8mb4_ja_0900_as_cs_ks utf8mb4_german2_ci latin1_german1_ci
latin1_german2_ci latin1_bin latin1_general_cs utf16_unicode_ci ucs2_general_ci utf32_bin cp1251_general_cs
koi8r_bin latin2_czech_cs cp1250_czech_cs utf8mb4_nopad_bin utf8mb4_general_nopad_ci uca1400_ai_ci
utf8mb3_general_ci utf8mb4_de_pb_0900_ai_ci utf8mb4_zh_0900_as_cs tis620_thai_ci hebrew_bin greek_general_ci
""".split()
_WORDS = {
    "cp1250": "Žluťoučký", "cp1251": "Привет", "cp1256": "مرحبا", "cp1257": "Āžuols", "cp850": "Grüße", "cp852": "Žluť", "cp866": "Привет", "greek": "Γειά", "hebrew": "שלום", "koi8r": "Привет", "koi8u": "Привіт", "latin2": "Žluť",
    "latin5": "İstanbul", "latin7": "Āžuols", "macce": "Žluť", "macroman": "Grüße", "tis620": "สวัสดี", "big5": "中文", "cp932": "日本語ｱ", "eucjpms": "日本語", "euckr": "한국어", "gb18030": "中文€ā", "gb2312": "中文", "gbk": "中文", "sjis": "日本語ｱ",
    "ujis": "日本語", "keybcs2": "Žluť", "armscii8": "abc", "geostd8": "abc", "swe7": "abc", "ascii": "abc",
}  # fmt: skip


def forms(kind: str, draw: random.Random) -> Iterator[Form]:
    """Those that are written, and those that are made of types, character sets, collations and settings."""
    yield from read_forms(_FILE, kind)
    yield from _types(kind, draw)
    yield from _charsets(kind)
    yield from _collations(draw)
    yield from _settings()
    yield from _clients(kind)


def _types(kind: str, draw: random.Random) -> Iterator[Form]:
    makers_by_type = makers(kind)
    names = [name for name in mysql_types.columns(kind) if name in makers_by_type]
    draw.shuffle(names)
    for first in range(0, len(names), 8):
        group = names[first : first + 8]
        columns = ", ".join(f"`{name}` {mysql_types.columns(kind)[name]}" for name in group)
        listed = ", ".join(f"`{name}`" for name in group)
        holes = ", ".join(f"<val_{name}>" for name in group)
        text = [f"CREATE TABLE <t> (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4"]
        text += [f"INSERT INTO <t> (id, {listed}) VALUES ({n}, {holes}), ({n + 1}, {holes})" for n in (1, 3, 5)]
        text += ["INSERT INTO <t> (id) VALUES (9)"]
        text += [f"UPDATE <t> SET `{name}` = <val_{name}> WHERE id = <key>" for name in group]
        text += [f"UPDATE <t> SET `{draw.choice(group)}` = NULL WHERE id = <key>", "DELETE FROM <t> WHERE id = <key>"]
        yield Form(f"types {', '.join(group)}", "\n".join(text), plain=draw.random() < 0.5)


def _charsets(kind: str) -> Iterator[Form]:
    for name in (*CHARSETS, *MULTIBYTE):
        if name in MYSQL_ALONE and kind != "mysql":
            continue
        word = _WORDS.get(name, "日本 é" if name.startswith(("u", "b")) else "Grüße")
        converted = f"CONVERT(_utf8mb4'{word}' USING {name})"
        stops: tuple[Stop, ...] = ()
        if name in MULTIBYTE:
            stop_pattern = f"{name}|character set"
            stops = (
                Stop("t", stop_pattern, chosen=("ALTER TABLE <t> CONVERT TO CHARACTER SET utf8mb4",), always=False),
                Stop("u", stop_pattern, chosen=("ALTER TABLE <u> CONVERT TO CHARACTER SET utf8mb4",), always=False),
            )
        text = f"""
CREATE TABLE <t> (id int PRIMARY KEY, v varchar(30), c char(12), x text, e enum('a','{word[:3]}'), s set('b','{word[:2]}')) CHARACTER SET {name}
CREATE TABLE <u> (k varchar(30) CHARACTER SET {name} PRIMARY KEY, n int)
INSERT INTO <t> VALUES (1, {converted}, {converted}, CONCAT({converted}, ' ', {converted}), 1, 3), (2, '', ' ', NULL, 2, 0)
INSERT INTO <u> VALUES ({converted}, 1), ('k', 2), ('', 3)
UPDATE <t> SET v = CONCAT(v, 'x'), c = NULL WHERE id = 1
UPDATE <u> SET k = CONCAT('p', k) WHERE n = 1
DELETE FROM <u> WHERE k = 'k'
"""
        yield Form(f"charset {name}", text, stops=stops)


def _collations(draw: random.Random) -> Iterator[Form]:
    for name in COLLATIONS:
        text = f"""
!CREATE TABLE <t> (k varchar(20) COLLATE {name} PRIMARY KEY, n int)
!CREATE TABLE <u> (a char(6) COLLATE {name}, b int, v text COLLATE {name}, PRIMARY KEY (b, a))
!INSERT INTO <t> VALUES ('a', 1), ('b ', 2), ('', 3), ('zz', 4)
!INSERT INTO <u> VALUES ('a', 1, 'x'), ('B', 1, 'X'), ('', 2, '')
!UPDATE <t> SET k = UPPER(k)
!UPDATE <t> SET k = CONCAT(k, '{draw.choice(("1", "x", "~"))}') WHERE n > 1
!UPDATE <u> SET a = LOWER(a), v = CONCAT(v, a)
!DELETE FROM <t> WHERE k = 'A'
"""
        yield Form(f"collation {name}", text)


def _settings() -> Iterator[Form]:
    for setting in SETTINGS:
        scope = "" if setting.startswith(("NAMES", "CHARACTER")) else "SESSION "
        # Longer names of such characters are too long for a server that takes each of their bytes for one.
        named = (("t", " é"),) if setting == "NAMES latin1" else ()
        yield Form(f"setting {setting}", f"!SET {scope}{setting}\n{_TABLE}{_ROUND}", named=named)


_CLIENTS = {
    "latin1": ("cp1252", "Müller€"), "latin2": ("iso8859-2", "Žluť"), "cp1251": ("cp1251", "Привет"), "koi8r": ("koi8-r", "Ёж"), "greek": ("iso8859-7", "Γάτα"), "hebrew": ("iso8859-8", "שלום"),
    "cp850": ("cp850", "Grüße"), "gbk": ("gbk", "誠縗"), "gb18030": ("gb18030", "誠€"), "gb2312": ("gb2312", "中文"), "big5": ("big5", "功許"), "sjis": ("shift_jis", "表ソ"), "cp932": ("cp932", "表ソ"), "ujis": ("euc_jp", "日本"),
    "eucjpms": ("euc_jp", "日本"), "euckr": ("euc_kr", "한국"), "cp1250": ("cp1250", "Žluť"), "tis620": ("tis-620", "สวัส"), "macroman": ("mac-roman", "Grüße"), "latin5": ("iso8859-9", "Şğ"),
}  # fmt: skip
"""Character sets of clients, Python's codec for each, and names in it: second bytes of some are a backslash or a backtick."""


def _clients(kind: str) -> Iterator[Form]:
    for name, (codec, word) in _CLIENTS.items():
        if name in MYSQL_ALONE and kind != "mysql":
            continue
        text = f"""
SET NAMES {name}
{{{codec}}} CREATE TABLE <t> (id int PRIMARY KEY, v varchar(20) CHARACTER SET utf8mb4) COMMENT '{word}'
{{{codec}}} CREATE TABLE <u> LIKE <t>
{{{codec}}} INSERT INTO <t> VALUES (1, '{word}'), (2, 'b')
{{{codec}}} INSERT INTO <u> SELECT * FROM <t>
{{{codec}}} TRUNCATE TABLE <t> /* {word} */
{{{codec}}} INSERT INTO <t> VALUES (3, '{word}')
{{{codec}}} ALTER TABLE <u> ADD COLUMN e varchar(20) CHARACTER SET utf8mb4 DEFAULT '{word}'
{{{codec}}} RENAME TABLE <u> TO <v>
{{{codec}}} INSERT INTO <v> (id) VALUES (4)
{{{codec}}} DROP TABLE <t>
"""
        named = tuple((letter, f" {word}") for letter in "tuv")
        yield Form(f"client {name}", text, named=named)
