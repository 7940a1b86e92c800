"""The thread that is a batch ahead: order, patience, errors in their place, and an end that leaves nothing behind."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dblog_core.model.events import LogBatch
from dblog_core.sources.mysql.binlog.read_ahead import Ahead, Demand

END = 20.0


def batch(number: int) -> LogBatch:
    return LogBatch((), (), (), str(number))


@pytest.fixture
def start_ahead() -> Iterator[Callable[[Callable[[Demand], LogBatch | None]], Ahead]]:
    """Starts threads, and looks whether they are gone afterwards."""
    threads: list[Ahead] = []

    def start(gather: Callable[[Demand], LogBatch | None]) -> Ahead:
        threads.append(Ahead(gather, "ahead"))
        threads[-1].start()
        return threads[-1]

    yield start
    for ahead in threads:
        ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "ahead"]


def await_bell(demand: Demand) -> None:
    """Until somebody rings."""
    assert select.select([demand.fileno()], [], [], END)[0]
    demand.clear_bell()


def test_batches_come_in_order_and_the_error_after_them(start_ahead: Callable[..., Ahead]) -> None:
    numbers = iter(range(5))

    def gather(demand: Demand) -> LogBatch | None:
        for number in numbers:
            return batch(number)
        raise KeyError("broken")

    ahead = start_ahead(gather)
    assert [read_batch.position for _ in range(5) if (read_batch := ahead.read(END, 0)) is not None] == list("01234")
    for _ in range(2):
        with pytest.raises(KeyError, match="broken"):
            ahead.read(END, 0)


def test_it_is_no_more_than_two_batches_ahead(start_ahead: Callable[..., Ahead]) -> None:
    gathered: list[int] = []
    enough = threading.Event()

    def gather(demand: Demand) -> LogBatch | None:
        gathered.append(len(gathered))
        if len(gathered) == 3:
            enough.set()
        return batch(gathered[-1])

    ahead = start_ahead(gather)
    first = ahead.read(END, 0)
    assert first is not None and first.position == "0"
    assert enough.wait(END)  # one waits to be taken, one is in hand
    assert gathered == [0, 1, 2]


def test_nobody_waits_until_somebody_reads(start_ahead: Callable[..., Ahead]) -> None:
    seen: list[float | None] = []

    def gather(demand: Demand) -> LogBatch | None:
        seen.append(demand.patience(100.0, 100.5))
        while not demand.over and demand.patience(100.0, 100.5) is None:
            await_bell(demand)
        seen.append(demand.patience(100.0, 100.5))
        return batch(1)

    ahead = start_ahead(gather)
    deadline = time.monotonic() + END
    while not seen:
        assert time.monotonic() < deadline
    assert ahead.read(END, 2.0) is not None
    assert seen[:2] == [None, 1.5]


def test_a_read_ends_in_time_and_what_comes_later_is_for_the_next(start_ahead: Callable[..., Ahead]) -> None:
    go = threading.Event()
    left = iter([batch(7)])

    def gather(demand: Demand) -> LogBatch | None:
        while not go.is_set() and not demand.over:
            await_bell(demand)
        return next(left, None)

    ahead = start_ahead(gather)
    assert ahead.read(0.01, 0) is None
    go.set()
    read_batch = ahead.read(END, 0)
    assert read_batch is not None and read_batch.position == "7"


def test_it_ends_while_it_waits_for_bytes_and_while_nobody_takes_its_batch(start_ahead: Callable[..., Ahead]) -> None:
    def listening(demand: Demand) -> LogBatch | None:
        while not demand.over:
            await_bell(demand)
        return None

    start_ahead(listening).close()
    start_ahead(lambda _: batch(1)).close()
    Ahead(listening, "never started").close()
