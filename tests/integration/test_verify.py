"""Verification on real servers, under writes: no false alarm, every corrupted row found, and mended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dblog_core.algorithm.window import Windows
from dblog_core.errors import DblogError, RequestError
from dblog_core.verify import slice_times, source_reader, verification
from dblog_core.verify.certificate import read_certificate
from dblog_core.verify.report import Differences
from dblog_core.verify.slices import Slice
from dblog_core.wiring import open_staging, open_state
from tests.contract.test_source import numbers_of
from tests.fix_servers import Database
from tests.integration.locks import locked
from tests.integration.verify_shop import ROWS, Plainly, Shop, count_dumped_rows, open_shop
from tests.read_only import forget, reader_of
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Windows are small, so that there are many of them."""
    with open_shop(Shop(database, database.config(tmp_path, dump={"chunk_size": 100})), monkeypatch) as opened_shop:
        yield opened_shop


@pytest.fixture
def closed_shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The same for a user who may not write."""
    reader = reader_of(database)
    config = reader.config(tmp_path, dump={"chunk_size": 100})
    config = config.model_copy(update={"source": config.source.model_copy(update={"read_only": True})})
    try:
        with open_shop(Shop(database, config), monkeypatch) as opened_shop:
            yield opened_shop
    finally:
        forget(reader)


@pytest.mark.one_of(2)
@pytest.mark.in_turn
def test_a_locked_table_is_named_with_its_holder_and_the_others_are_compared(
    shop: Shop, database: Database, verify_plainly: Plainly, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(verification, "_LOCKED_SECONDS", 3.0)
    verify, lake = verify_plainly(shop.config)
    lake.do(shop.b, ("Code 7",), None)
    with locked(database, "b"):
        report = verify(shop.config)
        free, kept = report.tables
        assert (free.table, free.equal, free.rows) == (shop.a, True, ROWS)
        assert kept.table == shop.b and not report.equal
        assert kept.error is not None and "locked" in kept.error and "verify the table again" in kept.error
        verify(shop.config, certificate=tmp_path / "certificate.json")
        certified = read_certificate(tmp_path / "certificate.json", source=shop.config.source.name)
        assert [(claim.table, claim.equal) for claim in certified.claims] == [(shop.a, True)]
        assert [(table.table, "locked" in table.reason) for table in certified.uncertified] == [(shop.b, True)]
        slices = verify(shop.config, slice=Slice(1, 1))
        assert [table.equal for table in slices.tables] == [True, False]
    free, freed = verify(shop.config).tables
    assert free.equal and freed.error is None and freed.missing == ("Code 7",)


@pytest.mark.in_turn
def test_a_table_that_is_free_again_while_others_are_compared_is_compared_too(
    shop: Shop, database: Database, verify_plainly: Plainly, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, _ = verify_plainly(shop.config)
    said: list[str] = []
    with ExitStack() as holding:
        holding.enter_context(locked(database, "b"))

        def say(line: str) -> None:
            said.append(line)
            if line.startswith("waiting for locked tables"):
                holding.close()

        report = verify(shop.config, say=say)
    assert report.equal, report.to_json()
    (waited,) = [line for line in said if line.startswith("waiting for locked tables")]
    assert waited.endswith(f" s: {shop.b}") and any(line.startswith(f"{shop.a}: equal") for line in said)


def row(key: int, **changes: Any) -> dict[str, Any]:
    """A row of table a as `fill` has made it."""
    return {"id": key, "v": f"v{key}", "n": Decimal(f"{key}.25"), "d": key + 0.125, "t": None, **changes}


@pytest.mark.in_turn
def test_every_damaged_row_is_found_and_mended_where_nothing_may_be_written(
    closed_shop: Shop, verify_plainly: Plainly
) -> None:
    """Through many windows, over the replayed log."""
    shop = closed_shop
    verify, lake = verify_plainly(shop.config)
    with shop.workload():
        clean = verify(shop.config)
        assert clean.equal, clean.to_json()
        assert {t.table for t in clean.tables} == {shop.a, shop.b}
        # Two tables are compared at a time.
        first = {str(comparison.schema.table): comparison for comparison in reversed(lake.comparisons)}
        assert len(first[shop.a].rows) >= ROWS // 100

        for key in (7, 300):
            lake.do(shop.a, (key,), row(key, v="other", n=None))
        lake.do(shop.a, (8,), row(8, d=8.125 + 1e-9))
        lake.do(shop.a, (9,), None)
        lake.do(shop.a, (600,), None)
        lake.do(shop.a, (-10,), row(-10))
        report = verify(shop.config)
        assert not report.equal
        (table,) = [t for t in report.to_json()["tables"] if t["missing"] or t["extra"] or t["different"] or t["error"]]
        assert (table["table"], table["error"], table["undecided"]) == (shop.a, None, [])
        assert (sorted(table["missing"]), table["extra"]) == ([9, 600], [-10])
        differ = {d["key"]: d["columns"] for d in table["different"]}
        assert differ == {7: ["v", "n"], 8: ["d"], 300: ["v", "n"]}

        mended = verify(shop.config, shop.a, repair=True)
        assert mended.equal, mended.to_json()
        (repaired,) = mended.tables
        assert repaired.repaired is not None and sorted(repaired.repaired.differences.missing) == [9, 600]
        assert count_dumped_rows(shop, repaired.repaired.dump_id) == 6, "exactly those keys"


@pytest.mark.in_turn
def test_seeded_writes_raise_no_false_alarm(soak_seed: int, shop: Shop, verify_plainly: Plainly) -> None:
    """In a soak each seed is two verifications on every database: nine seeds are 54."""
    verify, lake = verify_plainly(shop.config)
    with shop.workload(soak_seed):
        for _ in range(2):
            report = verify(shop.config, workers=1 + soak_seed % 4)
            assert report.equal, report.to_json()
    assert any(comparison.upto > comparison.since for comparison in lake.comparisons)


@pytest.mark.parametrize("source_kind", ["mysql", "postgres"], indirect=True)
def test_the_source_is_read_once_and_what_differs_once_more(shop: Shop, verify_plainly: Plainly) -> None:
    verify, lake = verify_plainly(shop.config)
    lake.do(shop.a, (7,), None)
    assert verify(shop.config, shop.a).tables[0].missing == (7,)
    windows = [probed for manifest in open_staging(shop.config).manifests() for probed in manifest.probes]
    assert len(windows) == ROWS // 100 + 1
    assert [(comparison.for_chosen_keys, len(comparison.rows)) for comparison in lake.comparisons] == [
        (False, ROWS // 100),
        (True, 1),
    ]


MANY = 6_000  # rows: enough that the table is read in several ranges, whose ends have to be found


@pytest.mark.parametrize("key", ["number", "text"])
def test_the_source_reads_at_most_twice_what_a_full_scan_reads(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify_plainly: Plainly, key: str
) -> None:
    """Each row once for its hash; and of the index, whose entries are the rows themselves in InnoDB, what it takes to
    cut the table: looks at a number that counts up, at a text the way to the last range. By the server's counters."""
    monkeypatch.setattr(source_reader, "WINDOW_ROWS", 500)
    kind, value = ("bigint", "n") if key == "number" else ("varchar(40)", "concat('Key ', n)")
    database.execute(f"CREATE TABLE big (k {kind} PRIMARY KEY, v int)")
    shop = Shop(database, database.config(tmp_path, dump={"chunk_size": 100, "workers": 4}))
    verify, lake = verify_plainly(shop.config)
    with shop.capturing():
        database.execute(
            f"INSERT INTO big SELECT {value}, n FROM ({numbers_of(database, MANY)}) s",
            "ANALYZE big" if database.kind == "postgres" else "ANALYZE TABLE big",
        )
        before = _rows_read(database)
        assert verify(shop.config).equal
    if database.kind == "postgres":  # a session's counters are told at its end
        wait_until(lambda: _rows_read(database) - before >= MANY, "the counters")
    assert len(lake.comparisons) == 1 and len(lake.comparisons[0].rows) >= MANY // 500
    assert MANY <= _rows_read(database) - before <= 2 * MANY


def _rows_read(database: Database) -> int:
    """Rows, or the entries of an index that stand for them, that the server has read; PostgreSQL: of `big`."""
    if database.kind == "postgres":
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'big'"
        return int(database.query(read)[0][0])
    names = "'Handler_read_first', 'Handler_read_key', 'Handler_read_last', 'Handler_read_next'"
    return sum(int(n) for _, n in database.query(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})"))


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_who_takes_every_event_for_seen_raises_a_false_alarm(shop: Shop, verify_plainly: Plainly) -> None:
    verify, lake = verify_plainly(shop.config)
    lake.blind = True

    def has_differences() -> bool:
        return any(t.difference_count for t in verify(shop.config, shop.a).tables)

    with shop.workload():
        wait_until(has_differences, "a false alarm")


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_row_that_is_committed_and_hidden_is_no_difference(
    shop: Shop, verify_plainly: Plainly, database: Database, monkeypatch: pytest.MonkeyPatch, mistaken: bool
) -> None:
    """A synchronous standby that does not exist: the log shows the commit, and no SELECT does. A capture that takes the
    low watermark for the place is mistaken."""
    if mistaken:
        monkeypatch.setattr(Windows, "close_probe", lambda windows, window, _: windows._windows.pop(window).low)
    verify, _ = verify_plainly(shop.config)
    standby = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"
    hidden = database.connect()
    thread = threading.Thread(target=lambda: hidden.cursor().execute("UPDATE a SET v = 'hidden' WHERE id = 5"))
    staging = open_staging(shop.config)
    offset = max(m.last_offset for m in staging.manifests())
    try:
        database.execute(*standby)
        wait_until(lambda: database.query("SHOW synchronous_standby_names") == [("nobody",)], "the setting")
        thread.start()
        waits = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {hidden.get_backend_pid()}"
        wait_until(lambda: database.query(waits) == [("SyncRep",)], "a COMMIT that hangs")
        wait_until(lambda: max(m.last_offset for m in staging.manifests()) > offset, "the log to show it")
        assert database.query("SELECT v FROM a WHERE id = 5") == [("v5",)]
        (report,) = verify(shop.config, shop.a).tables
        assert report.equal != mistaken, report.to_json()
        assert report.different == (((5, ("v",)),) if mistaken else ())
    finally:
        database.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        thread.join(PATIENCE_SECONDS)
        hidden.close()
    assert database.query("SELECT v FROM a WHERE id = 5") == [("hidden",)]
    assert verify(shop.config, shop.a).equal


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_without_a_capture_nothing_is_compared(database: Database, tmp_path: Path, verify_plainly: Plainly) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    config = database.config(tmp_path)
    verify, _ = verify_plainly(config)
    with pytest.raises(DblogError, match="no capture is running"):
        verify(config)


@pytest.mark.one_of(2)
@pytest.mark.in_turn
def test_slices_in_a_row_find_and_mend_all_that_differs_and_each_its_own(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify_plainly: Plainly
) -> None:
    """The slices of an integer key and of one of two columns; the table of a text key is in one of them, whole."""
    monkeypatch.setattr(source_reader, "WINDOW_ROWS", 50)
    shop = Shop(database, database.config(tmp_path, dump={"chunk_size": 20}))
    verify, lake = verify_plainly(shop.config)
    shop.fill()
    binary, literal = ("bytea", r"'\x{:02x}'") if database.kind == "postgres" else ("varbinary(4)", "x'{:02x}'")
    rows = ", ".join(f"({x}, {literal.format(y)}, {x})" for x in range(30) for y in (0, 127, 128, 255))
    database.execute(f"CREATE TABLE c (x int, y {binary}, n int, PRIMARY KEY (x, y))", f"INSERT INTO c VALUES {rows}")
    c, seen, mended = f"{database.schema}.c", Counter[str](), dict[str, list[Any]]()
    with shop.capturing():
        shop.dump()
        for key in (3, 301, 599):
            lake.do(shop.a, (key,), None)
        lake.do(shop.a, (-10,), row(-10))
        lake.do(c, (7, b"\x80"), None)
        lake.do(shop.b, ("Code 9",), None)
        with shop.workload():
            for number in range(1, 6):
                report = verify(shop.config, slice=Slice(number, 5), repair=True)
                assert report.equal, report.to_json()
                for table_reports in report.tables:
                    repaired = table_reports.repaired
                    differences = Differences() if repaired is None else repaired.differences
                    mended.setdefault(table_reports.table, []).extend([*differences.missing, *differences.extra])
                    seen[table_reports.table] += table_reports.rows
        with pytest.raises(RequestError, match="neither sampled nor certified"):
            verify(shop.config, slice=Slice(1, 5), sample={"rows": 5})
        lake.do(shop.a, (3,), None)
        assert [verify(shop.config, slice=Slice(number, 6)).equal for number in range(1, 7)].count(False) == 1
        with closing(open_state(shop.config)) as state:
            times = slice_times.read_times(state)
    assert times is not None and (times.of, times.compared_count, times.oldest) == (6, 5, None), "one differs still"
    assert sorted(mended[shop.a]) == [-10, 3, 301, 599]
    assert mended[c] == [[7, "gA=="]] and mended[shop.b] == ["Code 9"]
    assert seen[c] == 120 and ROWS <= seen[shop.a] < 2 * ROWS
    parts = [comparison for comparison in lake.comparisons if comparison.within]
    assert {str(comparison.schema.table) for comparison in parts} == {shop.a, c}
