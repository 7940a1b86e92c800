"""One simulated system from one seed: two captures, dump workers, writers, an operator, a merge, and everything that
goes wrong between them; then all faults end, and all must come to rest with nothing lost, stale or resurrected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import orjson

from dblog_core.capture import run_capture
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store, work_loop
from dblog_core.errors import DblogError
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.rows.column_rules import Rules
from dblog_core.staging import Staging, compaction_blocks
from dblog_core.staging.compaction_blocks import Block
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.reader import Line
from dblog_core.state.memory import MemoryState
from tests.simulation.clock import SimClock
from tests.simulation.database import Change, Database, Row
from tests.simulation.lake import SimLake
from tests.simulation.parts import INT, TABLES, config_of, instead_of_the_real_ones
from tests.simulation.people import Follower, Merger, Operator, Writer
from tests.simulation.scheduler import Chances, Process, Signal, Simulation
from tests.simulation.source import SimSource
from tests.simulation.state import SimState
from tests.simulation.storage import Disk, MemoryStorage

TROUBLE = 14.0  # seconds of the drawn clock in which things go wrong
_REST = 240.0  # seconds after which all must have come to rest


class Violation(AssertionError):
    """Something that must never be."""


class World:
    """The parts that outlive processes, and the processes."""

    tables = TABLES
    file: ConfigFile | None = None
    faults_of_tables: tuple[type[DblogError], ...] = ()
    """With which a dump of a table may fail."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.simulation = Simulation(seed)
        self.clock = SimClock(self.simulation)
        dice = self.simulation.dice
        self.kind = dice.choice(("mysql", "postgres"))
        self.database = Database(self.simulation, self.kind, list(self.tables), gap=dice.choice((0.0, 0.3, 3.0)))
        self.database.durable = lambda: self.published
        self.disk = Disk(created=self._published)
        self.store = MemoryState(clock=self.clock)
        self.announced: list[tuple[str, bytes]] = []  # nodes of windows, in their order: what was told and answered
        self.lake = SimLake()
        self.config = self._draw_config()
        # So small that a transaction is staged in parts, now and then: smaller than a user may ask for.
        limits = self.config.staging.model_copy(update={"max_bytes": dice.choice((1, 40_000, *3 * (1 << 20,)))})
        self.config = self.config.model_copy(update={"staging": limits})
        self.batch = dice.choice((3, 6, 40))
        self.idle = dice.choice((0.15, 0.4, 0.8))  # seconds at most between two transactions of a writer
        self.keys = dice.choice((4, 8, 16))
        self.version = 0
        self.calm = False
        self.stop = Signal(self.simulation)
        self._history: dict[int, bytes] = {}  # every manifest as it was published
        self.printed: list[Line] = []  # what a follower has read so far
        self.published = 0  # position of the newest manifest
        self.lost_before = 0  # where the log begins that is left, if some was lost
        self._members: list[tuple[str, Callable[[], None]]] = []
        self._running: dict[str, Process] = {}
        self._writers: list[Process] = []
        self._disasters: list[Callable[[], None]] = []
        self._sessions = 0.0  # how often the state store loses one

    def _draw_config(self) -> Config:
        return config_of(self.kind, self.simulation.dice)

    def replaced_parts(self) -> contextlib.ExitStack:
        """Further parts that are others in this world."""
        return contextlib.ExitStack()

    # Parts ----------------------------------------------------------------------------------------------------------

    def open_source(self) -> SimSource:
        source = self.config.source
        rules = Rules.of(source)
        return SimSource(self.simulation, self.database, batch=self.batch, read_only=source.read_only, rules=rules)

    def open_state(self) -> SimState:
        return SimState(self.simulation, self.store, self.announced)

    def open_staging(self) -> Staging:
        return Staging("/simulated", source="shop", storage=MemoryStorage(self.disk, self.simulation))

    def quiet_staging(self) -> Staging:
        """For who judges: no step, no fault."""
        return Staging("/simulated", source="shop", storage=MemoryStorage(self.disk))

    def _published(self, path: str, data: bytes) -> None:
        if path.startswith("compacted/"):
            self.simulation.count("segments joined")
        if path.startswith("manifests/"):
            number = int(path[10:-5])
            if any(block.path in self.disk.files for block in compaction_blocks.over(number)):
                return  # it was published long ago: this is a zombie's, which will see that
            self._history[number] = data
            self.published = int(orjson.loads(data.partition(b"\n")[0])["position"])

    @property
    def log_is_lost(self) -> bool:
        """Whether the source has dropped log that was never staged."""
        return 0 < self.published < self.database.purged

    def key(self, schema: TableSchema) -> Key:
        number = self.simulation.dice.randrange(self.keys)
        return (number,) if len(schema.key) == 1 else (number % 3, "abcdefgh"[number // 3])

    def row(self, schema: TableSchema, key: Key) -> Row:
        """A row that was never there before."""
        self.version += 1
        values: Row = {c.name: self.version if c.type == INT else f"{self.version}" for c in schema.columns}
        return {**values, **dict(zip(schema.key, key, strict=True))}

    # The run --------------------------------------------------------------------------------------------------------

    def run(self, judge: Callable[[World], None]) -> None:
        """Trouble, then calm, then judgement. Raises Violation."""
        with instead_of_the_real_ones(self), self.replaced_parts():
            try:
                self._fill()
                self._draw()
                self._start()
                self._trouble()
                self._calm()
                judge(self)
            finally:
                self.simulation.end()

    def _fill(self) -> None:
        transaction = self.database.begin()
        for schema in self.tables:
            for number in range(self.keys):
                key = (number,) if len(schema.key) == 1 else (number % 3, "abcdefgh"[number // 3])
                if self.simulation.dice.random() < 0.6:
                    self.database.change(transaction, Change("c", schema, None, self.row(schema, key)))
        self.database.commit(transaction, at_once=True)

    def _draw(self) -> None:
        dice = self.simulation.dice
        self._disasters = [self._power_cut] * dice.choice((0, 0, 0, 0, 3)) + [self._lose_log] * (dice.random() < 0.15)
        self._sessions = dice.choice((0.0, 0.0, 0.1))

    def _start(self) -> None:
        start = self.simulation.start
        for number in range(2):
            self._writers.append(start(f"writer{number}", Writer(self).run, mortal=False))
        start("operator", self._operator, mortal=False)
        self._members = [
            ("capture0", self._capture),
            ("capture1", self._capture),
            *((f"worker{n}", self._worker) for n in range(self.simulation.dice.choice((2, 3)))),
            ("merger", lambda: Merger(self).run()),
            ("follower", lambda: Follower(self).run()),
        ]
        for name, function in self._members:
            self._running[name] = start(name, function)
        start("gardener", self._tend, mortal=False)

    def _capture(self) -> None:
        fresh = self.log_is_lost
        spawn = self.simulation.spawn
        stop: Any = self.stop
        run_capture.run_capture(
            self.config, stop=stop, clock=self.clock, spawn=spawn, fresh_start=fresh, file=self.file
        )

    def _operator(self) -> None:
        Operator(self).run()

    def _worker(self) -> None:
        stop: Any = self.stop
        while not stop.is_set():
            try:
                work_loop.work_here(self.config, stop=stop, clock=self.clock, spawn=self.simulation.spawn)
            except DblogError as error:
                if not error.transient and not isinstance(error, self.faults_of_tables):
                    raise
            self.clock.wait(stop, 0.7)

    def _tend(self) -> None:
        """Starts again what is gone, after a while; and lives through greater disasters, if any are drawn."""
        dice = self.simulation.dice
        for disaster in self._disasters:
            self.simulation.at(dice.uniform(1, TROUBLE), disaster)
        while True:
            self.simulation.wait(dice.uniform(0.2, 1.5))
            if not self.calm and dice.random() < self._sessions:
                self._lose_session(self._running[dice.choice([name for name, _ in self._members])])
            for name, function in self._members:
                process = self._running[name]
                self._check(process)
                if process.over and not self.stop.is_set() and not (self.log_is_lost and name == "capture1"):
                    self.simulation.count("restarts")
                    self._running[name] = self.simulation.start(name, function)

    def _lose_session(self, process: Process) -> None:
        """The state store does not hear of a process for a while, which runs on."""
        self.simulation.count("sessions lost")
        for hook in list(process.on_stop):
            hook(self.simulation.now + self.simulation.dice.uniform(1, 4))

    def _power_cut(self) -> None:
        """The machine with all our programs goes down, and its disk forgets what was not made durable."""
        for process in self._running.values():
            self.simulation.kill(process)
        lost = self.disk.power_cut(lambda: self.simulation.dice.random() < 0.5)
        self.simulation.count("power cuts")
        self.simulation.count("files lost", lost)
        manifests = [path for path in self.disk.files if path.startswith("manifests/")]
        if manifests:
            self._published(newest := max(manifests), self.disk.files[newest])

    def _lose_log(self) -> None:
        """No capture runs, and the source drops its log: only a fresh start goes on."""
        for name in ("capture0", "capture1"):
            self.simulation.kill(self._running[name])
        if self.published:
            self.database.purged = self.lost_before = len(self.database.log)
            self.simulation.count("logs lost")

    def _check(self, process: Process) -> None:
        error = process.error
        if error is not None and not (isinstance(error, DblogError) and error.transient):
            raise Violation(f"{process.name} ended by {type(error).__name__}: {error}") from error

    def _trouble(self) -> None:
        dice = self.simulation.dice
        level = dice.choice((0.0, 0.3, 1.0, 1.0, 2.0))
        self.simulation.chances = Chances(
            error=0.004 * level, lost=0.006 * level, kill=0.0008 * level, pause=0.0012 * level
        )
        self.simulation.run(TROUBLE)
        self._watch()

    def _calm(self) -> None:
        """All faults end, nobody writes any more, what is paused goes on: all must come to rest."""
        self._end_faults()
        rested = self.simulation.run(self.simulation.now + _REST, self._at_rest)
        self._watch()
        if not rested:
            raise Violation(f"did not come to rest: {self._unrest()}")
        self._stop_captures()

    def _end_faults(self) -> None:
        self.simulation.chances = Chances()
        self.calm = True

    def _stop_captures(self) -> None:
        self.stop.set()
        captures = [p for n, p in self._running.items() if n.startswith("capture")]
        ended = self.simulation.run(self.simulation.now + 30, lambda: all(p.over for p in captures))
        self._watch()
        if not ended:
            raise Violation("a capture does not stop")

    def _watch(self) -> None:
        for process in self.simulation.processes:
            self._check(process)

    def _at_rest(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> str:
        """What is not at rest yet."""
        self._watch()
        if not all(writer.over for writer in self._writers):
            return "an application is at work"
        if self.published < self._last_row():
            return f"staged up to {self.published} of {self._last_row()}"
        for status in dump_store.list_dumps(self.store):
            if status.state not in dump_records.OVER:
                return f"dump {status.id} is {status.state}: {status}"
        head = self.quiet_staging().head()
        if head is not None and self.lake.offset != head.last_offset:
            return f"merged up to {self.lake.offset} of {head.last_offset}"
        for name, table in self.lake.tables.items():
            if (waiting := table.withheld_keys()) and not self.is_expected_to_wait(name):
                return f"{name} waits for {waiting}"
        return ""

    def is_expected_to_wait(self, table: str) -> bool:
        """Whether its rows of which not all is known wait for somebody who repairs it."""
        return False

    def _last_row(self) -> int:
        """The place right after the last transaction with a row."""
        for transaction in reversed(self.database.log):
            if any(change.op != "w" for change in transaction.changes):
                return transaction.index + 1
        return 0

    def manifests(self) -> list[Manifest]:
        """Every segment by itself, whatever it was joined with."""
        staging = self.quiet_staging()
        numbers = range(1, staging.head_number() + 1)
        return [staging._decode(Block(number, number), self._history[number]) for number in numbers]
