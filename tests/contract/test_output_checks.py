"""`dblog check` of outputs: what a relay would be refused is told before it runs, and nothing of it stays."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core.interfaces import Problem
from dblog_core.local.servers import ports
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.local.servers.schema_registry import RegistryServer
from dblog_core.monitoring.preflight import output_problems
from dblog_core.outputs.positions import lease_name
from tests.contract.avro_target import AvroOne
from tests.contract.relayed import KINDS, World
from tests.contract.targets import KafkaOne, TableOne
from tests.fix_servers import Database

pytestmark = [pytest.mark.usefixtures("no_thread_is_left")]

SECRET = "hunter2secret"
SQL = ["postgres", "mysql", "mariadb"]


def problems(world: World, **more: Any) -> list[Problem]:
    world.target.settings |= more
    problems_found = list(output_problems(world.config(), "out"))
    assert not any(problem.fatal for problem in problems_found), "no output hinders a capture"
    assert all(problem.fix and SECRET not in problem.what for problem in problems_found)
    return problems_found


@pytest.mark.parametrize("kind", [kind for kind in [*KINDS, "mariadb"] if kind != "memory"])
def test_an_output_that_is_well_has_no_problem_and_is_left_as_it_was(world: World, kind: str) -> None:
    assert problems(world) == []
    if isinstance(world.target, TableOne):
        tables = world.target.database.query(
            f"SELECT count(*) FROM information_schema.tables WHERE table_schema = '{world.target.database.schema}'"
            " AND table_name LIKE 'dblog_changes%'"
        )
        assert tables[0][0] == 0, "the relay makes them, not the check"
    assert world.relay() and problems(world) == []
    assert world.target.lines() == world.all()


@pytest.mark.parametrize("kind", ["kafka", "postgres", "mysql"])
def test_a_relay_at_work_is_not_disturbed(world: World) -> None:
    if isinstance(world.target, KafkaOne):
        world.target.name = "out"  # under which the check looks
    output = world.target.open()
    with closing(output), world.state() as state:
        output.open(1)
        output.write(world.all()[:3])
        lease = state.acquire(lease_name("out"), "the relay", ttl=60, wait=0)
        assert lease is not None
        assert problems(world) == []
        lease.release()
        output.commit(3)
    assert world.target.lines() == world.all()[:3]


@pytest.mark.parametrize("kind", SQL)
def test_a_right_that_is_missing_is_told(world: World, target: TableOne) -> None:
    database = target.database
    user = f"u_{secrets.token_hex(4)}"
    grant = f"{database.name}.*"
    if database.kind == "postgres":
        database.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    else:
        database.execute(f"CREATE USER {user} IDENTIFIED BY '{SECRET}'", f"GRANT SELECT ON {grant} TO {user}")
    target.settings |= {"user": user, "password": SECRET}
    try:
        (problem,) = problems(world)
        assert "denied" in problem.what and user in problem.what
        if database.kind == "postgres":
            database.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {user}")
        else:
            assert "CREATE command denied" in problems(world)[0].what
            for right in ("CREATE", "UPDATE", "INSERT"):
                (problem,) = problems(world)
                assert "command denied" in problem.what
                database.execute(f"GRANT {right} ON {grant} TO {user}")
        assert problems(world) == []
        assert world.relay(), "the check asks for no less than a relay needs"
        (problem,) = problems(world, password="wrong")
        assert "assword" in problem.what or "denied" in problem.what
    finally:
        _forget(database, user)


def _forget(database: Database, user: str) -> None:
    if database.kind == "postgres":
        database.execute(f"DROP OWNED BY {user}", f"DROP ROLE {user}")
    else:
        database.execute(f"DROP USER {user}")


@pytest.mark.parametrize(
    ("kind", "away"),
    [
        ("postgres", {"port": 0}),
        ("mysql", {"port": 0}),
        ("kafka", {"servers": "127.0.0.1:0", "timeout": 2.0}),
        ("http", {"url": "http://127.0.0.1:0/x"}),
    ],
)
def test_a_target_that_is_away_is_told(world: World, away: dict[str, Any]) -> None:
    port = ports.find_free_port()
    settings = {k: v.replace(":0", f":{port}") if isinstance(v, str) else v for k, v in away.items()}
    (problem,) = problems(world, **{**settings, **({"port": port} if "port" in away else {})})
    assert str(port) in problem.what


@pytest.mark.parametrize("kind", ["kafka"])
def test_topics_that_cannot_be_made_as_configured_are_told(world: World) -> None:
    (problem,) = problems(world, replication=3)
    assert "replication" in problem.what.lower()


def test_a_registry_that_does_not_answer_is_told(tmp_path: Path, kafka: KafkaServer, registry: RegistryServer) -> None:
    target = AvroOne(kafka, registry)
    world = World(tmp_path, target)
    assert problems(world) == []
    (problem,) = problems(world, registry=f"http://127.0.0.1:{ports.find_free_port()}")
    assert "schema registry http://127.0.0.1" in problem.what


@pytest.mark.parametrize("kind", ["jsonl", "example"])
def test_a_place_or_a_class_that_is_not_there_is_told(world: World, kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = {"path": str(tmp_path / "file" / "lines")} if kind == "jsonl" else {"class": "nowhere:Output"}
    dead = {"poison": "dead_letter", "dead_letter": str(tmp_path / "file" / "letters")}
    lines, *_ = problem_texts = [problem.what for problem in problems(world, **wrong, **dead)]
    assert len(problem_texts) == 2 and any("dead letters cannot be written" in what for what in problem_texts)
    assert ("lines cannot be written" in lines) if kind == "jsonl" else any("nowhere" in what for what in problem_texts)
