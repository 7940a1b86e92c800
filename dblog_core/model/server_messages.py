"""Which part of a database server's error text may stand in our own errors: these go to logs, the state store, notices
and pages, where nobody expects rows.

The text of an error passes only if its number is listed here as one that names tables, columns, accounts or settings.
Of every other error the number passes alone: a server may quote rows, keys, or the statement that holds them. Callers
pass the driver's error and never read its text themselves (`tests/unit/model/test_server_messages.py` looks for that).
"""

from __future__ import annotations

import re
from typing import Any

LEFT_OUT = "the server's text may quote rows and is left out"
_CUT = "…"

_MYSQL_NAMES_ONLY = frozenset(
    {
        0,  # of the driver
        *range(120, 200),  # of an engine: a table that it cannot open
        *range(2000, 2100),  # of the client: connections, TLS, credentials
        *(1005, 1006, 1007, 1008, 1009, 1010, 1016, 1017, 1018, 1021, 1023, 1024, 1025, 1026),  # files
        *(1030, 1031, 1032, 1033, 1034, 1035, 1036, 1037, 1038, 1040, 1041, 1042, 1043, 1044, 1045, 1046, 1047),
        *(1048, 1049, 1050, 1051, 1053, 1054, 1060, 1061, 1066, 1067, 1068, 1069, 1070, 1071, 1072, 1073, 1074, 1075),
        *(1077, 1078, 1079, 1080, 1091, 1093, 1094, 1095, 1102, 1103, 1104, 1109, 1112, 1113, 1114, 1115, 1116, 1117),
        *(1118, 1119, 1121, 1126, 1127, 1128, 1129, 1130, 1131, 1132, 1133, 1134, 1135, 1137, 1141, 1142, 1143, 1146),
        *(1147, 1148, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1163, 1164, 1168, 1170, 1171, 1173),
        *(1176, 1177, 1178, 1180, 1184, 1188, 1192, 1193, 1194, 1195, 1196, 1198, 1199, 1200, 1201, 1203, 1205, 1206),
        *(1207, 1208, 1213, 1214, 1215, 1216, 1217, 1218, 1219, 1220, 1223, 1226, 1227, 1229, 1230, 1232, 1233, 1235),
        *(1236, 1238, 1243, 1253, 1257, 1264, 1265, 1266, 1267, 1269, 1270, 1271, 1273, 1274, 1275, 1282, 1283, 1284),
        *(1286, 1289, 1290, 1295, 1298, 1305, 1317, 1347, 1356, 1360, 1364, 1370, 1373, 1374, 1376, 1379, 1380, 1396),
        *(1397, 1398, 1399, 1400, 1401, 1402, 1403, 1406, 1410, 1419, 1429, 1430, 1434, 1439, 1449, 1451, 1452, 1459),
        *(1461, 1472, 1478, 1479, 1503, 1504, 1505, 1506, 1507, 1548, 1567, 1568, 1577, 1579, 1593, 1594, 1596),
        *(1605, 1614, 1615, 1617, 1665, 1682, 1684, 1698, 1699, 1709, 1726, 1772, 1773, 1774, 1776, 1778, 1779, 1785),
        *(1786, 1787, 1789, 1790, 1792, 1802, 1808, 1812, 1813, 1814, 1817, 1819, 1820, 1821, 1835, 1836, 1837, 1840),
        *(1845, 1846, 1862, 1872, 1873, 1881, 1882, 1927, 1932, 1949, 1969, 3023, 3024, 3079, 3098, 3106, 3118, 3159),
        *(3161, 3168, 3170, 3185, 3509, 3554, 3572, 3638, 3685, 3719, 3723, 3872, 4031, 4052, 4055),
    }
)  # fmt: skip
"""Numbers of MySQL, MariaDB and the driver whose texts hold names, sizes and settings."""
_COLUMN = r"( for column [`'][^']*[`'] at row \d+)"
_MYSQL_WITHOUT_VALUE = {
    1062: re.compile(r"(Duplicate entry )'.*'( for key '[^']*')", re.DOTALL),
    1292: re.compile(r"((?:Truncated i|I)ncorrect \w+ value: )'.*'" + _COLUMN + "?", re.DOTALL),
    1366: re.compile(r"(Incorrect \w+ value: )'.*'" + _COLUMN, re.DOTALL),
}  # fmt: skip
"""Texts that pass without their value, where they have exactly this form."""

_POSTGRES_NAMES_ONLY = (
    *("08", "0A", "25", "26", "28", "2B", "34", "3B", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "F0"),
    *("XX001", "XX002"),
)
"""Beginnings of the SQLSTATEs whose messages hold names, sizes and settings."""
_POSTGRES_QUOTES_STATEMENTS = ("42601",)
_POSTGRES_NAMED_FIELDS = ("schema_name", "table_name", "column_name", "datatype_name", "constraint_name")
_CODE_OF_USERS = re.compile(r"^\s*(?:CONTEXT|WHERE):(?!\s*slot )", re.MULTILINE)
"""A function of the database's users has raised the error, with a text and an SQLSTATE of its choice."""


def mysql_code(error: Any) -> int:
    """The number of an error of pymysql; 0: the driver gives none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def by_mysql(error: Any) -> str:
    """The part of an error of pymysql that may be shown, with its number."""
    code = mysql_code(error)
    text = str(error.args[1] if len(error.args) > 1 else error)
    if code in _MYSQL_NAMES_ONLY:
        return f"{text} ({code})"
    match = _MYSQL_WITHOUT_VALUE[code].fullmatch(text) if code in _MYSQL_WITHOUT_VALUE else None
    text_shown = f"{match[1]}'{_CUT}'{match[2] or ''}" if match else f"error of the server; {LEFT_OUT}"
    return f"{text_shown} ({code})"


def by_postgres(error: Any) -> str:
    """The part of an error of psycopg2 that may be shown: its first line at most. Others quote rows and statements."""
    code = error.pgcode or ""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not code:
        return _without_code(error, lines)
    name = type(error).__name__
    quotes = code in _POSTGRES_QUOTES_STATEMENTS or not code.startswith(_POSTGRES_NAMES_ONLY)
    if lines and not quotes and not _CODE_OF_USERS.search(str(error)):
        return " ".join(lines[0].split())
    named = [getattr(error.diag, field, None) for field in _POSTGRES_NAMED_FIELDS]
    names = ", ".join(filter(None, named))
    return f"{name}{f' ({names})' if names else ''}; {LEFT_OUT}"


def _without_code(error: Any, lines: list[str]) -> str:
    """What libpq says of a connection, or the server before it lets a session in. psycopg2 has no SQLSTATE then."""
    name = type(error).__name__
    is_of_connection = any(kind.__name__ in ("OperationalError", "InterfaceError") for kind in type(error).__mro__)
    if not lines or not is_of_connection or any("ERROR:" in line for line in lines):
        return name
    shown = [line for line in lines if not line.lstrip().startswith(("DETAIL:", "CONTEXT:", "LINE ", "STATEMENT:"))]
    return " ".join(" ".join(shown).split()) or name
