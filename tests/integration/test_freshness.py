"""How new a lake table is, by the clocks and logs of real servers: quiet ones, and ones where other tables change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.capture.stop_condition import LATE
from dblog_core.config.settings import Config
from dblog_core.dumps import filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.lake.merge_options import MergeOptions
from dblog_core.monitoring import freshness
from dblog_core.monitoring.freshness import Freshness
from tests.fix_servers import Database
from tests.waiting import wait_until

pytestmark = pytest.mark.in_turn


@contextmanager
def in_background(work: threading.Thread, stop: threading.Event) -> Iterator[None]:
    work.start()
    try:
        yield
    finally:
        stop.set()
        work.join()


def merge(config: Config) -> None:
    assert wiring.run_merge(config, MergeOptions(), stop=threading.Event(), on_line=print) == 0


def look(config: Config, table: str, time_us: int) -> Freshness:
    return freshness.look(config, table, time_us, stop=threading.Event())


def wait_until_fresh(config: Config, table: str, time_us: int) -> None:
    seen: list[Freshness] = []

    def is_fresh() -> bool:
        seen.append(look(config, table, time_us))
        return seen[-1].fresh

    wait_until(is_fresh, f"{table} is as new as {time_us}", describe=lambda: seen[-1:])


def write_elsewhere(database: Database, stop: threading.Event) -> None:
    """Changes of a table that is not captured."""
    while not stop.wait(0.05):
        database.execute("INSERT INTO noise (v) VALUES (1)")


def test_a_table_is_as_new_as_its_log_whatever_changes(database: Database, tmp_path: Path) -> None:
    orders = f"{database.schema}.orders"
    config = database.config(tmp_path, source={"tables": [orders]}, lake={"engine": "local"})
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    database.execute("CREATE TABLE noise (v int)")
    source = wiring.open_source(config.source)
    stop = threading.Event()
    with in_background(threading.Thread(target=run_capture, args=[config], kwargs={"stop": stop}), stop):
        wait_until(lambda: wiring.open_staging(config).head(), "the log begins")
        dump = filing.submit(config, DumpRequest((orders,)))
        work_loop.work(config, stop=stop, dump_id=dump)
        assert work_loop.wait(config, dump, stop=stop).state == "done"
        assert not look(config, orders, source.time()).fresh, "nothing is merged"
        merge(config)

        quiet = source.time()
        wait_until(lambda: source.time() > quiet + LATE, "the source's clock goes on")
        assert not freshness.judge(config, orders, quiet).fresh, "staging and lake show no later time"
        wait_until_fresh(config, orders, quiet)

        database.execute("INSERT INTO orders VALUES (3)")
        written = source.time()
        offset = freshness.judge(config, orders, quiet).offset
        wait_until(lambda: wiring.open_staging(config).head().last_offset > offset, "the row is staged")  # type: ignore[union-attr,operator]
        assert look(config, orders, written).reason == "the lake lacks staged rows"
        merge(config)
        wait_until_fresh(config, orders, written)

        noise = threading.Event()
        with in_background(threading.Thread(target=write_elsewhere, args=[database, noise]), noise):
            wait_until_fresh(config, orders, source.time())
