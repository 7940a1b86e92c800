"""What `check` finds of PostgreSQL's settings, tables and rights, and who is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import (
    LogPositionLost,
    SourceRefused,
    SourceUnavailable,
)
from dblog_core.interfaces import Problem
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database


def test_a_table_without_identity_is_refused_before_it_harms_the_application(
    lab: Database, exact: PostgresSource
) -> None:
    tables = ("good", "keyless")
    user = lab.account.user
    lab.execute("CREATE TABLE keyless (a int)", "CREATE TABLE good (id int PRIMARY KEY)")
    lab.execute(*(f'ALTER TABLE {table} OWNER TO "{user}"' for table in tables))
    lab.execute(f"DROP PUBLICATION dblog_{lab.name}", f'GRANT CREATE ON DATABASE "{lab.name}" TO "{user}"')

    def published() -> set[str]:
        publication_query = f"SELECT tablename FROM pg_publication_tables WHERE pubname = 'dblog_{lab.name}'"
        return {str(name) for (name,) in lab.query(publication_query)} & set(tables)

    exact.prepare()
    (problem,) = exact.list_refusals()
    assert problem.table == "public.keyless" and "REPLICA IDENTITY FULL" in problem.fix
    assert published() == {"good"} == {t.table.name for t in exact.tables()}
    lab.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    exact.prepare()
    assert exact.list_refusals() == () and published() == {"good", "keyless"}


def test_a_wrong_password_and_an_absent_server_are_told_apart_and_nothing_secret_is_said(
    configure: Callable[..., SourceConfig],
) -> None:
    wrong = PostgresSource(configure(password="not-the-secret"))
    with pytest.raises(SourceRefused) as refused:
        wrong.current_position()
    (problem,) = wrong.check()
    for text in (str(refused.value), problem.what, problem.fix, repr(refused.value.__cause__)):
        assert "not-the-secret" not in text
    assert "password" in problem.what and problem.fatal
    with pytest.raises(SourceUnavailable):
        PostgresSource(configure(port=1)).current_position()


def problems_about(problems: list[Problem], words: str) -> list[Problem]:
    return [problem for problem in problems if words in problem.what]


def test_check_is_silent_where_all_is_well(lab: Database, source: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    assert source.check() == []
    source.prepare()
    assert source.check() == []


def test_check_warns_of_columns_that_print_names_of_objects(lab: Database, source: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, c regclass, roles regrole[], acl aclitem[], v text, n oid)")
    [problem] = problems_about(source.check(), "names of objects")
    assert "public.t: (c, roles, acl) print" in problem.what and problem.fix and not problem.fatal


def test_check_finds_every_problem_at_once(lab: Database, configure: Callable[..., SourceConfig]) -> None:
    user = lab.account.user
    lab.execute(
        "CREATE TABLE keyless (a int)",
        "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        f'REVOKE ALL ON hidden FROM "{user}"',
        "CREATE TABLE guarded (id int PRIMARY KEY)",
        "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE loose (a int, b int NOT NULL)",
        "CREATE TABLE public.dblog_watermark (worker int)",
        f'ALTER ROLE "{user}" NOREPLICATION',
        f"DROP PUBLICATION dblog_{lab.name}",
    )
    config = configure(tables=["public.*", "nowhere.x*"], keys={"public.loose": ["a", "zz"]})
    problems = PostgresSource(config).check()
    for words in (
        "may not replicate",
        "no table matches nowhere.x*",
        "nothing, and its key is (none)",
        "fleeting is unlogged",
        "may not read public.hidden",
        "row security hides rows of public.guarded",
        "no column zz",
        "column a may be null",
        "no unique index",
        "may not write the watermark table",
        "not a watermark table of dblog",
        "publication",
    ):
        assert problems_about(problems, words), words
    assert all(problem.fix for problem in problems)
    assert not problems_about(problems, lab.account.password)
    lab.execute(f'ALTER ROLE "{user}" REPLICATION')


def test_the_sql_that_check_prints_mends_what_it_found(lab: Database, configure: Callable[..., SourceConfig]) -> None:
    user = lab.account.user
    lab.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f'REVOKE ALL ON t FROM "{user}"',
        f'REVOKE CREATE ON SCHEMA public FROM "{user}"',
        f'ALTER ROLE "{user}" NOREPLICATION',
        f"DROP PUBLICATION dblog_{lab.name}",
    )
    source = PostgresSource(configure())
    problems = source.check()
    assert len(problems) == 4, problems
    for problem in problems:
        lab.execute(*problem.fix.split("; "))
    assert source.check() == []
    source.prepare()


def test_an_owner_needs_no_administrator(lab: Database, configure: Callable[..., SourceConfig]) -> None:
    lab.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f'ALTER TABLE t OWNER TO "{lab.account.user}"',
        f"DROP PUBLICATION dblog_{lab.name}",
    )
    source = PostgresSource(configure())
    assert source.check() == []
    source.prepare()
    lab.execute("CREATE TABLE later (id int PRIMARY KEY)", f'ALTER TABLE later OWNER TO "{lab.account.user}"')
    source.prepare()
    tables = lab.query(f"SELECT tablename FROM pg_publication_tables WHERE pubname = 'dblog_{lab.name}' ORDER BY 1")
    assert [name for (name,) in tables] == ["dblog_watermark", "later", "t"]


def test_check_names_an_invalid_slot_and_a_filtered_publication(
    lab: Database, configure: Callable[..., SourceConfig]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", f"DROP PUBLICATION dblog_{lab.name}")
    lab.execute(f"CREATE PUBLICATION dblog_{lab.name} FOR TABLE t (id) WHERE (id > 5)")
    lab.execute(f"SELECT pg_create_logical_replication_slot('dblog_{lab.name}', 'test_decoding')")
    problems = PostgresSource(configure()).check()
    assert problems_about(problems, "of plugin test_decoding")
    assert problems_about(problems, "leaves out rows or columns of public.t")
    with pytest.raises(SourceRefused, match="leaves out rows"):
        PostgresSource(configure()).prepare()
    lab.execute(f"DROP PUBLICATION dblog_{lab.name}", f"CREATE PUBLICATION dblog_{lab.name} FOR ALL TABLES")
    with pytest.raises(LogPositionLost, match="of plugin test_decoding"):
        PostgresSource(configure()).prepare()
