"""Two captures on an ensemble of ZooKeepers, under a live workload and a dump: each fault that high availability is for
is made to happen, in a seeded order; somebody goes on each time, nothing is lost or repeated, no epoch goes back."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.interfaces import LeaseInfo
from dblog_core.local.servers.zookeeper import Ensemble, ZookeeperServer
from dblog_core.staging.manifest import Manifest
from dblog_core.state.lease_holder import CAPTURE
from tests.fix_day import OfADay
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.links import Link
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.test_kills import judge_log, log_start, wait_until_filed
from tests.nemesis.workload import Writers, create_tables
from tests.waiting import wait_until

TTL = 4.0
PATIENCE = 90.0  # seconds: the machine may be busy
HANDOVER = 2.0  # seconds that a planned one may take, in a soak
TAKEOVER = TTL + 10  # seconds that a takeover may take, in a soak
QUIET = 2.0  # seconds of a pause in which nothing may happen
Found = TypeVar("Found")


@dataclass(slots=True)
class Node:
    """One machine: a capture with ways of its own to the database and to each ZooKeeper."""

    config: Config
    dblog: Dblog
    database: Link
    zookeepers: list[Link]
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, **variables: str) -> None:
        self.process = self.dblog.start("capture", **variables)

    def stop(self) -> None:
        """As its supervisor does, for a planned restart."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0

    def kill(self) -> None:
        assert self.process is not None
        kill(self.process)

    def close(self) -> None:
        self.dblog.close()
        for link in (self.database, *self.zookeepers):
            link.close()


@dataclass(slots=True)
class World:
    """Two nodes and an ensemble, looked at from outside; `gaps`: seconds from the last segment of one epoch to the
    first of the next, by the fault between them."""

    config: Config
    ensemble: Ensemble
    nodes: list[Node]
    gaps: dict[str, float] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def leader(self) -> LeaseInfo | None:
        with closing(wiring.open_state(self.config)) as state:
            return state.leader(CAPTURE)

    def leading(self) -> Node:
        """The node that leads, once one does."""

        def look() -> Node | None:
            found = self.leader()
            mine = [n for n in self.nodes if found is not None and found.holder.endswith(f":{n.pid}")]
            return mine[0] if mine else None

        return wait_until(look, "a capture leads")

    def both_wait(self) -> bool:
        """Whether one capture leads and the other stands in the queue behind it."""
        client = KazooClient(self.ensemble.address(), timeout=TTL)
        try:
            client.start(timeout=PATIENCE)
            queue = f"/takeover/{self.config.source.name}/leases/{CAPTURE}"
            holders = {client.get(f"{queue}/{name}")[0].decode() for name in client.get_children(queue)}
        except NoNodeError:
            return False  # somebody has just left
        finally:
            client.stop()
            client.close()
        return {holder.rpartition(":")[2] for holder in holders} == {str(node.pid) for node in self.nodes}

    def both_run(self) -> bool:
        """As `both_wait`; one that has ended, which it may do late after the fault before, is started again."""
        for node in self.nodes:
            if node.process is None or node.process.poll() is not None:
                node.start()
        return self.both_wait()

    def other(self, node: Node) -> Node:
        return next(n for n in self.nodes if n is not node)

    def head(self) -> Manifest:
        found = wiring.open_staging(self.config).head()
        assert found is not None
        return found

    def goes_on(self, *, after: int | None = None, epoch: int = 0) -> Manifest:
        """A head with rows beyond offset `after` (None: the present one), in `epoch` or a later one."""
        beyond = self.head().last_offset if after is None else after

        def look() -> Manifest | None:
            head = self.head()
            return head if head.last_offset > beyond and head.epoch >= epoch else None

        return wait_until(look, "the log goes on")


@pytest.fixture
def ensemble(server_root: Path, tmp_path: Path) -> Iterator[Ensemble]:
    made = Ensemble(server_root / f"takeover-{tmp_path.name}")
    made.start()
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def world(database: Database, ensemble: Ensemble, tmp_path: Path) -> Iterator[World]:
    create_tables(database)
    dump = {"chunk_size": 50, "workers": 1, "delay": 0.5}
    url = f"zookeeper://{ensemble.address()}/takeover"
    world = World(database.config(tmp_path, state={"url": url, "ttl": TTL}, dump=dump), ensemble, [])
    try:
        for name in ("one", "two"):
            zookeepers = [Link(member.port) for member in ensemble.members]
            link = Link(database.server.port)
            servers = ",".join(f"127.0.0.1:{z.port}" for z in zookeepers)
            state = {"url": f"zookeeper://{servers}/takeover", "ttl": TTL}
            config = database.config(tmp_path, source={"port": link.port}, state=state, dump=dump)
            directory = tmp_path / name
            directory.mkdir()
            world.nodes.append(Node(config, Dblog(config, directory), link, zookeepers))
        yield world
    finally:
        for node in world.nodes:
            node.close()


def the_leader_is_killed(world: World) -> None:
    node = world.leading()
    epoch = world.head().epoch
    node.kill()
    world.goes_on(epoch=epoch + 1)
    node.start()


def the_standby_is_killed(world: World) -> None:
    node = world.other(world.leading())
    epoch = world.head().epoch
    node.kill()
    assert world.goes_on().epoch == epoch, "the leader does not notice"
    node.start()


def the_leader_is_stopped_and_wakes_up(world: World) -> None:
    node = world.leading()
    epoch = world.head().epoch
    os.kill(node.pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(node.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
    world.goes_on(epoch=epoch + 1)
    os.kill(node.pid, signal.SIGCONT)
    newest = world.goes_on(after=world.goes_on().last_offset)  # it has had the time to publish, had it been able to
    assert newest.epoch > epoch


def zookeeper_loses_its_leader(world: World) -> None:
    member = next(m for m in world.ensemble.members if m.mode() == "leader")
    member.kill()
    world.goes_on(after=world.goes_on().last_offset)
    member.start()


def zookeeper_loses_its_majority(world: World) -> None:
    members = world.ensemble.members[:2]
    for member in members:
        member.kill()
    pause = threading.Event()
    pause.wait(2 * TTL)  # by then the leader's lease is in doubt
    before = world.head()
    pause.wait(QUIET)
    assert world.head() == before, "nobody publishes without a lease"
    for member in members:
        member.launch()
    for member in members:
        member.wait()
    world.goes_on(after=before.last_offset)


def zookeeper_is_wiped(world: World) -> None:
    """Its data comes back empty, below a running pair of captures: epochs begin at one again."""
    epoch = world.head().epoch
    for member in world.ensemble.members:
        member.kill()
    for member in world.ensemble.members:
        _wipe(member)
        member.launch()
    for member in world.ensemble.members:
        member.wait()

    def look() -> bool:
        for node in world.nodes:  # a capture that refuses ends, and a supervisor starts it again
            if node.process is not None and node.process.poll() is not None:
                node.start()
        return world.head().epoch > epoch

    wait_until(look, "a capture leads with a higher epoch than ever before")
    world.goes_on()


def _wipe(member: ZookeeperServer) -> None:
    data = member.directory / "data" / "version-2"
    assert data.is_dir()
    shutil.rmtree(data)


def the_leader_is_cut_off_from_zookeeper(world: World) -> None:
    node = world.leading()
    epoch = world.head().epoch
    for link in node.zookeepers:
        link.cut()
    world.goes_on(epoch=epoch + 1)
    for link in node.zookeepers:
        link.mend()
    world.goes_on()


def the_leader_is_cut_off_from_the_database(world: World) -> None:
    node = world.leading()
    before = world.head()
    node.database.cut()
    threading.Event().wait(QUIET)  # what was on its way is published meanwhile
    stands = world.head()
    node.database.mend()
    world.goes_on(after=max(before.last_offset, stands.last_offset))


def the_disk_is_full_for_the_leader_alone(world: World) -> None:
    """No file of its process may grow any more (the limit on a file's size): as when only its machine has no room."""
    node = world.leading()
    epoch = world.head().epoch
    process = psutil.Process(node.pid)
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
    world.goes_on(epoch=epoch + 1)
    process.rlimit(psutil.RLIMIT_FSIZE, before)
    assert process.is_running(), "it waits for room, and stands by"
    world.goes_on()


def the_leader_hands_over(world: World) -> None:
    node = world.leading()
    epoch = world.head().epoch
    node.stop()
    world.goes_on(epoch=epoch + 1)
    node.start()


def the_clock_of_the_leader_is_an_hour_ahead(world: World) -> None:
    """The standby starts with such a clock and is handed the lead; then one with the right time leads again."""
    node = world.leading()
    other = world.other(node)
    epoch = world.head().epoch
    other.kill()
    other.start(PYTHONPATH=str(Path(__file__).parent / "ahead"))
    node.stop()
    began = time.time()
    assert world.goes_on(epoch=epoch + 1).sealed_at / 1e6 > began + 3000, "its clock is wrong indeed"
    node.start()
    world.goes_on()
    other.stop()
    assert world.goes_on(epoch=epoch + 2).sealed_at / 1e6 < began + 3000
    other.start()


FAULTS: tuple[Callable[[World], None], ...] = (
    the_leader_is_killed,
    the_standby_is_killed,
    the_leader_is_stopped_and_wakes_up,
    zookeeper_loses_its_leader,
    zookeeper_loses_its_majority,
    zookeeper_is_wiped,
    the_leader_is_cut_off_from_zookeeper,
    the_leader_is_cut_off_from_the_database,
    the_disk_is_full_for_the_leader_alone,
    the_leader_hands_over,
    the_clock_of_the_leader_is_an_hour_ahead,
)
TAKEOVERS = (
    the_leader_is_killed,
    the_leader_is_stopped_and_wakes_up,
    the_leader_is_cut_off_from_zookeeper,
    the_leader_hands_over,
)
WRITERS = 8  # some five hundred transactions a second, as far as the machine goes
A_DAY = 4  # of them, others from day to day: each costs some ten seconds


@pytest.mark.in_turn
def test_whatever_fails_somebody_goes_on_and_nothing_is_lost(
    world: World, database: Database, soak_seed: int, of_a_day: OfADay, tmp_path: Path
) -> None:
    start = oracles.source_rows(database)
    dblog = Dblog(world.config, tmp_path)
    draw = random.Random(soak_seed)
    order = of_a_day(FAULTS, A_DAY)
    draw.shuffle(order)
    try:
        reference = log_start(database)
        dblog.run("capture", "--until-current")
        for node in world.nodes:
            node.start()
        with Writers(database, seed=soak_seed) as writers:
            first = dblog.start("dump", "--all")
            wait_until_filed(world.config, first)
            world.goes_on()
            for fault in order:
                strike(world, fault)
        kill(first)
        assert not writers.faults, writers.faults
        settle(world, dblog)
        judge_log(world.config, database, start, reference())
    except BaseException:
        print(dblog.output(), *(node.dblog.output() for node in world.nodes), sep="\n")
        raise
    finally:
        dblog.close()
    epochs = [manifest.epoch for manifest in wiring.open_staging(world.config).manifests()]
    assert all(one <= other for one, other in itertools.pairwise(epochs)), "an epoch goes back"
    assert world.done == [fault.__name__ for fault in order]
    print(f"takeovers, seconds: { {name: round(gap, 1) for name, gap in world.gaps.items()} }")
    if len(order) == len(FAULTS):  # in a soak, where nothing else runs
        assert not [fault for fault in TAKEOVERS if world.gaps[fault.__name__] > limit(fault.__name__)], world.gaps


def settle(world: World, dblog: Dblog) -> None:
    """A capture alone and a whole dump bring everything into the log."""
    for node in world.nodes:
        node.kill()
    capture = dblog.start("capture")
    dblog.run("dump", "--all", "--wait")  # a wiped store has forgotten the first
    kill(capture)
    dblog.run("capture", "--until-current")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_takeovers_in_a_row(
    world: World, database: Database, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    seed = pytestconfig.option.soak_first
    start = oracles.source_rows(database)
    draw = random.Random(seed)
    gaps = dict[str, list[float]]()
    dblog = Dblog(world.config, tmp_path)
    try:
        reference = log_start(database)
        dblog.run("capture", "--until-current")
        for node in world.nodes:
            node.start()
        began = time.monotonic()
        with Writers(database, seed=seed, count=WRITERS, statements=0.001) as writers:
            world.goes_on()
            for _ in range(50):
                fault = draw.choice(TAKEOVERS)
                world.gaps.clear()
                strike(world, fault)
                gaps.setdefault(fault.__name__, []).append(world.gaps[fault.__name__])
        print(f"{writers.transactions / (time.monotonic() - began):,.0f} transactions a second")
        for name, found in gaps.items():
            print(f"{name}: {len(found)} times, median {statistics.median(found):.1f} s, most {max(found):.1f} s")
        assert not writers.faults, writers.faults
        settle(world, dblog)
        judge_log(world.config, database, start, reference())
    finally:
        dblog.close()
    assert not {name: found for name, found in gaps.items() if max(found) > limit(name)}


def limit(fault: str) -> float:
    """Seconds that a takeover may take."""
    return HANDOVER if fault == the_leader_hands_over.__name__ else TAKEOVER


def strike(world: World, fault: Callable[[World], None]) -> None:
    """Makes it happen, with two healthy captures before it, and measures the gap between two epochs."""
    wait_until(world.both_run, "one leads, and the other stands by")
    last = world.goes_on()
    fault(world)
    world.done.append(fault.__name__)
    later = list(wiring.open_staging(world.config).manifests(after=last.segment - 1))
    for one, other in itertools.pairwise(later):
        if other.epoch > one.epoch:
            world.gaps[fault.__name__] = (other.sealed_at - one.sealed_at) / 1e6
