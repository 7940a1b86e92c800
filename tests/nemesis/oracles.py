"""Validators: what must hold of `log` and lake after a run, judged by readers that share no code with ours."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fix_servers import Database
from tests.nemesis.replicas import Consumer, Key, Mirror, Row, State, values
from tests.nemesis.workload import ADDED, COLUMNS, TABLES, column_of


@dataclass(frozen=True, slots=True)
class Entry:
    """A row event, or a TRUNCATE (op t): table, op, key, and the operation number of the row's new image (None for a
    delete). `transaction` tells one transaction from the next; `row` is what the new image holds, and `moved_from` the
    key that the row has left.
    """

    table: str
    op: str
    key: Any
    operation: int | None
    transaction: Any = field(default=None, compare=False)
    row: Row | None = field(default=None, compare=False)
    moved_from: Any = field(default=None, compare=False)


def ours(lines: list[dict[str, Any]]) -> list[Entry]:
    """The log's events in the super-changelog."""
    return [
        Entry(
            line["table"].partition(".")[2],
            line["op"],
            line["key"]["id"] if line["key"] else None,
            (line["after"] or {}).get("op"),
            line["transaction"],
            line["after"],
            (line.get("moved_from") or {}).get("id"),
        )
        for line in lines
        if line["origin"] == "log" and line["op"] in "cudt"
    ]


def check_offsets(lines: list[dict[str, Any]]) -> None:
    """Offsets grow strictly, transactions stand together, and no dump row stands inside one."""
    offsets = [line["offset"] for line in lines]
    assert all(a < b for a, b in itertools.pairwise(offsets)), "offsets do not grow strictly"
    closed: set[str] = set()
    current: str | None = None
    for line in lines:
        if line["transaction"] == current:
            continue
        if line["op"] == "s":
            continue
        if current is not None:
            closed.add(current)
        current = line["transaction"]
        assert current is None or current not in closed, f"transaction {current} is torn apart"


def check_no_key_goes_back(lines: list[dict[str, Any]]) -> None:
    """Along every key, operation numbers never fall: neither by the log nor by a dump's row."""
    newest: dict[tuple[str, Any], int] = {}
    for line in lines:
        if line["op"] not in "cudr" or not line["after"] or "op" not in line["after"]:
            continue
        key = (line["table"], line["key"]["id"])
        operation = line["after"]["op"]
        assert operation >= newest.get(key, 0), f"{key} goes back from {newest[key]} to {operation}: {line}"
        newest[key] = operation


def check_same_log(entries: list[Entry], reference: list[Entry]) -> None:
    """The same row events in the same order: no gap, no repeat, no invention."""
    for number, (a, b) in enumerate(zip(entries, reference, strict=False)):
        assert a == b, f"row event {number} differs: ours {a}, the server's {b}"
    assert len(entries) == len(reference), f"{len(entries)} row events of ours, {len(reference)} of the server's"


def fingerprints(entries: list[Entry], rows: dict[str, dict[Key, Row]]) -> Iterator[int]:
    """The fingerprint of all rows after every transaction. Columns that an event left out keep their value."""
    state = State()
    for table, table_rows in rows.items():
        for key, row in table_rows.items():
            state.put(table, key, row)
    for _, group in itertools.groupby(entries, key=lambda entry: entry.transaction):
        left: Row | None = None
        for entry in group:
            key = (entry.key,)
            if entry.op == "t":
                state.clear(entry.table)
            elif entry.op == "d":
                left = state.drop(entry.table, key)
            else:
                assert entry.row is not None
                old = (left if entry.moved_from is not None else state.get(entry.table, key)) or {}
                kept_names = [name for name in old if name not in entry.row]
                state.change(entry.table, key, entry.row, kept_names, old)
        yield state.fingerprint


def check_every_transaction(entries: list[Entry], reference: list[Entry], rows: dict[str, dict[Key, Row]]) -> None:
    """After every transaction all rows are the same, by our lines and by the server's own reader."""
    pairs = itertools.zip_longest(fingerprints(entries, rows), fingerprints(reference, rows))
    for number, (a, b) in enumerate(pairs):
        assert a == b, f"after transaction {number} the rows differ"


def check_replicas(
    lines: list[dict[str, Any]], start: dict[str, dict[Key, Row]], end: dict[str, dict[Key, Row]], schema: str
) -> None:
    """The source at every place of the log agrees with every dump line; it and a keyed consumer end as the source."""
    mirror = Mirror({f"{schema}.{table}": rows for table, rows in start.items()}).follow(lines)
    consumer = Consumer(lines)
    for table, rows in end.items():
        name = f"{schema}.{table}"
        columns = next(iter(rows.values()), {}).keys()
        for who, state in (("the mirror", mirror.state), ("a consumer", consumer.state)):
            held_rows = state.rows_in_shape(name, columns)
            wrong = [
                (k, rows.get(k), held_rows.get(k))
                for k in rows.keys() | held_rows.keys()
                if rows.get(k) != held_rows.get(k)
            ]
            assert not wrong, f"{who} differs from {name} in {len(wrong)} rows: key, source, {who}: {wrong[:3]}"


def source_rows(database: Database) -> dict[str, dict[Key, Row]]:
    """Every row of the source, by key, in the form of lines."""
    rows_by_table: dict[str, dict[Key, Row]] = {}
    for table in TABLES:
        names = columns(database, table)
        rows = database.query(f"SELECT {', '.join(names)} FROM {table}")
        rows_by_table[table] = {(row[0],): values(map(column_of, names), row) for row in rows}
    return rows_by_table


def columns(database: Database, table: str) -> list[str]:
    """The names of a table's columns as they are now, in their order."""
    return [str(row[0]) for row in database.query(_NAMES.format(database.schema, table))]


def by_column(line: dict[str, Any]) -> dict[str, Any]:
    """The line with its columns under names that no change of shape has given."""
    images = {
        side: {column_of(name): value for name, value in line[side].items()}
        for side in ("before", "after")
        if line[side] is not None
    }
    return {**line, **images, "unchanged": [column_of(name) for name in line["unchanged"]]}


_NAMES = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = '{}' AND table_name = '{}' "
    "ORDER BY ordinal_position"
)


def check_equal(source: dict[str, dict[Key, Row]], lake: dict[str, dict[Key, Row]]) -> None:
    """Every row and column of source and lake is the same."""
    for table, rows in source.items():
        other = lake[table]
        missing = rows.keys() - other.keys()
        extra = other.keys() - rows.keys()
        different = [(rows[k], other[k]) for k in rows.keys() & other.keys() if rows[k] != other[k]]
        assert not (missing or extra or different), (
            f"{table}: missing {sorted(missing)[:5]}, extra {sorted(extra)[:5]}, different {different[:3]}"
        )


# The server's own readers ---------------------------------------------------------------------------------------------

_STATEMENT = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `(\w+)`\.`(\w+)`")
_VALUE = re.compile(r"###   @(\d+)=(.*)")
_TRUNCATE = re.compile(r"TRUNCATE TABLE (\w+)\.(\w+)")
_ALTER = re.compile(r"ALTER TABLE (\w+)\.(\w+) (ADD|DROP) COLUMN (\w+)")


def _binlog(database: Database, start: tuple[str, int]) -> list[str]:
    """The lines of the server's own reader of its log."""
    server = database.server
    tool = "mysqlbinlog" if database.kind == "mysql" else "mariadb-binlog"
    command = [
        str(server.tool(tool)), "--no-defaults", "--read-from-remote-server", "--to-last-log", "--verbose",
        "--base64-output=DECODE-ROWS", f"--host={server.host}", f"--port={server.port}", f"--user={server.admin.user}",
        f"--password={server.admin.password}", "--protocol=tcp", f"--start-position={start[1]}", start[0],
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, errors="surrogateescape")
    return done.stdout.splitlines()


def binlog_images(database: Database, start: tuple[str, int]) -> Iterator[tuple[str, dict[int, str]]]:
    """The new image of every inserted or updated row of the database, in log order: table, values by column number."""
    table = ""
    image = dict[int, str]()
    for line in [*_binlog(database, start), "end"]:
        if value := _VALUE.match(line):
            image[int(value[1])] = value[2]
        elif line in ("### WHERE", "### SET"):
            image = {}
        else:
            if table and image:
                yield table, image
            match = _STATEMENT.match(line)
            table = match[3] if match and match[2] == database.name else ""
            image = {}


def binlog_entries(database: Database, start: tuple[str, int]) -> list[Entry]:
    """Row events by `mysqlbinlog` / `mariadb-binlog` from a file and position to the end."""
    entries: list[Entry] = []
    statement: tuple[str, str] | None = None
    images: list[dict[int, str]] = []
    transaction = 0
    columns = {**COLUMNS, ADDED[0]: [*COLUMNS[ADDED[0]], ADDED[1]]}
    for line in [*_binlog(database, start), "end"]:
        if value := _VALUE.match(line):
            images[-1][int(value[1])] = value[2]
        elif line in ("### SET", "### WHERE"):
            images.append({})
        else:
            entries += _binlog_rows(statement, images, transaction, columns)
            statement = None
            images = []
            if (match := _ALTER.match(line)) and (match[1], match[2]) == (database.name, "shapes"):
                others = [name for name in columns["shapes"] if name != column_of(match[4])]
                columns["shapes"] = [*others, match[4]] if match[3] == "ADD" else others
            if (match := _STATEMENT.match(line)) and match[2] == database.name and match[3] in TABLES:
                statement = (match[1].split()[0], match[3])
            elif (match := _TRUNCATE.match(line)) and match[1] == database.name:
                entries.append(Entry(match[2], "t", None, None, f"TRUNCATE {len(entries)}"))
            transaction += line.startswith("COMMIT")
    return entries


def _binlog_rows(
    statement: tuple[str, str] | None, images: list[dict[int, str]], transaction: int, columns: dict[str, list[str]]
) -> list[Entry]:
    if statement is None:
        return []
    verb, table = statement
    rows = [_binlog_row(columns[table], image) for image in images]
    new = rows[-1]
    old = rows[0]
    if verb == "DELETE":
        return [Entry(table, "d", old["id"], None, transaction)]
    if verb == "INSERT" or old["id"] == new["id"]:
        return [Entry(table, "c" if verb == "INSERT" else "u", new["id"], new["op"], transaction, new)]
    return [
        Entry(table, "d", old["id"], None, transaction),
        Entry(table, "c", new["id"], new["op"], transaction, new, old["id"]),
    ]


def _binlog_row(names: list[str], image: dict[int, str]) -> Row:
    row: Row = {}
    for name, text in zip(names, (image[number] for number in sorted(image)), strict=False):
        if text == "NULL":
            row[name] = None
        elif text.startswith("'"):
            row[name] = text[1:-1]
        else:
            row[name] = text if name == "amount" else int(text)
    return row


def slot_entries(database: Database, slot: str) -> list[Entry]:
    """Row events by a second slot with wal2json, read in SQL."""
    entries: list[Entry] = []
    transaction = 0
    query = f"SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL, 'format-version', '2')"
    for (data,) in database.query(query):
        event = json.loads(data, parse_float=str)
        transaction += event["action"] == "B"
        if event["action"] in "IUDT" and event["table"] in TABLES:
            entries += _slot_rows(event, transaction)
    return entries


def _slot_rows(event: dict[str, Any], transaction: int) -> list[Entry]:
    table = event["table"]
    action = event["action"]
    if action == "T":
        return [Entry(table, "t", None, None, transaction)]
    new = {column_of(c["name"]): c["value"] for c in event.get("columns", ())}
    old = {c["name"]: c["value"] for c in event.get("identity", ())}
    if action == "D":
        return [Entry(table, "d", old["id"], None, transaction)]
    if "amount" in new and new["amount"] is not None:
        new["amount"] = str(new["amount"])
    if action == "I" or old.get("id", new["id"]) == new["id"]:
        return [Entry(table, {"I": "c", "U": "u"}[action], new["id"], new["op"], transaction, new)]
    return [
        Entry(table, "d", old["id"], None, transaction),
        Entry(table, "c", new["id"], new["op"], transaction, new, old["id"]),
    ]
