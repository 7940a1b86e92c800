"""Who uses the system: applications that write, an operator of dumps, a merge, and somebody who restarts what died."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dblog_core.dumps import control, dump_records, dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import DblogError, RequestError
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import Key, key_to_json
from dblog_core.staging import reader
from dblog_core.state.memory import MemoryState
from tests.simulation.database import Change, Row, Transaction
from tests.simulation.lake import SimLake

if TYPE_CHECKING:
    from tests.simulation.world import World


class Writer:
    """An application: transactions of a few changes over few keys; every value that it writes is a new one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.simulation.dice
        self._database = world.database

    def run(self) -> None:
        while not self._world.calm:
            self._world.simulation.wait(self._dice.uniform(0.01, self._world.idle))
            if not self._world.calm:
                self._transaction()

    def _transaction(self) -> None:
        if self._dice.random() < 0.01 and self._database.alter(self._dice.choice(list(self._database.schemas))):
            self._world.simulation.count("altered")
        transaction = self._database.begin()
        for _ in range(self._dice.choice((1, 1, 1, 2, 3, 3, 9))):
            self._change(transaction)
            if self._dice.random() < 0.2:
                self._world.simulation.wait(self._dice.uniform(0, 0.3))  # a transaction that takes its time
        if self._dice.random() < 0.1 or not transaction.changes:
            self._database.rollback(transaction)
            return
        self._database.commit(transaction)
        while not self._database.is_over(transaction):
            self._world.simulation.wait(None, self._database.shown)

    def _change(self, transaction: Transaction) -> None:
        schema = self._dice.choice(list(self._database.schemas.values()))
        table = schema.table
        key = self._world.key(schema)
        if self._dice.random() < 0.004 and self._database.lock(transaction, table, None):
            self._database.change(transaction, Change("t", schema))
            self._world.simulation.count("truncates")
            return
        if not self._database.lock(transaction, table, key):
            return
        schema = self._database.schemas[table]  # from the lock on nobody alters it
        row = self._database.row(transaction, table, key)
        if row is None:
            self._database.change(transaction, Change("c", schema, None, self._world.row(schema, key)))
        elif (kind := self._dice.random()) < 0.25:
            self._database.change(transaction, Change("d", schema, row))
        elif kind < 0.45:
            self._move(transaction, schema, row)
        else:
            self._update(transaction, schema, row, key)

    def _move(self, transaction: Transaction, schema: TableSchema, row: Row) -> None:
        new = self._world.key(schema)
        free = self._database.lock(transaction, schema.table, new)
        if free and self._database.row(transaction, schema.table, new) is None:
            self._world.simulation.count("keys changed")
            self._update(transaction, schema, row, new)

    def _update(self, transaction: Transaction, schema: TableSchema, row: Row, key: Key) -> None:
        after = self._world.row(schema, key)
        unchanged: tuple[str, ...] = ()
        if self._dice.random() < 0.6 and "big" in row and "big" in after:
            after["big"] = row["big"]
            unchanged = ("big",) if self._database.kind == "postgres" else ()
        row = {**dict.fromkeys(after), **row}
        self._database.change(transaction, Change("u", schema, row, after, unchanged))


class Operator:
    """Requests dumps of every kind, and changes its mind about them. At the end it resumes what it has paused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.simulation.dice
        self._state: MemoryState = world.open_state()

    def run(self) -> None:
        while not self._try(lambda: self._submit(DumpRequest(None))):
            self._world.simulation.wait(0.5)
        while True:
            self._world.simulation.wait(self._dice.uniform(0.3, 3.0))
            if self._world.calm:
                self._try(self._resume_all)
            else:
                self._try(self._dice.choice((self._request, self._request, self._control, self._control)))

    def _try(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except RequestError:
            return False  # it is over already, or there is nothing of the kind
        except DblogError as error:
            if not error.transient:
                raise
            return False
        return True

    def _submit(self, request: DumpRequest) -> None:
        filing.submit(self._world.config, request, state=self._state)
        self._world.simulation.count("dumps requested")

    def _request(self) -> None:
        schema = self._dice.choice(list(self._world.database.schemas.values()))
        table = (str(schema.table),)
        size = self._dice.choice((1, 2, 3, 5))
        keys = [key_to_json(self._world.key(schema)) for _ in range(self._dice.randint(1, 4))]
        low, high = sorted([self._world.key(schema), self._world.key(schema)])
        self._submit(
            self._dice.choice(
                (
                    DumpRequest(None),
                    DumpRequest(table, chunk_size=size),
                    DumpRequest(table, chunk_size=size, ranges=3),
                    DumpRequest(table, keys=tuple(keys)),
                    DumpRequest(table, key_from=key_to_json(low), key_to=key_to_json(high), chunk_size=size),
                    DumpRequest(table, key_from=key_to_json(low), chunk_size=size),
                    DumpRequest(table, filters=(("v", ">", self._world.version // 2),), chunk_size=size),
                )
            )
        )

    def _control(self) -> None:
        open_dumps = [d for d in dump_store.list_dumps(self._state) if d.state not in dump_records.OVER]
        if not open_dumps:
            return
        dump = self._dice.choice(open_dumps)
        chance = self._dice.random()
        if chance < 0.3:
            control.pause(self._state, dump.id)
        elif chance < 0.6:
            control.resume(self._state, dump.id)
        elif chance < 0.7 and len(dump.tables) < len(self._world.database.schemas):  # one of all tables has to end
            control.cancel(self._state, dump.id)
        else:
            control.retune(
                self._state,
                dump.id,
                chunk_size=self._dice.choice((1, 3, 10)),
                workers=self._dice.choice((1, 2, 4)),
                delay=self._dice.choice((None, 0.0, 0.3)),
                adaptive=self._dice.choice((None, True, False)),
            )

    def _resume_all(self) -> None:
        for dump in dump_store.list_dumps(self._state):
            if dump.state == "paused":
                control.resume(self._state, dump.id)


class Merger:
    """Merges now and then, and asks for the rows of which it knows not all; its lake outlives it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.simulation.dice
        self._state: MemoryState = world.open_state()
        self._asked: dict[tuple[TableName, Key], str] = {}

    def run(self) -> None:
        staging = self._world.open_staging()
        while True:
            self._world.simulation.wait(self._dice.uniform(0.5, 3.0))
            try:
                if self._world.lake.merge(staging):
                    self._world.simulation.count("merges")
                self._ask(self._world.lake)
            except DblogError as error:
                if not error.transient:
                    raise

    def _ask(self, lake: SimLake) -> None:
        for table in lake.tables.values():
            name = table.schema.table
            wanted_keys = [k for k in table.withheld_keys() if self._may_ask((name, k))][:20]
            if wanted_keys:
                keys = tuple(key_to_json(k) for k in wanted_keys)
                settings = self._world.config.dump
                dump = dump_store.file_deferred(self._state, settings, str(name), keys, clock=self._world.clock)
                self._asked |= {(name, key): dump for key in wanted_keys}
                self._world.simulation.count("withheld keys asked for", len(wanted_keys))

    def _may_ask(self, what: tuple[TableName, Key]) -> bool:
        return what not in self._asked or dump_store.is_dump_over(self._state, self._asked[what])


class Follower:
    """Somebody who prints the super-changelog, slowly, and goes on after what was printed when started again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.simulation.dice

    def run(self) -> None:
        printed = self._world.printed
        start = printed[-1]["offset"] + 1 if printed else 0
        follower = reader.Follower(self._world.open_staging(), from_offset=start)
        while True:
            try:
                for line in follower.lines():
                    printed.append(line)
                    if self._dice.random() < 0.1:
                        self._world.simulation.wait(self._dice.uniform(0, 1.0))
            except DblogError as error:
                if not error.transient:
                    raise
            self._world.simulation.wait(self._dice.uniform(0.1, 0.5))
