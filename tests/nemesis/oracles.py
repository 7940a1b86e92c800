"""Validators: what must hold of `log` and lake after a run, judged by readers that share no code with ours."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.fix_servers import Database
from tests.nemesis.workload import TABLES


@dataclass(frozen=True, slots=True)
class Entry:
    """A row event: table, op, key, and the operation number of the row's new image (None for a delete)."""

    table: str
    op: str
    key: Any
    operation: int | None


def ours(lines: list[dict[str, Any]]) -> list[Entry]:
    """The log rows of the super-changelog."""
    return [
        Entry(line["table"].partition(".")[2], line["op"], line["key"]["id"], (line["after"] or {}).get("op"))
        for line in lines
        if line["origin"] == "log" and line["op"] in "cud"
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


def check_same_log(found: list[Entry], reference: list[Entry]) -> None:
    """The same row events in the same order: no gap, no repeat, no invention."""
    for number, (a, b) in enumerate(zip(found, reference, strict=False)):
        assert a == b, f"row event {number} differs: ours {a}, the server's {b}"
    assert len(found) == len(reference), f"{len(found)} row events of ours, {len(reference)} of the server's"


def source_rows(database: Database) -> dict[str, dict[Any, tuple[Any, ...]]]:
    """Every row of the source, by key, as the driver reads it."""
    columns = {"accounts": "id, op, amount, note", "names": "id, op, big"}
    return {t: {r[0]: r for r in database.query(f"SELECT {columns[t]} FROM {t}")} for t in TABLES}


def check_equal(source: dict[str, dict[Any, tuple[Any, ...]]], lake: dict[str, dict[Any, tuple[Any, ...]]]) -> None:
    """Every row and column of source and lake is the same."""
    for table, rows in source.items():
        other = lake[table]
        missing, extra = rows.keys() - other.keys(), other.keys() - rows.keys()
        different = [(rows[k], other[k]) for k in rows.keys() & other.keys() if rows[k] != other[k]]
        assert not (missing or extra or different), (
            f"{table}: missing {sorted(missing)[:5]}, extra {sorted(extra)[:5]}, different {different[:3]}"
        )


# The server's own readers ---------------------------------------------------------------------------------------------

_STATEMENT = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `(\w+)`\.`(\w+)`")
_VALUE = re.compile(r"###   @(\d+)=(.*)")
_ROLLBACK = re.compile(r"^ROLLBACK", re.MULTILINE)


def binlog_entries(database: Database, start: tuple[str, int]) -> list[Entry]:
    """Row events by `mysqlbinlog` / `mariadb-binlog` from a file and position to the end."""
    server = database.server
    tool = "mysqlbinlog" if database.kind == "mysql" else "mariadb-binlog"
    command = [
        str(server.tool(tool)), "--no-defaults", "--read-from-remote-server", "--to-last-log", "--verbose",
        "--base64-output=DECODE-ROWS", f"--host={server.host}", f"--port={server.port}", f"--user={server.admin.user}",
        f"--password={server.admin.password}", "--protocol=tcp", f"--start-position={start[1]}", start[0],
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, errors="surrogateescape")
    entries: list[Entry] = []
    statement: tuple[str, str] | None = None
    images: list[dict[int, str]] = []
    for line in [*done.stdout.splitlines(), "end"]:
        if value := _VALUE.match(line):
            images[-1][int(value[1])] = value[2]
        elif line in ("### SET", "### WHERE"):
            images.append({})
        else:
            entries += _binlog_rows(statement, images)
            statement, images = None, []
            if (match := _STATEMENT.match(line)) and match[2] == database.name and match[3] in TABLES:
                statement = (match[1].split()[0], match[3])
    return entries


def _binlog_rows(statement: tuple[str, str] | None, images: list[dict[int, str]]) -> list[Entry]:
    if statement is None:
        return []
    verb, table = statement

    def key(image: dict[int, str]) -> Any:
        return int(image[1]) if table == "accounts" else image[1].strip("'")

    if verb == "DELETE":
        return [Entry(table, "d", key(images[0]), None)]
    new = images[-1]
    if verb == "INSERT":
        return [Entry(table, "c", key(new), int(new[2]))]
    if key(images[0]) == key(new):
        return [Entry(table, "u", key(new), int(new[2]))]
    return [Entry(table, "d", key(images[0]), None), Entry(table, "c", key(new), int(new[2]))]


def slot_entries(database: Database, slot: str) -> list[Entry]:
    """Row events by a second slot with wal2json, read in SQL."""
    entries: list[Entry] = []
    query = f"SELECT data FROM pg_logical_slot_get_changes('{slot}', NULL, NULL, 'format-version', '2')"
    for (data,) in database.query(query):
        event = json.loads(data)
        if event["action"] not in "IUD" or event["table"] not in TABLES:
            continue
        table = event["table"]
        new = {c["name"]: c["value"] for c in event.get("columns", ())}
        old = {c["name"]: c["value"] for c in event.get("identity", ())}
        if event["action"] == "D":
            entries.append(Entry(table, "d", old["id"], None))
        elif event["action"] == "I" or old.get("id", new["id"]) == new["id"]:
            entries.append(Entry(table, {"I": "c", "U": "u"}[event["action"]], new["id"], new["op"]))
        else:
            entries += [Entry(table, "d", old["id"], None), Entry(table, "c", new["id"], new["op"])]
    return entries
