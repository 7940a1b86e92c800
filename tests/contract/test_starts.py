"""Where a first capture can begin, and up to where one can go: one suite for every kind of database."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest

from dblog_core.errors import SourceRefused
from dblog_core.interfaces import Source
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.model import position_spec
from tests.contract.test_source import create, log, rows, run
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS, wait_until

END = PATIENCE_SECONDS
SECOND = 1_000_000

pytestmark = pytest.mark.in_turn


def end_of(database: Database) -> str:
    """The log's end as the server tells it to people."""
    if database.kind == "postgres":
        return str(database.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    file, offset, *_ = _status(database)
    return f"{file}:{offset}"


def _status(database: Database) -> tuple[object, ...]:
    assert isinstance(database.server, MysqlServer)
    return database.query(database.server.status_statement)[0]


def gtids_of(database: Database) -> str:
    if database.kind == "mysql":
        return str(database.query("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")
    return str(database.query("SELECT @@GLOBAL.gtid_binlog_pos")[0][0])


def begin(source: Source, text: str) -> str:
    return source.begin(position_spec.parse(text, source.kind))


def ids(source: Source, position: str) -> list[int]:
    """Keys of the rows from there to the present end, in order."""
    return [(row["after"] or row["before"])["id"] for row in rows(list(log(source, position)))]


def renew(database: Database) -> None:
    """The server's log begins anew: what is older is purged. PostgreSQL drops what the slot has confirmed."""
    if database.kind == "postgres":
        return
    database.execute("FLUSH BINARY LOGS")
    file = str(_status(database)[0])
    deadline = time.monotonic() + END
    while database.query("SHOW BINARY LOGS")[0][0] != file:  # a file that somebody reads stays
        assert time.monotonic() < deadline
        database.execute(f"PURGE BINARY LOGS TO '{file}'")


def wait_for(source: Source, moment: int) -> None:
    wait_until(lambda: source.time() >= moment, "the server's clock", describe=source.time)


def table(database: Database, source: Source) -> None:
    create(database, source, "a", "id int PRIMARY KEY")


def test_the_earliest_place_has_all_that_the_server_keeps(database: Database, source: Source) -> None:
    renew(database)
    table(database, source)
    run(database, *(f"INSERT INTO a VALUES ({i})" for i in range(3)))
    assert ids(source, begin(source, "earliest")) == [0, 1, 2]


def test_a_position_is_followed_by_all_that_comes_after_it(database: Database, source: Source) -> None:
    table(database, source)
    run(database, "INSERT INTO a VALUES (1)")
    places_of = [end_of(database)] + ([gtids_of(database)] if database.kind != "postgres" else [])
    run(database, "INSERT INTO a VALUES (2)", "INSERT INTO a VALUES (3)")
    for text in places_of:
        position = begin(source, text)
        assert ids(source, position) == [2, 3], text
        assert source.has_reached(source.current_position(), position)


def test_an_end_of_the_log_is_a_place(database: Database, source: Source) -> None:
    table(database, source)
    run(database, "INSERT INTO a VALUES (1)")
    position = begin(source, end_of(database))
    run(database, "INSERT INTO a VALUES (2)")
    assert ids(source, position) == [2]


def inside(database: Database) -> str:
    """Changes two rows in one transaction; returns a place between the two."""
    # From here on alone: statements of other tests before it may have names that are no UTF-8.
    first = None if database.kind == "postgres" else int(_status(database)[1])
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO a VALUES (2)")
        if database.kind == "postgres":
            cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
            between = str(cursor.fetchone()[0])
        cursor.execute("INSERT INTO a VALUES (3)")
        cursor.execute("COMMIT")
    if database.kind == "postgres":
        return between
    file = str(_status(database)[0])
    events = database.query(f"SHOW BINLOG EVENTS IN '{file}' FROM {first}")
    writes = [row for row in events if str(row[2]).startswith("Write_rows")]
    return f"{file}:{writes[-1][1]}"


def test_a_place_inside_a_transaction_is_its_beginning(database: Database, source: Source) -> None:
    table(database, source)
    run(database, "INSERT INTO a VALUES (1)")
    place = inside(database)
    run(database, "INSERT INTO a VALUES (4)")
    assert ids(source, begin(source, place)) == [2, 3, 4]


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_any_byte_of_a_transaction_is_its_beginning(database: Database, source: Source) -> None:
    renew(database)
    table(database, source)
    before = end_of(database)
    run(database, "BEGIN", "INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)", "COMMIT")
    file, _, last = end_of(database).rpartition(":")
    first = int(before.rpartition(":")[2])
    run(database, "INSERT INTO a VALUES (3)")
    for offset in (first, first + 1, first + (int(last) - first) // 2, int(last) - 1):
        assert ids(source, begin(source, f"{file}:{offset}")) == [1, 2, 3], offset
    assert ids(source, begin(source, f"{file}:{last}")) == [3]


def test_a_time_begins_with_the_first_commit_at_or_after_it(database: Database, source: Source) -> None:
    table(database, source)
    start = source.current_position()
    run(database, "INSERT INTO a VALUES (1)")
    moment = (source.time() // SECOND + 1) * SECOND
    wait_for(source, moment)
    run(database, "INSERT INTO a VALUES (2)", "INSERT INTO a VALUES (3)")
    assert ids(source, begin(source, position_spec.in_words(moment))) == [2, 3]
    times = [t.commit_time for batch in log(source, start) for t in batch.transactions]
    second = next(t for t in times if t >= moment)
    assert ids(source, begin(source, position_spec.in_words(second))) == [2, 3]
    if database.kind != "mariadb":  # which logs whole seconds
        assert ids(source, begin(source, position_spec.in_words(second + 1))) == [3]


def test_a_time_after_the_last_commit_is_the_present_end(database: Database, source: Source) -> None:
    table(database, source)
    run(database, "INSERT INTO a VALUES (1)")
    moment = (source.time() // SECOND + 1) * SECOND
    wait_for(source, moment)
    position = begin(source, position_spec.in_words(moment))
    run(database, "INSERT INTO a VALUES (2)")
    assert ids(source, position) == [2]


@pytest.mark.parametrize("text", ["1999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
def test_a_time_that_the_log_does_not_have_is_refused(database: Database, source: Source, text: str) -> None:
    table(database, source)
    run(database, "INSERT INTO a VALUES (1)")
    with pytest.raises(SourceRefused, match=text) as refused:
        begin(source, text)
    assert "earliest" in refused.value.fix


def test_what_is_purged_is_refused_with_what_there_is(database: Database, source: Source) -> None:
    table(database, source)
    lost_positions = ["0/1"] if database.kind == "postgres" else [end_of(database), gtids_of(database)]
    run(database, "INSERT INTO a VALUES (1)")
    renew(database)
    oldest_position = source.show(source.start_position()) if database.kind == "postgres" else str(_status(database)[0])
    for text in lost_positions:
        with pytest.raises(SourceRefused) as refused:
            begin(source, text)
        assert oldest_position in str(refused.value) and "earliest" in refused.value.fix, text


def test_what_the_log_does_not_have_yet_is_refused(database: Database, source: Source) -> None:
    table(database, source)
    if database.kind == "postgres":
        ahead = ["FFFFFF/0"]
    else:
        file, _, offset = end_of(database).rpartition(":")
        later = "0-1-99999999" if database.kind == "mariadb" else "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
        ahead = [f"{file}:{int(offset) + 1}", "other.000001:4", f"{gtids_of(database)},{later}".strip(",")]
    for text in ahead:
        with pytest.raises(SourceRefused):
            begin(source, text)


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_a_set_with_a_hole_is_followed_by_what_lies_in_the_hole(database: Database, source: Source) -> None:
    table(database, source)
    before = gtids_of(database)
    run(database, "INSERT INTO a VALUES (1)")
    server = str(database.query("SELECT @@server_uuid")[0][0])
    run(database, "INSERT INTO a VALUES (2)")
    last = int(gtids_of(database).rpartition("-")[2])
    run(database, "INSERT INTO a VALUES (3)")
    assert ids(source, begin(source, f"{before},{server}:{last}")) == [1, 3]


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_rows_that_are_prepared_before_the_place_come_when_they_are_committed(
    database: Database, source: Source
) -> None:
    renew(database)
    table(database, source)
    run(database, "XA START 'x1'", "INSERT INTO a VALUES (1)", "XA END 'x1'", "XA PREPARE 'x1'")
    place = end_of(database)
    run(database, "INSERT INTO a VALUES (2)", "XA COMMIT 'x1'")
    assert sorted(ids(source, begin(source, place))) == [1, 2]


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_place_in_an_older_file_is_found(database: Database, source: Source) -> None:
    renew(database)
    table(database, source)
    run(database, "INSERT INTO a VALUES (1)")
    starting_positions = [end_of(database), gtids_of(database)]
    for i in range(2, 6):
        run(database, f"INSERT INTO a VALUES ({i})", "FLUSH BINARY LOGS")
    for text in starting_positions:
        assert ids(source, begin(source, text)) == [2, 3, 4, 5], text
    file = starting_positions[0].rpartition(":")[0]
    size = next(row[1] for row in database.query("SHOW BINARY LOGS") if row[0] == file)
    assert ids(source, begin(source, f"{file}:{size}")) == [3, 4, 5]


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_without_a_slot_there_is_no_past_and_none_is_made(database: Database, source: Source) -> None:
    database.execute(f"SELECT pg_drop_replication_slot('dblog_{database.name}')")
    for text in ("earliest", "0/16B3748", "2020-01-01T00:00:00Z"):
        with pytest.raises(SourceRefused, match="slot") as refused:
            begin(source, text)
        assert "pg_create_logical_replication_slot" in refused.value.fix
    assert database.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_table_that_the_publication_did_not_show_has_no_past(database: Database, source: Source) -> None:
    name = f"dblog_{database.name}"
    run(
        database,
        "CREATE TABLE a (id int PRIMARY KEY)",
        f"DROP PUBLICATION {name}",
        f"CREATE PUBLICATION {name} FOR TABLE dblog_watermark",
        "INSERT INTO a VALUES (1)",
    )
    with pytest.raises(SourceRefused, match=r"does not show public\.a"):
        begin(source, "earliest")


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_looking_for_a_time_confirms_nothing(database: Database, source: Source) -> None:
    table(database, source)
    run(database, "INSERT INTO a VALUES (1)")
    moment = source.time()
    wait_for(source, moment + 1)
    run(database, "INSERT INTO a VALUES (2)")
    assert ids(source, begin(source, position_spec.in_words(moment))) == [2]
    assert ids(source, begin(source, "earliest")) == [1, 2]


def test_a_bound_is_reached_with_all_that_is_committed_up_to_it(database: Database, source: Source) -> None:
    table(database, source)
    start = source.current_position()
    run(database, "INSERT INTO a VALUES (1)")
    bounds = [end_of(database)] + ([gtids_of(database)] if database.kind != "postgres" else [])
    middle = source.current_position()
    run(database, "INSERT INTO a VALUES (2)")
    for text in bounds:
        target = source.find_target(position_spec.parse(text, source.kind))
        assert not source.has_reached(start, target) and source.has_reached(middle, target), text
        assert source.has_reached(source.current_position(), target)


def test_the_clock_is_the_servers(database: Database, source: Source) -> None:
    before = time.time()
    told = source.time() / 1e6
    assert before - 1 <= told <= time.time() + 1  # it shares ours


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_old_rows_are_read_by_the_shape_and_key_of_their_time(database: Database, source: Source) -> None:
    renew(database)
    run(
        database,
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "INSERT INTO a VALUES (1, 7)",
        "ALTER TABLE a DROP PRIMARY KEY, ADD COLUMN w varchar(9) NOT NULL DEFAULT 'x', ADD PRIMARY KEY (id, w)",
        "INSERT INTO a VALUES (2, 8, 'y')",
        "DROP TABLE a",
    )
    log_batches = list(log(source, begin(source, "earliest")))
    assert [row["after"] for row in rows(log_batches)] == [{"id": 1, "v": 7}, {"id": 2, "v": 8, "w": "y"}]
    keys = [change.schema.key for batch in log_batches for change in batch.changes]
    assert keys == [("id",), ("id", "w")]
    assert json.loads(begin(source, "earliest"))["offset"] == 4
