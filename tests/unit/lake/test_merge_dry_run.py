"""`merge --dry-run`: what waits for the lake, told from manifests and the lake's records, with nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from dblog_core.cli import app
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from tests.unit.staged import MICROSECONDS, chunk, creates, log_rows, manifest, publish, table

ORDERS = table("shop.orders")
WIDER = table("shop.orders", id=pa.int64(), name=pa.string(), big=pa.string(), n=pa.int32())
NARROWER = table("shop.orders", id=pa.int64(), name=pa.int32())
SPAN = {"first": 1, "last": 1, "first_offset": 1, "offset": 2, "position": "log1", "commit_time": None}
EVENTS = table("shop.events", key=(), what=pa.string())


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path / "staging"), source="shop")


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Any]:
    """The command, which must change no file of staging or lake; with `text`, as people see it."""
    file = tmp_path / "shop.toml"

    def run(*, text: bool = False, history: bool = False, policy: str = "evolve") -> Any:
        file.write_text(
            f'[source]\nname = "shop"\nkind = "mysql"\nport = 9\npassword = "hunter2"\ndatabase = "shop"\n'
            f'tables = ["shop.*"]\n[staging]\npath = "{tmp_path}/staging"\n'
            f'[state]\nurl = "sqlite://{tmp_path}/state.db"\n'
            f'[lake]\npath = "{tmp_path}/lake"\nhistory = {str(history).lower()}\n'
            f'[lake.tables."shop.o*"]\nschema_changes = "{policy}"\n'
        )
        before = files(tmp_path)
        done = CliRunner().invoke(app, ["--config", str(file), "merge", "--dry-run", *([] if text else ["--json"])])
        assert done.exit_code == 0, done.output
        assert files(tmp_path) == before
        return done.stdout if text else json.loads(done.stdout)

    return run


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def stands(root: Path, status: LakeStatus) -> None:
    """The lake's records after a merge."""
    own_directory = root / "lake" / "_dblog"
    (own_directory / "merges").mkdir(parents=True, exist_ok=True)
    (own_directory / "merges" / f"{status.merge:012d}.json").write_text("{}")
    (own_directory / "status.json").write_text(json.dumps(status.to_json()))


def write_merged_lake(root: Path, **tables: TableStatus) -> None:
    """The lake after segment 1."""
    stands(root, LakeStatus(1, 1, 2, "log1", MICROSECONDS, 1.0, {f"shop.{name}": t for name, t in tables.items()}))


def ok(**fields: Any) -> TableStatus:
    return TableStatus(**{**OK, **fields})


OK: dict[str, Any] = {
    "state": State.OK, "error": None, "segment": 1, "offset": 2, "version": 1, "schema": ORDERS.fingerprint
}  # fmt: skip


def test_nothing_sealed_is_nothing_to_do(plan: Callable[..., Any]) -> None:
    planned = plan()
    assert (planned["merges"], planned["segments"], planned["tables"]) == (0, None, [])
    assert "nothing whole is sealed" in plan(text=True)


def test_a_new_table_is_appended_with_its_rows_files_and_chunks(staging: Staging, plan: Callable[..., Any]) -> None:
    refreshed = chunk(staging, ORDERS, 3, {"id": 7}, {"id": 8}, evicted=(1,))
    publish(staging, 1, 1, 4, (ORDERS, creates(ORDERS, 1, 2)), chunks=(refreshed,))
    planned = plan()
    (orders,) = planned["tables"]
    assert (planned["segments"], planned["offset"]) == ({"first": 1, "last": 1}, {"from": 0, "to": 4})
    assert (orders["does"], orders["rows"], orders["files"], orders["chunks"]) == ("append", 3, 1, 1)
    assert orders["bytes"] > refreshed.bytes
    assert orders["schemas"] == [ORDERS.fingerprint]
    assert "shop.orders  append  3     1      1" in plan(text=True)


def test_what_a_merge_meets_beside_rows_is_told(staging: Staging, plan: Callable[..., Any], tmp_path: Path) -> None:
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 1, 2)))
    write_merged_lake(tmp_path, orders=ok())
    marks = (
        LogMark(3, "s", "shop.orders", "p", MICROSECONDS, schema=WIDER.fingerprint),
        LogMark(4, "t", "shop.orders", "p", MICROSECONDS),
        LogMark(6, "f", "shop.orders", "p", MICROSECONDS, dump="d9", since=2, since_segment=1, key_to=50),
    )
    publish(staging, 2, 3, 6, (WIDER, creates(WIDER, 5, 1)), marks=marks)
    (orders,) = plan()["tables"]
    assert (orders["does"], orders["rows"], orders["change"]) == ("merge", 1, {"added": ["n"]})
    assert orders["truncates"] == [4]
    assert orders["ghosts"] == [{"dump": "d9", "since": 2, "from": None, "to": 50}]
    assert "columns added: n; TRUNCATE: 1; ghosts of dump d9 to 50" in plan(text=True)


def test_a_shape_that_is_not_followed_is_foreseen(staging: Staging, plan: Callable[..., Any], tmp_path: Path) -> None:
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 1, 2)))
    write_merged_lake(tmp_path, orders=ok())
    rows = log_rows(NARROWER, {"offset": 3, "op": "c", "after": {"id": 3, "name": 3}})
    publish(staging, 2, 3, 3, (NARROWER, rows))
    (orders,) = plan()["tables"]
    assert (orders["does"], orders["change"]) == ("stop", {"gone": ["big"], "retyped": ["name"]})


@pytest.mark.parametrize(
    ("policy", "shape", "accepted", "does"),
    [
        ("fail", WIDER, None, "stop"),
        ("fail", WIDER, 3, "merge"),
        ("fail", NARROWER, 3, "stop"),
        ("fail", ORDERS, None, "merge"),
        ("ignore", NARROWER, None, "merge"),
        ("ignore", table("shop.orders", key=("id", "name"), id=pa.int64(), name=pa.string()), None, "stop"),
    ],
)
def test_a_policy_decides_what_stops_a_table(
    staging: Staging,
    plan: Callable[..., Any],
    tmp_path: Path,
    policy: str,
    shape: TableSchema,
    accepted: int | None,
    does: str,
) -> None:
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 1, 2)))
    write_merged_lake(tmp_path, orders=ok(accepted=accepted))
    mark = LogMark(3, "s", "shop.orders", "p", MICROSECONDS, schema=shape.fingerprint)
    staging.put_schema(shape)
    publish(staging, 2, 3, 3, marks=(mark,))
    (orders,) = plan(policy=policy)["tables"]
    assert orders["does"] == does


def test_a_stopped_table_has_all_that_it_missed(staging: Staging, plan: Callable[..., Any], tmp_path: Path) -> None:
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 1, 2)))
    stopped = ok(state=State.STOPPED, error="a file was changed", segment=0, offset=0, version=None, schema=None)
    write_merged_lake(tmp_path, orders=stopped)
    publish(staging, 2, 3, 3, (ORDERS, creates(ORDERS, 3, 1)))
    planned = plan()
    assert planned["stopped"] == [{"table": "shop.orders", "error": "a file was changed", "offset": 0}]
    assert planned["tables"][0]["rows"] == 3
    assert "stopped   shop.orders, at offset 0: a file was changed" in plan(text=True)


def test_a_table_without_a_key_goes_to_history_or_nowhere(staging: Staging, plan: Callable[..., Any]) -> None:
    rows = log_rows(EVENTS, {"offset": 1, "op": "c", "after": {"what": "a"}})
    publish(staging, 1, 1, 1, (EVENTS, rows))
    assert plan()["tables"][0]["does"] == "nothing"
    assert plan(history=True)["tables"][0]["does"] == "history"


def test_an_unended_merge_and_an_open_transaction_are_told(
    staging: Staging, plan: Callable[..., Any], tmp_path: Path
) -> None:
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 1, 2)))
    staging.publish(replace(manifest(2, 3, 4), partial=2))
    write_merged_lake(tmp_path)
    (tmp_path / "lake/_dblog/merges/000000000002.json").write_text(json.dumps({"span": SPAN}))
    planned = plan()
    assert (planned["unfinished"], planned["open_segments"], planned["merges"]) == (2, 1, 0)
    printed = plan(text=True)
    assert "merge 2 was begun and not ended" in printed and "transaction continues: 1" in printed


def test_the_number_of_merges_follows_their_limits(
    staging: Staging, plan: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 4):
        publish(staging, number, number, number, (ORDERS, creates(ORDERS, number, 1)))
    assert plan()["merges"] == 1
    monkeypatch.setattr(merge_plan, "MAX_ROWS", 1)
    assert plan()["merges"] == 3


def test_a_plan_of_what_goes_on_for_ever_is_wrong_use(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--config", str(tmp_path / "x.toml"), "merge", "--dry-run", "--continuous"])
    assert done.exit_code == 2


def test_the_plan_is_printed_as_it_always_was(staging: Staging, tmp_path: Path, plan: Callable[..., Any]) -> None:
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 1, 2)))
    stopped = ok(state=State.STOPPED, error="no", version=None, schema=None)
    write_merged_lake(tmp_path, orders=ok(), gone=stopped)
    marks = (
        LogMark(3, "s", "shop.orders", "p", MICROSECONDS, schema=NARROWER.fingerprint),
        LogMark(4, "t", "shop.orders", "p", MICROSECONDS),
        LogMark(6, "f", "shop.orders", "p", MICROSECONDS, dump="d9", since=2, since_segment=1, key_to=50),
    )
    staging.put_schema(NARROWER)
    publish(staging, 2, 3, 6, marks=marks)
    printed = json.dumps(plan(history=True), separators=(",", ":"))
    fingerprint = NARROWER.fingerprint
    assert printed == (
        '{"source":"shop","merges":1,"unfinished":null,"segments":{"first":2,"last":2},"offset":{"from":2,"to":6},'
        '"position":"log2","open_segments":0,"tables":[{"table":"shop.orders","does":"stop","rows":0,"files":0,'
        f'"chunks":0,"bytes":0,"schemas":["{fingerprint}"],"change":{{"gone":["big"],"retyped":["name"]}},'
        '"truncates":[4],"ghosts":[{"dump":"d9","since":2,"from":null,"to":50}],"history":true,'
        '"carrier":"the driver: Spark has no executors of its own"}],'
        '"stopped":[{"table":"shop.gone","error":"no","offset":2}]}'
    )
