"""A day in half an hour: capture, dumps, repairs, maintenance and merges, an hour in 75 seconds, one fault in each.

What a day would fill is measured in every hour: the leader's memory, the files of staging and of the lake's tables. At
its end all are as they were in the morning, and the lake is the source.

An errand that ends by itself exits with 0. It may exit with 1 where a fault happened while it ran, or shortly before it
began; what still runs when the day ends is killed. Then one of each kind runs without faults, and exits with 0.
"""

from __future__ import annotations

import math
import os
import random
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableName
from dblog_core.monitoring.status import read_source_status
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.replicas import values
from tests.nemesis.test_kills import LakeReader, merge_to_the_end
from tests.nemesis.workload import TABLES, Writers, column_of, create_tables
from tests.small_java import SMALL_JAVA
from tests.waiting import wait_until

HOURS = 24
SLICES = 4  # of a full-state repair, one every third hour: twice in a day
ROLES = {"one": ("capture",), "two": ("capture",), "work": ("work",), "merge": ("merge", "--continuous")}
AFTERMATH = 15.0  # seconds that a fault may be felt: leases run out, somebody takes over, a merge begins again
NOBODY = "none: nobody led"  # in the place of a fault's name
ALTERS = 0.0005  # of the first writer's transactions, each a change of shape or a TRUNCATE


@dataclass(frozen=True, slots=True)
class Hour:
    """What was measured at the end of an hour."""

    memory: int
    staged: int
    lake: int


@dataclass(slots=True)
class Errand:
    """A command that ends by itself. `began`, `ended`: by the monotonic clock; `ended` is None while it runs."""

    what: str
    process: subprocess.Popen[bytes]
    began: float
    ended: float | None = None
    killed: bool = False

    def look(self) -> None:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.monotonic()

    def kill(self) -> None:
        """Ends it where it still runs: its exit code tells nothing then."""
        self.look()
        if self.ended is None:
            self.killed = True
            kill(self.process)
            self.look()

    def failure(self, strikes: Iterable[Strike]) -> str | None:
        """Why its exit code is wrong."""
        code = self.process.returncode
        if self.killed or code == 0:
            return None
        struck = [strike.name for strike in strikes if strike.concerns(self)]
        if code == 1 and struck:
            return None
        return f"{self.what} exited with {code}, struck by {struck or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault, from when to when."""

    name: str
    began: float
    ended: float

    def concerns(self, errand: Errand) -> bool:
        """Whether the errand may have met it: a command looks for a leader, and a lease outlives who held it."""
        if self.name == NOBODY:
            return False
        ended = math.inf if errand.ended is None else errand.ended
        return self.began <= ended and errand.began <= self.ended + AFTERMATH


@dataclass(slots=True)
class Day:
    """The processes, each started again when it has ended, as a supervisor does."""

    dblog: Dblog
    config: Config
    database: Database
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    strikes: list[Strike] = field(default_factory=list)
    errands: list[Errand] = field(default_factory=list)

    def keep_running(self) -> None:
        for name, arguments in ROLES.items():
            if name not in self.processes or self.processes[name].poll() is not None:
                self.processes[name] = self.dblog.start(*arguments)

    def leader(self) -> subprocess.Popen[bytes] | None:
        """The capture that leads, if one does in this moment."""
        leading = read_source_status(self.config).to_json()["leader"]
        captures = [self.processes[name] for name in ("one", "two")]
        return next((p for p in captures if leading is not None and leading["id"].endswith(f":{p.pid}")), None)

    def strike(self, draw: random.Random) -> None:
        """One fault, which somebody recovers from by himself."""
        name = draw.choice(("capture", "paused", "work", "merge", "server"))
        began = time.monotonic()
        if name == "server":
            self.database.server.kill()
            self.database.server.start()
        elif name in ("work", "merge"):
            kill(self.processes[name])
        elif (leader := self.leader()) is None:
            name = NOBODY
        elif name == "capture":
            kill(leader)
        else:
            os.kill(leader.pid, signal.SIGSTOP)
            threading.Event().wait(self.config.state.ttl * 2)
            os.kill(leader.pid, signal.SIGCONT)
        self.strikes.append(Strike(name, began, time.monotonic()))

    def errand(self, *arguments: str) -> None:
        """Something that Airflow would start; an hour later it is over, or still works."""
        self.errands.append(Errand(" ".join(arguments), self.dblog.start(*arguments), time.monotonic()))

    def look(self) -> None:
        """Notices which errands have ended."""
        for errand in self.errands:
            errand.look()

    def failures(self) -> list[str]:
        return [failure for errand in self.errands if (failure := errand.failure(self.strikes)) is not None]

    def measure(self) -> Hour:
        leader = self.leader()
        storage = read_source_status(self.config).to_json()["storage"]
        memory = 0 if leader is None else psutil.Process(leader.pid).memory_info().rss
        staged = sum(room["files"] for room in storage["staging"].values() if room is not None)
        return Hour(memory, staged, sum(table["files"] for table in storage["tables"]))

    def stop(self) -> None:
        """Errands too: one that repairs holds the lake."""
        for process in self.processes.values():
            kill(process)
        self.stop_errands()

    def stop_errands(self) -> None:
        for errand in self.errands:
            errand.kill()


def flat(name: str, hours: list[Hour], read: Callable[[Hour], int], *, spare: int) -> None:
    """The evening is like the morning: medians of a quarter of the day each."""
    values_by_hour = [read(hour) for hour in hours if read(hour)]
    quarter = max(1, len(values_by_hour) // 4)
    morning, evening = (
        statistics.median(part) for part in (values_by_hour[quarter : 2 * quarter], values_by_hour[-quarter:])
    )
    assert evening <= 1.3 * morning + spare, (
        f"{name}: {morning:,.0f} in the morning, {evening:,.0f} in the evening: {values_by_hour}"
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_day_of_everything_leaves_no_trace_but_the_rows(
    database: Database, zookeeper_url: str, read_lake: LakeReader, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    create_tables(database)
    config = database.config(
        tmp_path,
        state={"url": zookeeper_url, "ttl": 4.0},
        staging={"path": str(tmp_path / "staging"), "keep": "60s"},
        lake={"path": str(tmp_path / "lake"), "compact_after": 10},
        dump={"chunk_size": 200, "workers": 1, "delay": 0.2},
        spark={"conf": SMALL_JAVA},
    )
    seed = pytestconfig.option.soak_first
    draw = random.Random(seed)
    hours = list[Hour]()
    seconds = pytestconfig.option.day_minutes * 60 / HOURS
    dblog = Dblog(config, tmp_path)
    day = Day(dblog, config, database)
    try:
        dblog.run("capture", "--until-current")
        with Writers(database, seed=seed, statements=ALTERS) as writers:
            day.keep_running()
            day.errand("dump", "--all")
            for hour in range(HOURS):
                spend_hour(day, draw, hour, seconds)
                hours.append(day.measure())
                fault = day.strikes[-1].name
                transactions = writers.transactions
                print(f"hour {hour}: {fault}; {hours[-1]}; {transactions:,} transactions", flush=True)
            run_last_errands(day)
        assert not writers.faults, writers.faults
        assert day.failures() == []
        day.stop()
        merge_to_the_end(dblog, config, lambda _: dblog.run("merge", "--once", timeout=600))
        oracles.check_equal(oracles.source_rows(database), lake_rows(config, database, read_lake))
        flat("memory of the capture", hours, lambda hour: hour.memory, spare=30 << 20)
        flat("files in staging", hours, lambda hour: hour.staged, spare=100)
        flat("files in the lake", hours, lambda hour: hour.lake, spare=40)
    except BaseException:
        print(dblog.output())
        raise
    finally:
        day.stop()
        dblog.close()
    codes = [(errand.what, "killed" if errand.killed else errand.process.returncode) for errand in day.errands]
    print(f"faults: {[strike.name for strike in day.strikes]}; errands: {codes}")


def spend_hour(day: Day, draw: random.Random, hour: int, seconds: float) -> None:
    """An errand at its beginning, a fault in its middle, and what has ended is started again."""
    ends = time.monotonic() + seconds
    if hour % 3 == 1:
        day.errand("verify", "--all", "--slice", f"{hour // 3 % SLICES + 1}/{SLICES}", "--repair")
    elif hour % 3 == 2:
        day.errand("dump", "--table", f"{day.database.schema}.{draw.choice(TABLES)}")
    elif hour % 6 == 3:
        day.errand("maintain")
    strike_at = time.monotonic() + draw.uniform(0.2, 0.8) * seconds
    while time.monotonic() < ends:
        if strike_at and time.monotonic() >= strike_at:
            day.strike(draw)
            strike_at = 0.0
        day.keep_running()
        day.look()
        threading.Event().wait(0.5)


def lake_rows(config: Config, database: Database, read_lake: LakeReader) -> dict[str, dict[oracles.Key, oracles.Row]]:
    """By table and key, as `oracles.source_rows` has those of the source."""
    tables: dict[str, dict[oracles.Key, oracles.Row]] = {}
    for table in TABLES:
        place = table_location(wiring.open_lake(config), TableName(database.schema, table))
        names = oracles.columns(database, table)
        rows = read_lake(Path(str(place)))
        tables[table] = {(row["id"],): values(map(column_of, names), [row[name] for name in names]) for row in rows}
    return tables


def run_last_errands(day: Day) -> None:
    """One of each kind, beside the processes of the day and its writers, and without a fault."""
    day.stop_errands()
    day.keep_running()
    wait_until(lambda: day.leader() is not None, "a leader after the last fault")
    for arguments in (("dump", "--all"), ("verify", "--all", "--repair"), ("maintain",)):
        day.dblog.run(*arguments, timeout=900)
