"""The binlog's events: their headers, their names, and the few whose bodies are read outside row decoding."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

HEADER = 19
CHECKSUM = 4
ARTIFICIAL = 0x20
"""Header flag of an event that the server made up for the connection: it is not in the file."""

IGNORABLE = 0x80
"""Header flag of an event that a replica which does not know its type passes over: it changes no row."""
OF_SESSION = 0x04
"""Header flag of a statement of a session that has temporary tables (LOG_EVENT_THREAD_SPECIFIC_F)."""


class Type(IntEnum):
    # Statements: DDL, BEGIN, the XA statements, and COMMIT where no engine with transactions took part.
    QUERY = 2
    STOP = 3
    # The log continues in another file, at the offset that the event names. Each stream also begins with one that the
    # server makes up: it names the file that was asked for.
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9  # like the next one: of a file that LOAD DATA in statement form reads
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    # The head of each file: when it was made, and whether its events carry checksums.
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    # Which table a number means, and its columns' types. It holds for the row events behind it, up to the next map of
    # the number; a restarted server numbers tables otherwise.
    TABLE_MAP = 19
    # Row events as MariaDB writes them; MySQL has written version 2 (30 to 32) since 5.6.
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    # Each of these begins a group of events: a transaction, or a single statement.
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    # The rows of an XA transaction stand before this event; whether they count, a later XA COMMIT or XA ROLLBACK says.
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    # A whole transaction in one event, its events packed (binlog_transaction_compression).
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    # From here on the types are MariaDB's.
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


HARMLESS = {
    Type.STOP: "the server shut down in order",
    Type.IGNORABLE: "what a replica passes over",
    Type.INTVAR: "belongs to a statement, which is judged on its own",
    Type.RAND: "belongs to a statement, which is judged on its own",
    Type.USER_VAR: "belongs to a statement, which is judged on its own",
    Type.BEGIN_LOAD_QUERY: "belongs to a statement, which is judged on its own",
    Type.APPEND_BLOCK: "belongs to a statement, which is judged on its own",
    Type.DELETE_FILE: "a statement that has failed",
    Type.ROWS_QUERY: "the text of the statement whose rows follow",
    Type.ANNOTATE_ROWS: "the text of the statement whose rows follow",
    Type.PREVIOUS_GTIDS: "which transactions older files hold",
    Type.GTID_LIST: "which transactions older files hold",
    Type.BINLOG_CHECKPOINT: "which files crash recovery needs",
    Type.TRANSACTION_CONTEXT: "group replication's certification data",
    Type.VIEW_CHANGE: "group replication's membership",
    Type.START_ENCRYPTION: "the file is encrypted at rest; the server sends it decrypted",
}

REFUSED = {Type.INCIDENT: "the server reports that events are missing from its log"}
FRESH_START = "run `dblog capture --fresh-start`: it continues at the present end and dumps all tables"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `end` is the low 32 bits of the offset after it (0 where it is not in the file).

    `of_session`: its statement is about temporary tables of its session, among others or alone.
    """

    type: int
    timestamp: int
    server_id: int
    end: int
    size: int
    artificial: bool
    body: bytes
    ignorable: bool = False
    of_session: bool = False


def is_harmless(event: Event) -> bool:
    """Whether the event changes no row, by its type, or by what the server says of a type that is not known here."""
    return event.type in HARMLESS or (event.ignorable and event.type not in Type._value2member_map_)


def name(kind: int) -> str:
    """The event type as messages call it."""
    return Type(kind).name if kind in Type._value2member_map_ else f"number {kind}"


@dataclass(frozen=True, slots=True)
class GtidEvent:
    """`gtid`: None for an anonymous transaction; `commit_time`: microseconds, 0 if not logged. `undone`: its statement
    has only begun, or has failed."""

    gtid: str | None
    commit_time: int
    standalone: bool = False
    prepared: bool = False
    undone: bool = False


def uuid(data: bytes) -> str:
    """The 16 bytes of a server's uuid as text."""
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def gtid(body: bytes, *, anonymous: bool) -> GtidEvent:
    """GTID and ANONYMOUS_GTID (libbinlogevents, control_events.h)."""
    number = int.from_bytes(body[17:25], "little")
    commit_time = 0
    # Behind the number: the type of the logical clock (2), its two numbers of 8 bytes, and the commit time in 7 bytes.
    # The highest bit of the time says that the original one follows.
    if len(body) >= 49 and body[25] == 2:
        commit_time = int.from_bytes(body[42:49], "little")
        if commit_time >> 55:  # the origin committed at another time, which follows
            commit_time = int.from_bytes(body[49:56], "little")
    return GtidEvent(None if anonymous else f"{uuid(body[1:17])}:{number}", commit_time)


def mariadb_gtid(body: bytes, server_id: int, timestamp: int) -> GtidEvent:
    """MariaDB's GTID event. Its time is that of the event, in whole seconds: no other one is logged."""
    number, domain, flags = struct.unpack_from("<QIB", body)
    undone = bool(_extra_flags(body, flags) & (_START_ALTER | _ROLLBACK_ALTER))
    return GtidEvent(f"{domain}-{server_id}-{number}", timestamp * 1_000_000, bool(flags & 1), bool(flags & 64), undone)


_GROUP_COMMIT = 2
_XA = 64 | 128
_START_ALTER = 2
_COMMIT_ALTER = 4
_ROLLBACK_ALTER = 8
"""With `binlog_alter_two_phase` an ALTER is logged when it begins, and again when it has succeeded or failed."""


def _extra_flags(body: bytes, flags: int) -> int:
    """The second byte of flags, where there is one: after the number of a group commit and the id of an XA
    transaction. Zeros fill up what is shorter than 19 bytes."""
    at = 21 if flags & _GROUP_COMMIT else 13
    if flags & _XA and at + 5 < len(body):
        at += 6 + body[at + 4] + body[at + 5]
    return body[at] if at < len(body) else 0


def tagged_gtid(body: bytes) -> GtidEvent:
    """GTID_TAGGED: fields with ids, in the server's own serialization (libs/mysql/serialization)."""
    reader = _Fields(body)
    reader.number()  # version of the format
    reader.number()  # length
    reader.number()  # last field that must be known
    source = b""
    number = 0
    tag = ""
    immediate = 0
    original = 0
    # Fields stand in the order of their ids; those beyond the seventh are lengths and versions that nothing here needs.
    while (field := reader.field()) is not None and field <= 7:
        if field == 1:
            source = bytes(reader.number() for _ in range(16))
        elif field == 2:
            number = reader.signed_number()
        elif field == 3:
            tag = reader.text()
        elif field == 6:
            immediate = reader.number()
        elif field == 7:
            original = reader.number()
        else:  # 0 flags, 4 and 5 logical clock
            reader.number()
    if len(source) != 16 or not number:
        raise ValueError("a tagged GTID without its server or number")
    owner = f"{uuid(source)}:{tag}" if tag else uuid(source)
    return GtidEvent(f"{owner}:{number}", original or immediate)


GTIDS: dict[int, Callable[[Event], GtidEvent]] = {
    Type.GTID: lambda e: gtid(e.body, anonymous=False),
    Type.ANONYMOUS_GTID: lambda e: gtid(e.body, anonymous=True),
    Type.GTID_TAGGED: lambda e: tagged_gtid(e.body),
    Type.MARIADB_GTID: lambda e: mariadb_gtid(e.body, e.server_id, e.timestamp),
}
"""How the event that begins a transaction is read, by its type."""


class _Fields:
    """Numbers of one to nine bytes: as many low one-bits as further bytes, then a zero bit, then the value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        """The next unsigned number. Raises IndexError behind the end."""
        first = self._data[self._at]
        extra = 0
        while first >> extra & 1 and extra < 8:
            extra += 1
        value = int.from_bytes(self._data[self._at : self._at + 1 + extra], "little")
        self._at += 1 + extra
        return value >> (extra + 1 if extra < 8 else 8)

    def signed_number(self) -> int:
        """The next number of a field that may be negative: the lowest bit is the sign."""
        value = self.number()
        return -(value >> 1) - 1 if value & 1 else value >> 1

    def text(self) -> str:
        """The next string: its length, and UTF-8."""
        length = self.number()
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def field(self) -> int | None:
        """The id of the next field; None at the end."""
        return self.number() if self._at < len(self._data) else None


def next_file(event: Event) -> str:
    """The file that a ROTATE event names."""
    return event.body[8:].rstrip(b"\0").decode()


def query(body: bytes) -> tuple[str, str]:
    """(default database, statement) of a QUERY event whose names do not matter: as if all text were UTF-8."""
    schema, sql = query_bytes(body)
    return schema, sql.decode("utf-8", "replace")


def load_statement(body: bytes) -> bytes:
    """The body of an EXECUTE_LOAD_QUERY as that of a QUERY: without the number of the file, and its name's place."""
    return body[:13] + body[26:]


def query_bytes(body: bytes) -> tuple[str, bytes]:
    """(default database, statement) of a QUERY event; the statement as the session sent it, in its character set
    (`client_collation`), whatever that of the server's names is."""
    # Before the variables: session (4 bytes), seconds that it ran (4), length of the database's name (1), error (2),
    # length of the variables (2). A zero byte ends the name.
    schema_length = body[8]
    variables = int.from_bytes(body[11:13], "little")
    start = 13 + variables
    schema = body[start : start + schema_length].decode("utf-8", "replace")
    return schema, body[start + schema_length + 1 :]


def client_collation(body: bytes) -> int | None:
    """The id of a collation of the session's character_set_client, by which a QUERY event's statement is read; None
    where the event does not say."""
    for code, value in _read_status_variables(body):
        if code == _CHARSET:
            return int.from_bytes(value[:2], "little")
    return None


def sql_mode(body: bytes) -> int | None:
    """The sql_mode of the session that a QUERY event is of; None where the event does not begin with it."""
    variables = body[13 : 13 + int.from_bytes(body[11:13], "little")]
    if variables[:1] == b"\0":  # flags of the session come before it
        variables = variables[5:]
    return int.from_bytes(variables[1:9], "little") if variables[:1] == b"\1" and len(variables) >= 9 else None


def took_effect(body: bytes) -> bool:
    """Whether a DDL statement of a QUERY event has certainly changed something: one with IF [NOT] EXISTS stands in the
    log of MySQL where it has found nothing to do, too, and has no transaction of its own then (run on MySQL 9; MariaDB
    10.11 logs nothing)."""
    return any(code in _DDL_TRANSACTION for code, _ in _read_status_variables(body))


def opened_databases(body: bytes) -> frozenset[str] | None:
    """The databases of all tables that MySQL opened for a statement, its triggers and functions. None: the event does
    not say, as on MariaDB; there are too many, or foreign keys lead to others."""
    for code, value in _read_status_variables(body):
        if code == _DATABASES and value[:1] != bytes([_TOO_MANY_DATABASES]):
            names = value[1:].split(b"\0")[:-1]
            return frozenset(name.decode("utf-8", "surrogateescape") for name in names) if all(names) else None
    return None


_CHARSET = 4
_CATALOG_WITH_ZERO = 2
_FIXED = {
    0: 4,
    1: 8,
    3: 4,
    _CHARSET: 6,
    7: 2,
    8: 2,
    9: 8,
    10: 4,
    13: 3,
    16: 1,
    17: 8,
    18: 2,
    19: 1,
    20: 1,
    128: 3,
    129: 8,
}
"""Bytes of status variables, by code; those of 128 and more are MariaDB's."""
_STRINGS = {5: 1, 6: 1, 11: 2}
"""How many texts a variable has, each after its length: time zone, catalog, invoker."""
_DATABASES = 12
_TOO_MANY_DATABASES = 254
_GTID_FLAGS = 130
"""MariaDB: the flags of an ALTER in two phases, and which one its end belongs to."""
_COLLATIONS = 131
"""MariaDB 11: which collation each character set has in the session. The count, and twice two bytes for each."""
_DDL_TRANSACTION = (17, 129)
"""MySQL's and MariaDB's id of the transaction that an atomic DDL statement has."""


def _read_status_variables(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The status variables of a QUERY event, code and bytes, up to the first one of an unknown code."""
    variables = body[13 : 13 + int.from_bytes(body[11:13], "little")]
    at = 0
    while at < len(variables):
        code = variables[at]
        end = _end_of_variable(variables, at + 1, code)
        if end is None:
            return
        yield code, variables[at + 1 : end]
        at = end


def _end_of_variable(variables: bytes, at: int, code: int) -> int | None:
    """Where the variable ends whose value begins at `at`; None for an unknown one."""
    if code in _FIXED:
        return at + _FIXED[code]
    if at == len(variables):
        return None
    if code == _GTID_FLAGS:
        return at + 1 + (8 if variables[at] & (_COMMIT_ALTER | _ROLLBACK_ALTER) else 0)
    if code == _COLLATIONS:
        return at + 1 + 4 * variables[at]
    if code == _DATABASES:
        for _ in range(0 if variables[at] == _TOO_MANY_DATABASES else variables[at]):
            at = variables.find(b"\0", at + 1)
            if at < 0:
                return None
        return at + 1
    if code != _CATALOG_WITH_ZERO and code not in _STRINGS:
        return None
    for _ in range(_STRINGS.get(code, 1)):
        at += 1 + variables[at] if at < len(variables) else 1
    return at + (code == _CATALOG_WITH_ZERO)


def uncompress_mariadb(data: bytes) -> bytes:
    """MariaDB's compressed part of an event: an algorithm, the plain length, zlib. Raises ValueError."""
    # The first byte: in bits 0 to 2 the size of the plain length, in bits 4 to 6 the algorithm, of which 0 is zlib.
    size = data[0] & 7
    if data[0] >> 4 & 7:
        raise ValueError(f"compression algorithm {data[0] >> 4 & 7} is unknown")
    plain = zlib.decompress(data[1 + size :])
    if len(plain) != int.from_bytes(data[1 : 1 + size], "big"):
        raise ValueError("a compressed event has another length than it says")
    return plain


def uncompressed_query(body: bytes) -> bytes:
    """The body of a QUERY_COMPRESSED as that of a QUERY. Raises ValueError."""
    start = 13 + int.from_bytes(body[11:13], "little") + body[8] + 1
    return body[:start] + uncompress_mariadb(body[start:])
