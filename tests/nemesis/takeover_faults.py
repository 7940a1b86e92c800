"""What may happen to two captures and their ensemble, each with what has to follow."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from dblog_core.local.servers.zookeeper import ZookeeperServer
from tests.nemesis.takeover_world import TTL, World
from tests.waiting import wait_until

QUIET = 2.0  # seconds of a pause in which nothing may happen


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
