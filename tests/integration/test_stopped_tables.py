"""Tables that cannot be captured as they are by now stop alone, say why, and are dumped when they are mended."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError, SourceRefused
from dblog_core.monitoring.preflight import findings
from dblog_core.monitoring.status import read_source_status
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration.test_swapped_tables import Wait, capturing, copies, healing, source_rows
from tests.plain_judge import PlainLake
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("newcomers")]
Plainly = Callable[[Config], tuple[Verify, PlainLake]]
SHAPE = "(id int PRIMARY KEY, v varchar(20))"


@pytest.fixture
def newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue is looked at all the time."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)


def stop_reasons(config: Config) -> dict[str, str]:
    """The tables that `status` shows as stopped, and why."""
    return {
        t["table"].partition(".")[2]: t["error"]
        for t in read_source_status(config).to_json()["tables"]
        if t["state"] == "stopped"
    }


def begin_capture(database: Database, config: Config) -> dict[str, dict[int, str]]:
    """A capture that has rows of both tables; returns them."""
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO u VALUES (1, 'other')")
    run_capture(config, stop=threading.Event(), until_current=True)
    assert copies(config) == source_rows(database, "t", "u")
    return source_rows(database, "t")


def taken_in(database: Database, config: Config, *tables: str) -> None:
    """A consumer has the tables as the source has them, however many dumps that took: one of several that are mended at
    the same time may be dumped twice."""

    def there() -> bool:
        return not stop_reasons(config) and copies(config) == source_rows(database, *tables)

    wait_until(there, "the tables are taken in", describe=lambda: (stop_reasons(config), copies(config)))


def runs(database: Database, wait: Wait, before: dict[str, dict[int, str]]) -> None:
    """The capture has begun its term."""
    database.execute("INSERT INTO u VALUES (100, 'runs')")
    wait({**before, **source_rows(database, "u")})


def wait_until_passed_over(database: Database, config: Config) -> dict[int, str]:
    """Waits until the leader passes over the rows of `t`, some moments after `status` has said so; its rows by then."""
    for key in itertools.count(1000):
        database.execute(f"INSERT INTO t VALUES ({key}, 'probe')", f"INSERT INTO u VALUES ({key}, 'probe')")
        wait_until(lambda key=key: key in copies(config)["u"], "a row of the other table comes")  # type: ignore[misc]
        if key not in copies(config)["t"]:
            break
    return copies(config)["t"]


def others_go_on(database: Database, config: Config, wait: Wait, key: int, before: dict[str, dict[int, str]]) -> None:
    """The other table flows, and the one that has stopped stays as it was."""
    database.execute(f"INSERT INTO u VALUES ({key}, 'goes on')")
    wait({**before, **source_rows(database, "u")})
    assert set(stop_reasons(config)) == {"t"}
    problems = [f.problem for f in findings(config) if f.problem.fatal]
    assert {p.table for p in problems} == {str(t) for t in [f"{database.schema}.t"]} and all(p.fix for p in problems)
    with pytest.raises(RequestError) as refused:
        filing.submit(config, DumpRequest((f"{database.schema}.t",)))
    assert str(refused.value).startswith(problems[0].what)


@pytest.mark.in_turn("plugin")
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
def test_postgres_a_table_that_loses_its_key_stops_alone_and_is_dumped_when_it_has_it_again(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    # While it has no key the server refuses its UPDATEs in a publication; without one they say nothing in the log.
    change = "INSERT INTO t VALUES ({}, 'missed')" if plugin == "pgoutput" else "UPDATE t SET v = 'missed {}'"
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"], "plugin": plugin})
    if plugin == "wal2json":
        database.execute(f"DROP PUBLICATION dblog_{database.name}")
    database.execute(f"CREATE TABLE t {SHAPE}", f"CREATE TABLE u {SHAPE}")
    before = begin_capture(database, config)
    lose = "ALTER TABLE t DROP CONSTRAINT t_pkey"
    have = "ALTER TABLE t ADD PRIMARY KEY (id)"
    database.execute(lose, change.format(3))
    with capturing(config) as wait:
        others_go_on(database, config, wait, 2, before)
        stopped_tables = stop_reasons(config)["t"]
        assert "identifies old rows of public.t by nothing, and its key is (none)" in stopped_tables
        assert "ALTER TABLE public.t REPLICA IDENTITY FULL, give it a primary key" in stopped_tables
        database.execute(have, "INSERT INTO t VALUES (4, 'after')")
        wait(source_rows(database, "t", "u"))
        assert stop_reasons(config) == {} and set(healing(config)) == {"t"}
        before = source_rows(database, "t")
        database.execute(lose)
        wait_until(lambda: bool(stop_reasons(config)), "the table is stopped while the capture runs")
        database.execute(change.format(5))
        others_go_on(database, config, wait, 3, before)
    database.execute(have, "DELETE FROM t WHERE id = 1")  # while none runs
    with capturing(config) as wait:
        wait(source_rows(database, "t", "u"))
    assert stop_reasons(config) == {}


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_postgres_a_table_whose_primary_key_becomes_deferrable_stops_alone(database: Database, tmp_path: Path) -> None:
    """Otherwise one statement that moves all rows on by one key would leave one of them in the lake."""
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    database.execute(f"CREATE TABLE t {SHAPE}", f"CREATE TABLE u {SHAPE}", "ALTER TABLE t REPLICA IDENTITY FULL")
    before = begin_capture(database, config)
    with capturing(config) as wait:
        runs(database, wait, before)
        database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT k PRIMARY KEY (id) DEFERRABLE")
        wait_until(lambda: bool(stop_reasons(config)), "the table is stopped while the capture runs")
        before = {"t": wait_until_passed_over(database, config)}
        database.execute("UPDATE t SET id = id + 1")
        others_go_on(database, config, wait, 3, before)
        assert "public.t: its primary key is deferrable" in stop_reasons(config)["t"]
        (problem,) = [finding.problem for finding in findings(config) if finding.problem.fatal]
        database.execute(problem.fix, "INSERT INTO t VALUES (9, 'after')")
        wait(source_rows(database, "t", "u"))
        assert stop_reasons(config) == {} and set(healing(config)) == {"t"}


@pytest.mark.in_turn("moment")
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("moment", ["between two captures", "while it runs"])
def test_postgres_what_the_log_alone_has_told_is_dumped_too(database: Database, tmp_path: Path, moment: str) -> None:
    """The catalogue is never seen without the key."""
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    database.execute(f"CREATE TABLE t {SHAPE}", f"CREATE TABLE u {SHAPE}")
    before = begin_capture(database, config)
    statements = (
        "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (3, 'missed'); "
        "ALTER TABLE t ADD PRIMARY KEY (id); COMMIT",
        "INSERT INTO t VALUES (4, 'after')",
        "INSERT INTO u VALUES (2, 'other')",
    )
    if moment == "between two captures":
        database.execute(*statements)
    with capturing(config) as wait:
        if moment == "while it runs":
            runs(database, wait, before)
            database.execute(*statements)
        wait(source_rows(database, "t", "u"))
    assert set(healing(config)) == {"t"} and stop_reasons(config) == {}


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_postgres_what_the_log_has_told_is_remembered_when_the_capture_ends(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next capture neither finds the table without its key, nor reads the rows that were passed over."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 3600)
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    database.execute(f"CREATE TABLE t {SHAPE}", f"CREATE TABLE u {SHAPE}")
    before = begin_capture(database, config)
    with capturing(config) as wait:
        runs(database, wait, before)
        database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (3, 'missed')")
        database.execute("INSERT INTO u VALUES (2, 'later')")
        wait({**before, **source_rows(database, "u")})
    assert set(stop_reasons(config)) == {"t"}
    database.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    with capturing(config) as wait:
        wait(source_rows(database, "t", "u"))
    assert stop_reasons(config) == {}


@pytest.mark.one_of(4)
@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_mysql_a_key_of_the_configuration_that_is_none_any_more_stops_its_table_alone(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path, source={"keys": {f"{database.schema}.t": ["id"]}})
    database.execute("CREATE TABLE t (id int NOT NULL, v varchar(20), UNIQUE one (id))", f"CREATE TABLE u {SHAPE}")
    before = begin_capture(database, config)
    database.execute("ALTER TABLE t DROP INDEX one", "INSERT INTO t VALUES (2, 'twice'), (3, 'missed')")
    with capturing(config) as wait:
        others_go_on(database, config, wait, 2, before)
        assert "no unique index has exactly these columns" in stop_reasons(config)["t"]
        database.execute("DELETE FROM t WHERE v = 'twice'", "ALTER TABLE t ADD UNIQUE one (id)")
        wait(source_rows(database, "t", "u"))
        assert stop_reasons(config) == {} and set(healing(config)) == {"t"}
        before = source_rows(database, "t")
        database.execute("ALTER TABLE t DROP INDEX one")
        wait_until(lambda: bool(stop_reasons(config)), "the table is stopped while the capture runs")
        before = {"t": wait_until_passed_over(database, config)}
        database.execute("INSERT INTO t VALUES (5, 'missed')")
        others_go_on(database, config, wait, 3, before)
        database.execute("ALTER TABLE t ADD UNIQUE one (id)")
        wait(source_rows(database, "t", "u"))


@pytest.mark.in_turn
def test_a_table_that_is_given_another_primary_key_than_its_entry_names_stops_alone(
    database: Database, tmp_path: Path, soak_seed: int
) -> None:
    keys = {f"{database.schema}.t": ["id"]}
    plugin = {"plugin": ("pgoutput", "wal2json")[soak_seed % 2]} if database.kind == "postgres" else {}
    config = database.config(tmp_path, source={"keys": keys, **plugin})
    database.execute("CREATE TABLE t (id int NOT NULL UNIQUE, v varchar(20))", f"CREATE TABLE u {SHAPE}")
    if database.kind == "postgres":
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    before = begin_capture(database, config)
    with capturing(config) as wait:
        runs(database, wait, before)
        database.execute("ALTER TABLE t ADD PRIMARY KEY (id, v)", "INSERT INTO t VALUES (3, 'missed')")
        others_go_on(database, config, wait, 2, before)
        reason = stop_reasons(config)["t"]
        assert f'[source.keys] "{database.schema}.t" names (id), and its primary key is (id, v)' in reason
        assert "fix: remove " in reason
    entered = database.config(tmp_path, source=plugin)
    with capturing(entered) as wait:
        wait(source_rows(database, "t", "u"))
    assert stop_reasons(entered) == {}


BY_ID = "ALTER TABLE {} DROP PRIMARY KEY, ADD PRIMARY KEY (id)"
ALIKE = {
    "alike": (
        "CREATE TABLE alike (id int, v varchar(20), s set('', 'a'), PRIMARY KEY (id, s))",
        "empty label",
        BY_ID.format("alike"),
    ),
    "doubled": (
        "CREATE TABLE doubled (id int, v varchar(20), e enum('a', 'b', 'a'), PRIMARY KEY (id, e))",
        "a label twice",
        BY_ID.format("doubled"),
    ),
}
UNREAD = {
    "mysql": ALIKE,
    "mariadb": {
        **ALIKE,
        "packed": (
            "CREATE TABLE packed (id int PRIMARY KEY, v varchar(20) COMPRESSED)",
            "COMPRESSED",
            "ALTER TABLE packed MODIFY v varchar(20)",
        ),
        "kept": (f"CREATE TABLE kept {SHAPE} WITH SYSTEM VERSIONING", "system-versioned", ""),
        "periods": (
            "CREATE TABLE periods (id int PRIMARY KEY, v varchar(20), a timestamp(6) GENERATED ALWAYS AS ROW START,"
            " b timestamp(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING",
            "system-versioned",
            "",
        ),
    },
}
"""Tables that cannot be read: how each is made, what is said of it, and what mends it (empty: what is said)."""
INSERT = "INSERT INTO {0} (id, v) VALUES ({1}, 'row {1}')"


@pytest.mark.one_of(4)
@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_mysql_tables_that_have_no_exact_form_stop_alone_from_their_first_row_on(
    database: Database, tmp_path: Path, verify_plainly: Plainly
) -> None:
    """While a capture runs, when one begins, in requests and in a verification; mended, they are dumped."""
    config = database.config(tmp_path)
    cases = UNREAD[database.kind]
    database.execute(f"CREATE TABLE u {SHAPE}")
    run_capture(config, stop=threading.Event(), until_current=True)
    names = [f"{database.schema}.{name}" for name in cases]
    loose = ["SET SESSION sql_mode = ''"]
    with capturing(config) as wait:
        database.execute(*loose, *(create_statement for create_statement, _, _ in cases.values()))
        database.execute(*loose, *(INSERT.format(name, 1) for name in cases), INSERT.format("u", 2))
        wait(source_rows(database, "u"))
        wait_until(lambda: set(stop_reasons(config)) == set(cases), "all of them are stopped")
        verify, _ = verify_plainly(config)
        report = verify(config)
        assert {left.table for left in report.left_out} == set(names) and not report.equal
        assert [table_reports.table for table_reports in report.tables] == [f"{database.schema}.u"]
        assert verify(config, pass_over_refused=True).equal
    database.execute(*loose, *(INSERT.format(name, 2) for name in cases), INSERT.format("u", 3))
    with capturing(config) as wait:  # a start is not refused
        wait(source_rows(database, "u"))
        assert set(copies(config)) == {"u"}
        problems = {str(f.problem.table): f.problem for f in findings(config) if f.problem.fatal}
        stopped_tables = stop_reasons(config)
        assert set(problems) == set(names) and all(says in stopped_tables[name] for name, (_, says, _) in cases.items())
        for name, (_, _, mends) in cases.items():
            fix = problems[f"{database.schema}.{name}"].fix
            database.execute(*loose, mends or fix.partition("source.tables, or ")[2])
        taken_in(database, config, "u", *cases)
        database.execute(*loose, *(INSERT.format(name, 3) for name in cases))
        taken_in(database, config, "u", *cases)


@pytest.mark.one_of(4)
@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_mysql_a_table_that_shows_rows_of_others_stops_alone_until_it_has_rows_of_its_own(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path)
    database.execute(f"CREATE TABLE u {SHAPE} ENGINE = MyISAM")
    run_capture(config, stop=threading.Event(), until_current=True)
    with capturing(config) as wait:
        database.execute("INSERT INTO u VALUES (1, 'one')")
        wait(source_rows(database, "u"))
        database.execute(f"CREATE TABLE t {SHAPE} ENGINE = MERGE UNION = (u) INSERT_METHOD = LAST")
        wait_until(lambda: set(stop_reasons(config)) == {"t"}, "the table is stopped")
        others_go_on(database, config, wait, 2, {})
        assert "MRG_MYISAM keeps no rows" in stop_reasons(config)["t"].replace("MyISAM", "MYISAM")
        (problem,) = [entry.problem for entry in findings(config) if entry.problem.fatal]
        database.execute(problem.fix.partition("source.tables, or ")[2], "INSERT INTO t VALUES (3, 'own')")
        taken_in(database, config, "t", "u")
        assert len(source_rows(database, "t")["t"]) == 3
        if database.kind == "mysql":  # MariaDB has no BLACKHOLE unless it is installed
            database.execute(f"CREATE TABLE b {SHAPE} ENGINE = BLACKHOLE", "INSERT INTO b VALUES (1, 'nowhere')")
            wait_until(lambda: set(stop_reasons(config)) == {"b"}, "the table is stopped")
            assert "BLACKHOLE keeps no rows" in stop_reasons(config)["b"]
            (problem,) = [entry.problem for entry in findings(config) if entry.problem.fatal]
            database.execute(problem.fix.partition("source.tables, or ")[2], "INSERT INTO b VALUES (2, 'kept')")
            taken_in(database, config, "t", "u", "b")


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_mysql_a_start_leaves_out_tables_whose_engine_keeps_no_rows_and_takes_the_others(
    database: Database, tmp_path: Path, verify_plainly: Plainly
) -> None:
    """The catalogue alone tells, and `check` and a first start name them. A later start goes on without them."""
    config = database.config(tmp_path / "captured")
    engines = {"t": "MERGE UNION = (u)", **({"b": "BLACKHOLE"} if database.kind == "mysql" else {})}
    database.execute(f"CREATE TABLE u {SHAPE} ENGINE = MyISAM")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(*(f"CREATE TABLE {name} {SHAPE} ENGINE = {engine}" for name, engine in engines.items()))
    names = {f"{database.schema}.{name}" for name in engines}
    refused = {str(f.problem.table): f.problem.what for f in findings(config) if f.problem.fatal}
    assert set(refused) == names and all("keeps no rows" in what for what in refused.values())
    with pytest.raises(SourceRefused, match="keeps no rows"):
        run_capture(database.config(tmp_path / "first"), stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO u VALUES (1, 'one')")
    with capturing(config) as wait:
        wait(source_rows(database, "u"))
        assert set(stop_reasons(config)) == set(engines)
        verify, _ = verify_plainly(config)
        report = verify(config)
        assert {left.table for left in report.left_out} == names and not report.equal
    assert set(copies(config)) == {"u"}


@pytest.mark.one_of(2)
@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_mysql_rows_that_a_session_logs_in_part_stop_their_table_alone_and_a_start_dumps_it(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path)
    database.execute(f"CREATE TABLE t {SHAPE}", f"CREATE TABLE u {SHAPE}")
    before = begin_capture(database, config)
    with capturing(config) as wait:
        database.execute("SET SESSION binlog_row_image = MINIMAL", "UPDATE t SET v = 'in part' WHERE id = 1")
        database.execute("UPDATE t SET v = 'whole' WHERE id = 2", "INSERT INTO u VALUES (2, 'goes on')")
        wait({**before, **source_rows(database, "u")})
        assert set(stop_reasons(config)) == {"t"} and "binlog_row_image = FULL" in stop_reasons(config)["t"]
    with capturing(config) as wait:
        wait(source_rows(database, "t", "u"))
    assert stop_reasons(config) == {}


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_what_is_newly_asked_for_has_to_be_right(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE keyless (id int)", f"CREATE TABLE u {SHAPE}")
    config = database.config(tmp_path, source={"tables": ["public.*"]})
    with pytest.raises(SourceRefused, match="keyless"):
        run_capture(config, stop=threading.Event(), until_current=True)
    assert wiring.open_staging(config).head() is None
