"""Dumps of all kinds at random, several at a time, and what a person does to them while they run."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from typing import Any

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_store, filing
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import DblogError, RequestError
from dblog_core.interfaces import StateStore
from tests.fix_servers import Database
from tests.nemesis.workload import COLD, SMALL
from tests.waiting import PATIENCE_SECONDS

UNFINISHED = 5  # dumps at most at a time, so that a run comes to its end


class Dumps:
    """A thread that files dumps and controls them until it is stopped; what it meets while servers are down it tries
    again later."""

    def __init__(self, config: Config, database: Database, seed: int) -> None:
        self._config = config
        self._schema = database.schema
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.filed: dict[str, str] = {}
        self.faults: list[BaseException] = []

    def __enter__(self) -> Dumps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=PATIENCE_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._draw.uniform(0.1, 0.8)):
            try:
                with closing(wiring.open_state(self._config)) as state:
                    self._act(state)
            except DblogError as error:
                if not error.transient:
                    self.faults.append(error)
                    return

    def _act(self, state: StateStore) -> None:
        going = [d for d in dump_store.list_dumps(state) if d.state not in OVER]
        if not going or (len(going) < UNFINISHED and self._draw.random() < 0.5):
            kind, request = self._request()
            self.filed[filing.submit(self._config, request, state=state)] = kind
            return
        dump = self._draw.choice(going)
        try:
            self._control(state, dump.id)
        except RequestError:
            return  # it has ended in this very moment

    def _control(self, state: StateStore, dump_id: str) -> None:
        draw = self._draw
        match draw.randrange(6):
            case 0:
                control.pause(state, dump_id)
            case 1 | 2:
                control.resume(state, dump_id)
            case 3 if self.filed.get(dump_id):  # not the first one, which is to reach every row
                control.cancel(state, dump_id)
            case _:
                size = draw.choice((7, 50, 300))
                workers = draw.randint(1, 4)
                control.retune(state, dump_id, chunk_size=size, workers=workers, delay=draw.choice((0, 0.1)))

    def _request(self) -> tuple[str, DumpRequest]:
        draw = self._draw
        schema = self._schema
        accounts = f"{schema}.accounts"
        names = f"{schema}.names"
        small = f"{schema}.small"
        shapes = f"{schema}.shapes"
        number = draw.randrange(COLD)
        options: dict[str, Any] = {"chunk_size": draw.choice((20, 100, 400)), "ranges": draw.choice((None, 1, 3))}
        keys = tuple(draw.sample(range(COLD * 2 + 50), 12))
        kinds: dict[str, DumpRequest] = {
            "all": DumpRequest(None, **options),
            "pattern": DumpRequest((f"{schema}.?a*", f"{schema}.sm*"), **options),
            "table": DumpRequest((accounts,), **options),
            "same": DumpRequest((accounts,), chunk_size=33),
            "truncated": DumpRequest((small,), chunk_size=SMALL // 10),
            "reshaped": DumpRequest((shapes,), chunk_size=SMALL // 10),
            "keys": DumpRequest((accounts,), keys=keys),
            "names": DumpRequest((names,), keys=tuple(f"n{key}" for key in keys)),
            "range": DumpRequest((accounts,), key_from=number, key_to=number + 300, **options),
            "open range": DumpRequest((names,), key_from="n3", **options),
            "filter": DumpRequest((accounts,), filters=(("op", ">=", number), ("id", "<", number)), **options),
            "filtered range": DumpRequest((names,), filters=(("op", "<", 5_000),), key_to="n5", **options),
        }
        kind = draw.choice(list(kinds))
        return kind, kinds[kind]

    def let_go(self) -> None:
        """Lets every dump come to its end, fast: what is paused goes on."""
        with closing(wiring.open_state(self._config)) as state:
            for dump in dump_store.list_dumps(state):
                try:
                    control.resume(state, dump.id)
                    control.retune(state, dump.id, delay=0, chunk_size=300)
                except RequestError:
                    continue  # over

    def check(self) -> None:
        """Every dump has come to its end, and none has failed."""
        with closing(wiring.open_state(self._config)) as state:
            wrong = [
                (d.id, d.state, d.error) for d in dump_store.list_dumps(state) if d.state not in ("done", "cancelled")
            ]
        assert not wrong, wrong
