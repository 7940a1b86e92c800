"""What must hold of the super-changelog, judged against the simulated database's own log.

The lines are walked in order. `truth` is the source by its log up to where the walk is, made from the database's own
transactions; `known` is what a consumer has that applies every line. A refresh must be the truth of its place, column
by column, which is more than "never older": so no replay of any prefix can bring back what the log has left behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NoReturn

from dblog_core.algorithm.visibility import Snapshot
from dblog_core.dumps import dump_store
from dblog_core.model import watermark
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import Key, key_from_json, keys_of
from dblog_core.model.watermark import High, Low, Probe
from dblog_core.staging.manifest import ChunkRef, Manifest
from dblog_core.staging.reader import Line, lines
from tests.simulation import database as db
from tests.simulation.lake import UNKNOWN
from tests.simulation.parts import TABLES
from tests.simulation.world import Violation, World

Row = dict[str, Any]
Tables = dict[TableName, dict[Key, Row]]
_OF = {str(schema.table): schema for schema in TABLES}


def judge(world: World) -> None:
    """Raises Violation for the first thing that is wrong."""
    manifests = world.manifests()
    if not manifests:
        raise Violation("nothing was staged")
    walk = _Walk(world, manifests)
    staged_lines = list(lines(world.quiet_staging()))
    for line in staged_lines:
        walk.line(line)
    if world.printed != staged_lines[: len(world.printed)]:
        raise Violation("what was printed on the way is not what is printed now")
    walk.end()
    _Evictions(world).judge(manifests)
    _count(world, manifests)


def _count(world: World, manifests: list[Manifest]) -> None:
    """What the run was good for."""
    count = world.simulation.count
    count("takeovers", len({m.epoch for m in manifests}) - 1)
    count("transactions in parts", sum(m.partial > 0 for m in manifests))
    count("arrivals", sum(len(high.arrived) for _, high in _Evictions(world).highs.values()))
    _rows_are_found(manifests)
    broken = {(task, p["broken"]) for m in manifests for task, p in m.tasks.items() if p["broken"]}
    count("attempts broken", len(broken))
    for status in dump_store.list_dumps(world.store):
        count(f"dumps {status.state}")
        if status.state == "failed":
            raise Violation(f"dump {status.id} failed: {status.error}")


def _rows_are_found(manifests: list[Manifest]) -> None:
    """A dump that has read all ranges has no more rows to look for in one manifest than in the one before.

    Of a dump that was cancelled the capture knows no more: a worker that has not heard of it begins its task anew.
    """
    for before, after in itertools.pairwise(manifests):
        for task, then in before.tasks.items():
            now = after.tasks.get(task, then)
            if now["since_segment"] != then["since_segment"]:
                continue  # begun anew
            if then.get("ended") and not now["done"] and len(now.get("arrived", ())) > len(then.get("arrived", ())):
                raise Violation(f"{task} has read all ranges, and has one row more to look for in {after.segment}")


class _Walk:
    """One pass over the lines."""

    def __init__(self, world: World, manifests: list[Manifest]) -> None:
        self._world = world
        start = int(manifests[0].position)
        self._jumps = _jumps(manifests, world)
        self._truth: Tables = world.database.log_state(start)
        self._known: Tables = {table: {} for table in world.database.schemas}
        self._seen: dict[tuple[TableName, Key], int] = {}  # offset of each key's last line
        self._gone: dict[tuple[TableName, Key], tuple[Row, dict[str, int]]] = {}
        self._told: dict[tuple[TableName, Key], dict[str, int]] = {}  # offset of the line that told each column last
        self._expected = self._rows_of(start)
        self._open: db.Transaction | None = None  # the transaction whose rows have begun
        self._left = 0  # how many of its rows are to come
        self._offset = 0
        self._jumped = -1  # the offset of the last fresh start

    # The log --------------------------------------------------------------------------------------------------------

    def _rows_of(self, start: int) -> Iterator[tuple[db.Transaction, db.Change, str, int]]:
        """The log from `start` on: each change and its lines' ops, and how many lines of the transaction follow."""
        for transaction in self._world.database.log[start:]:
            parts = [(c, op) for c in transaction.changes if c.op != "w" for op in _ops(c)]
            for number, (change, op) in enumerate(parts):
                yield transaction, change, op, len(parts) - number - 1

    def line(self, line: Line) -> None:
        if line["offset"] <= self._offset:
            self._raise_violation(line, f"its offset follows {self._offset}")
        while self._jumps and self._jumps[0][0] < line["offset"]:
            self._jump(*self._jumps.pop(0))
        self._offset = line["offset"]
        if line["table"] not in _OF:
            self._raise_violation(line, "it is of no captured table")
        op = line["op"]
        origin = line["origin"]
        if origin == "dump" and self._left:
            self._raise_violation(line, f"it stands inside transaction {self._open}")
        if op in "cudt" and origin == "log":
            self._log_row(line)
        elif op == "r":
            self._refresh(line)
        elif op == "d":
            self._absent(line)
        elif op == "f":
            self._finished(line)

    def _jump(self, offset: int, position: int) -> None:
        """A fresh start: what the log held in between is lost, and a dump has to make up for it."""
        self._truth = self._world.database.log_state(position)
        self._expected = self._rows_of(position)
        # the rest of a transaction is lost too
        self._jumped = offset
        self._left = 0

    def _log_row(self, line: Line) -> None:
        transaction, change, op, self._left = next(self._expected, (None, None, None, 0))
        if transaction is None or change is None:
            self._raise_violation(line, "the source's log has no more rows")
        self._open = transaction
        where = f"the log has {op} of {change} in {transaction.name} (entry {transaction.index})"
        if (line["op"], line["table"], line["transaction"]) != (op, str(change.table), transaction.name):
            self._raise_violation(line, where)
        table = change.table
        if op == "t":
            db.apply(self._truth, change)
            self._known[table].clear()
            return
        key = _key(line)
        if op == "d":
            if key != db.key_of(change.schema, change.before or {}):
                self._raise_violation(line, where)
            row = self._known[table].pop(key, self._nothing(change.schema))
            self._gone[table, key] = row, self._told.pop((table, key), {})
            if change.op == "d":
                db.apply(self._truth, change)
            return
        logged_values = {n: v for n, v in (change.after or {}).items() if n not in change.unchanged}
        if line["after"] != logged_values or set(line["unchanged"]) != set(change.unchanged):
            self._raise_violation(line, where)
        db.apply(self._truth, change)
        self._apply(line, table, key, change.schema)

    def _apply(self, line: Line, table: TableName, key: Key, schema: TableSchema) -> None:
        """The consumer's own state: what a line leaves out stays, and is unknown where it never was known."""
        old = self._known[table].get(key, self._nothing(schema))
        told_offsets = self._told.get((table, key), {})
        if line["op"] == "c":
            moved = line.get("moved_from")
            old, told_offsets = self._gone[table, tuple(moved.values())] if moved else (self._nothing(schema), {})
        self._known[table][key] = {**{name: old.get(name) for name in line["unchanged"]}, **line["after"]}
        since = {name: told_offsets.get(name, 0) for name in line["unchanged"]}
        self._told[table, key] = {**since, **dict.fromkeys(line["after"], line["offset"])}
        self._seen[table, key] = line["offset"]

    def _nothing(self, schema: TableSchema) -> Row:
        return dict.fromkeys((c.name for c in schema.columns), UNKNOWN)

    # Dumps ----------------------------------------------------------------------------------------------------------

    def _refresh(self, line: Line) -> None:
        schema = _OF[line["table"]]
        table = schema.table
        key = _key(line)
        true = self._truth[table].get(key)
        if true is None:
            self._raise_violation(line, "the row was deleted before this place of the log")
        wrong = {n: (v, true.get(n)) for n, v in line["after"].items() if v != true.get(n)}
        if wrong:
            self._raise_violation(line, f"the row has other values at this place of the log: {wrong}")
        if line["unchanged"]:
            self._world.simulation.count("rows evicted in part")
        self._apply(line, table, key, self._world.database.schemas[table])

    def _absent(self, line: Line) -> None:
        table = _OF[line["table"]].table
        key = _key(line)
        if key in self._truth[table]:
            self._raise_violation(line, "the row is there at this place of the log")
        self._known[table].pop(key, None)

    def _finished(self, line: Line) -> None:
        """A consumer drops what the dump has not brought since: then it must have exactly what is there."""
        schema = _OF[line["table"]]
        low, high = (None if (k := line.get(n)) is None else key_from_json(k, schema) for n in ("key_from", "key_to"))

        def inside(key: Key) -> bool:
            return (low is None or key >= low) and (high is None or key <= high)

        known_rows = self._known[schema.table]
        truth = self._truth[schema.table]
        for key in [k for k in known_rows if inside(k) and self._seen[schema.table, k] <= line["since"]]:
            if key in truth:
                self._raise_violation(line, f"it takes {key} away, which is there")
            del known_rows[key]
            self._world.simulation.count("ghosts")
        if line["since"] < self._jumped:
            return  # it has not seen what was lost: the dump that the fresh start requests will
        have = {k for k in known_rows if inside(k)}
        true_keys = {k for k in truth if inside(k)}
        if have != true_keys:
            self._raise_violation(line, f"ghosts {sorted(have - true_keys)}, missing {sorted(true_keys - have)}")
        for key in have:
            told_offsets = self._told[schema.table, key]
            if old := [name for name, offset in told_offsets.items() if offset <= line["since"]]:
                self._raise_violation(line, f"nobody has told columns {old} of {key} since")

    # The end --------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Everything is staged; replay, lake and source are one."""
        for jump in self._jumps:
            self._jump(*jump)
        if (left := next(self._expected, None)) is not None:
            raise Violation(f"a row of the log is not staged: {left}")
        for schema in self._world.database.schemas.values():
            names = [c.name for c in schema.columns]
            source = _fill_columns(self._world.database.rows[schema.table], names)
            if source != _fill_columns(self._truth[schema.table], names):
                raise Violation(f"{schema.table}: the simulated source itself is not what its log says")
            table = self._world.lake.tables.get(str(schema.table))
            for who, rows in (
                ("replay", _fill_columns(self._known[schema.table], names)),
                ("lake", _fill_columns(table.whole_rows(), names) if table else {}),
            ):
                if rows != source:
                    raise Violation(f"{schema.table}: the {who} is not the source: {_difference(rows, source)}")

    def _raise_violation(self, line: Line, why: str) -> NoReturn:
        raise Violation(f"line {line}: {why}")


def _jumps(manifests: list[Manifest], world: World) -> list[tuple[int, int]]:
    """Fresh starts: the offset after which they are, and the position where they begin."""
    jumps = []
    for before, after in itertools.pairwise(manifests):
        rows = after.files or after.chunks or any(mark.op != "s" for mark in after.marks)
        if int(before.position) < world.lost_before <= int(after.position) and not rows:
            jumps.append((before.last_offset, int(after.position)))
            world.simulation.count("fresh starts")
    return jumps


def _ops(change: db.Change) -> str:
    """A change of key is two lines."""
    if change.op != "u" or change.before is None or change.after is None:
        return change.op
    return "u" if db.key_of(change.schema, change.before) == db.key_of(change.schema, change.after) else "dc"


def _key(line: Line) -> Key:
    return tuple(line["key"].values())


def _fill_columns(rows: dict[Key, Row], names: list[str]) -> dict[Key, Row]:
    return {key: {name: row.get(name) for name in names} for key, row in rows.items()}


def _difference(rows: dict[Key, Row], source: dict[Key, Row]) -> list[tuple[Key, Row | None, Row | None]]:
    return [(k, rows.get(k), source.get(k)) for k in sorted(rows.keys() | source) if rows.get(k) != source.get(k)]


class _Evictions:
    """Every evicted row has an event in the log that its SELECT may not have seen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lows: dict[str, int] = {}
        self.highs: dict[str, tuple[int | None, High]] = {}  # by file
        for path, data in world.announced:
            _, window, *what = path.split("/")
            if what == ["open"]:
                self._lows[window] = int(data)
            elif what == ["high"]:
                self._mark(None, watermark.parse(data.decode().partition("\n")[2]))
        for transaction in world.database.log:
            for change in transaction.changes:
                if change.op == "w":
                    self._mark(transaction.index, watermark.parse(change.payload))

    def _mark(self, index: int | None, mark: Low | High | Probe) -> None:
        """`index`: its place in the log, where it stands there."""
        if isinstance(mark, Low) and index is not None:
            self._lows[mark.mark.window] = index
        elif isinstance(mark, High) and mark.file is not None:
            self.highs[mark.file] = index, mark

    def judge(self, manifests: list[Manifest]) -> None:
        for manifest in manifests:
            for chunk in manifest.chunks:
                self._world.simulation.count("chunks placed")
                if chunk.evicted:
                    self._world.simulation.count("rows evicted", len(chunk.evicted))
                    self._chunk(chunk, int(manifest.position))

    def _chunk(self, chunk: ChunkRef, read: int) -> None:
        """`read`: the place in the log that was read when it was published."""
        staging = self._world.quiet_staging()
        schema = staging.schema(chunk.schema)
        rows = staging.read_chunk(chunk.path, checksum=chunk.checksum).combine_chunks().to_batches()[0]
        keys = keys_of(rows, schema)
        index = self.highs[chunk.path][0]
        reasons = self._unseen_changes(chunk, read if index is None else index)
        for number in chunk.evicted:
            if not any(_touches(c, schema.table, keys[number]) for c in reasons):
                raise Violation(f"row {keys[number]} of {chunk} was evicted without a reason in the log")

    def _unseen_changes(self, chunk: ChunkRef, index: int) -> list[db.Change]:
        high = self.highs[chunk.path][1]
        log = self._world.database.log[: index + 1]
        low = self._lows[high.mark.window]
        if high.snapshot is None:
            return [c for t in log[low:] for c in t.changes]
        seen = Snapshot.parse(high.snapshot)
        return [c for t in log if t.xid >= seen.xmax or t.xid in seen.running for c in t.changes]


def _touches(change: db.Change, table: TableName, key: Key) -> bool:
    if change.op == "w" or change.table != table:
        return False
    images = [image for image in (change.before, change.after) if image is not None]
    return change.op == "t" or any(db.key_of(change.schema, image) == key for image in images)
