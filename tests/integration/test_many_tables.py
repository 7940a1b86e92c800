"""A source of thousands of tables starts in seconds: what is asked of its catalogue does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg2
import psycopg2.extensions
import pyarrow as pa
import pymysql.connections
import pytest

from dblog_core.capture.row_changes import OrderedChanges, stretches
from dblog_core.config.settings import Config
from dblog_core.interfaces import Source
from dblog_core.wiring import open_source
from tests.fake_source import ORDERS
from tests.fix_servers import Database

FEW = 12
MANY = 42


class _Counting(psycopg2.extensions.cursor):
    statement_count = 0

    def execute(self, *arguments: Any) -> None:
        _Counting.statement_count += 1
        super().execute(*arguments)


@pytest.fixture
def count_statements(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """How many statements a call sends to the server."""
    connect = psycopg2.connect
    query = pymysql.connections.Connection.query

    def count_query(connection: Any, *arguments: Any, **more: Any) -> Any:
        _Counting.statement_count += 1
        return query(connection, *arguments, **more)

    monkeypatch.setattr(pymysql.connections.Connection, "query", count_query)
    monkeypatch.setattr(psycopg2, "connect", lambda *a, **more: connect(*a, **{**more, "cursor_factory": _Counting}))

    def count(call: Callable[[], object]) -> int:
        _Counting.statement_count = 0
        call()
        return _Counting.statement_count

    return count


def looks(source: Source) -> list[Callable[[], object]]:
    """What a capture asks before it reads the log, and `check`."""
    return [source.check, source.prepare, source.tables, source.list_refusals, source.identities, source.stamps]


def test_what_a_start_asks_of_the_catalogue_does_not_grow_with_the_tables(
    database: Database, source_config: Config, count_statements: Callable[[Callable[[], object]], int]
) -> None:
    source = open_source(source_config.source)
    counts = []
    for numbers in (range(FEW), range(FEW, MANY)):
        database.execute(*(f"CREATE TABLE t{n} (id int PRIMARY KEY, v varchar(9))" for n in numbers))
        source.prepare()
        counts.append([count_statements(look) for look in looks(source)])
    few, many = counts
    assert all(later <= before for before, later in zip(few, many, strict=True)), "fewer, where a type is known by then"
    assert sum(counts[0]) > 0
    assert [str(t.table).rpartition(".")[2] for t in source.tables()] == sorted(f"t{n}" for n in range(MANY))


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_postgres_what_a_start_asks_does_not_grow_with_partitioned_tables(
    database: Database, source_config: Config, count_statements: Callable[[Callable[[], object]], int]
) -> None:
    source = open_source(source_config.source)
    counts = []
    for numbers in (range(FEW), range(FEW, MANY)):
        database.execute(*(f"CREATE TABLE t{n} (id int PRIMARY KEY) PARTITION BY HASH (id)" for n in numbers))
        of = "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        database.execute(*(f"CREATE TABLE t{n}_0 PARTITION OF t{n} {of}" for n in numbers))
        source.prepare()
        counts.append([count_statements(look) for look in looks(source)])
    assert all(later <= before for before, later in zip(*counts, strict=True)), counts
    database.execute("ALTER TABLE t1_0 SET UNLOGGED")
    assert [problem.table for problem in source.list_refusals()] == ["public.t1"]


@pytest.mark.parametrize("bounds", [[], [0], [4], [2, 2, 9], [1, 3, 5, 7, 100]])
def test_a_batch_is_cut_at_its_signals_without_loss_or_order_lost(bounds: list[int]) -> None:
    changes = [_changes([0, 2, 6]), _changes([]), _changes([4, 8, 10, 12])]
    stretches_found = stretches(changes, bounds)
    assert len(stretches_found) == len(bounds) + 1
    edges = [-1, *bounds, 1_000]
    for part, low, high in zip(stretches_found, edges[:-1], edges[1:], strict=True):
        expected = [[s for s in c.sequence.tolist() if low <= s < high] for c in changes]
        assert [c.sequence.tolist() for c in part] == [e for e in expected if e]
        assert all(len(c) == c.batch.num_rows == len(c.transaction) for c in part)


def _changes(sequence: list[int]) -> OrderedChanges:
    numbers = np.asarray(sequence, dtype=np.int64)
    batch = pa.RecordBatch.from_arrays([pa.array(sequence, pa.int64())], names=["n"])
    return OrderedChanges(ORDERS, numbers, numbers, batch, None)
