"""Two captures on an ensemble of ZooKeepers, under a live workload and a dump: each fault that high availability is for
is made to happen, in a seeded order; somebody goes on each time, nothing is lost or repeated, no epoch goes back."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.local.servers.zookeeper import Ensemble
from tests.fix_day import OfADay
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.links import Link
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.takeover_faults import FAULTS, TAKEOVERS, the_leader_hands_over
from tests.nemesis.takeover_world import TTL, Node, World
from tests.nemesis.test_kills import judge_log, log_start, wait_until_filed
from tests.nemesis.workload import Writers, create_tables
from tests.waiting import wait_until

HANDOVER = 2.0  # seconds that a planned one may take, where nothing else runs


TAKEOVER = TTL + 10  # seconds that a takeover may take, where nothing else runs


@pytest.fixture
def ensemble(server_root: Path, tmp_path: Path) -> Iterator[Ensemble]:
    new_ensemble = Ensemble(server_root / f"takeover-{tmp_path.name}")
    new_ensemble.start()
    try:
        yield new_ensemble
    finally:
        new_ensemble.kill()


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


WRITERS = 8  # some five hundred transactions a second, as far as the machine goes


A_DAY = 3  # of them, others from day to day: each costs some ten seconds


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
    assert all(earlier <= other for earlier, other in itertools.pairwise(epochs)), "an epoch goes back"
    assert world.done == [fault.__name__ for fault in order]
    # How long they may take is asserted by `test_fifty_takeovers_in_a_row` alone: other tests run beside this one.
    print(f"takeovers, seconds: { {name: round(gap, 1) for name, gap in world.gaps.items()} }")


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
        for name, seconds in gaps.items():
            print(f"{name}: {len(seconds)} times, median {statistics.median(seconds):.1f} s, most {max(seconds):.1f} s")
        assert not writers.faults, writers.faults
        settle(world, dblog)
        judge_log(world.config, database, start, reference())
    finally:
        dblog.close()
    assert not {name: seconds for name, seconds in gaps.items() if max(seconds) > limit(name)}


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
    for earlier, other in itertools.pairwise(later):
        if other.epoch > earlier.epoch:
            world.gaps[fault.__name__] = (other.sealed_at - earlier.sealed_at) / 1e6
