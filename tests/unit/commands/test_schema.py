"""`dblog schema`: each shape of a table since when, what changed, and where the lake stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from dblog_core import cli
from dblog_core.config.lake import SchemaChanges
from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.lake import accept_schema, lake_tasks
from dblog_core.lake.accept_schema import Way
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus
from dblog_core.lake.task_requests import AcceptRequest
from dblog_core.lake.task_results import AcceptResult
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from tests.unit.commands.test_cut import CONFIG
from tests.unit.staged import MICROSECONDS, manifest, table

FIRST = table(id=pa.int64(), a=pa.int16(), b=pa.string(), c=pa.int64())
SECOND = table(id=pa.int64(), a=pa.int32(), c=pa.int64(), d=pa.string())
WITH_JSON = replace(FIRST, columns=tuple(replace(c, source_type="json") if c.name == "b" else c for c in FIRST.columns))
THIRD = table(key=("d",), id=pa.int64(), a=pa.int32(), c=pa.string(), d=pa.string())


class Shop:
    """Staging with three shapes of shop.orders in five segments, and shapes of another table between them."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "shop.toml"
        self.directory = directory
        self.file.write_text(CONFIG)
        self.staging = Staging(str(directory / "staging"), source="shop")
        self.write(1, [FIRST, table("shop.other")])
        self.write(2, [])
        self.write(3, [SECOND, SECOND])
        self.write(4, [table("shop.other", id=pa.int64())])
        self.write(5, [THIRD])

    def write(self, segment: int, shapes: list[TableSchema]) -> None:
        first = 10 * segment
        marks = tuple(
            LogMark(first + n, "s", str(s.table), f"p{first + n}", MICROSECONDS + segment, schema=s.fingerprint)
            for n, s in enumerate(shapes)
        )
        for shape in shapes:
            self.staging.put_schema(shape)
        fingerprints = dict(self.staging.manifest(segment - 1).schemas) if segment > 1 else {}
        fingerprints |= {str(s.table): s.fingerprint for s in shapes}
        new_manifest = manifest(segment, first - 10 + len(shapes) if segment > 1 else 1, first + 5, marks=marks)
        self.staging.publish(replace(new_manifest, schemas=fingerprints))

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli.app, ["--config", str(self.file), "schema", *arguments])


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_each_shape_is_told_with_its_place_and_what_the_lake_makes_of_it(shop: Shop) -> None:
    answer = json.loads(shop.run("shop.orders", "--json").stdout)
    assert answer["table"] == "shop.orders" and answer["lake"] is None
    assert [(v["version"], v["offset"], v["position"]) for v in answer["versions"]] == [
        (1, 10, "p10"),
        (2, 30, "p30"),
        (3, 50, "p50"),
    ]
    assert answer["versions"][0]["changes"] == []
    assert [c["name"] for c in answer["versions"][1]["columns"]] == ["id", "a", "c", "d"]
    changes = [[(c["what"], c["column"], c["before"], c["after"]) for c in v["changes"]] for v in answer["versions"]]
    assert changes[1:] == [
        [("added", "d", None, "string"), ("dropped", "b", "string", None), ("widened", "a", "int16", "int32")],
        [("retyped", "c", "int64", "string"), ("key", None, "id", "d")],
    ]
    assert all("dblog reset shop.orders" in c["lake"] for c in answer["versions"][2]["changes"])


def test_it_says_which_version_the_lake_has_and_why_it_stands_still(shop: Shop) -> None:
    status = TableStatus(State.STOPPED, "it cannot follow", 4, 45, schema=SECOND.fingerprint)
    dblog_directory = shop.directory / "lake/_dblog"
    dblog_directory.mkdir(parents=True)
    (dblog_directory / "status.json").write_text(
        json.dumps(LakeStatus(4, 4, 45, tables={"shop.orders": status}).to_json())
    )
    output = shop.run("shop.orders").stdout
    assert output.splitlines()[-1] == "lake: version 2, merged to offset 45, stopped: it cannot follow"
    assert "a widened: int16 is now int32  ->  widened in place" in output


def test_dropped_columns_go_where_the_lake_is_told_so(shop: Shop) -> None:
    assert "kept: rows that are not written again keep its values" in shop.run("shop.orders").stdout
    shop.file.write_text(CONFIG.replace('path = "lake"', 'path = "lake"\ndrop_columns = true'))
    assert "b dropped: string  ->  dropped" in shop.run("shop.orders").stdout


def test_a_table_that_nothing_is_known_of_is_an_error_with_a_way_on(shop: Shop) -> None:
    result = shop.run("shop.nothing")
    assert result.exit_code == 2 and "shop.nothing" in result.stderr and "dblog check" in result.stderr
    assert shop.run("orders").exit_code == 2


def stop_table(shop: Shop, **more: object) -> None:
    """The lake has the second shape, and stands before the third."""
    status = TableStatus(State.STOPPED, "it cannot follow", 4, 45, 7, schema=SECOND.fingerprint)
    status = replace(status, **more)  # type: ignore[arg-type] # a test's own choice of fields
    dblog_directory = shop.directory / "lake/_dblog"
    dblog_directory.mkdir(parents=True, exist_ok=True)
    (dblog_directory / "status.json").write_text(
        json.dumps(LakeStatus(4, 4, 45, tables={"shop.orders": status}).to_json())
    )


def test_accept_says_what_it_will_do_and_does_nothing_unless_it_is_told_to(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[AcceptRequest] = []
    accepted = AcceptResult("shop.orders", Way.RELOAD, "it is emptied", ("column c was int64 and is string",), "dump7")

    def carry_out(config: Config, request: AcceptRequest, result_type: type, **_: object) -> AcceptResult:
        requests.append(request)
        assert result_type is AcceptResult
        return accepted

    monkeypatch.setattr(lake_tasks, "carry_out", carry_out)
    stop_table(shop)
    result = shop.run("accept", "shop.orders")
    assert (result.exit_code, requests) == (2, []) and "--yes" in result.stderr
    assert "column c was int64 and is string" in result.stderr and "is emptied" in result.stderr
    result = shop.run("accept", "shop.orders", "--yes", "--json")
    assert (result.exit_code, requests) == (0, [AcceptRequest("shop.orders")])
    assert json.loads(result.stdout) == accepted.to_json()
    assert shop.run("accept").exit_code == 2 and shop.run("shop.orders", "--yes").exit_code == 2


@pytest.mark.parametrize(
    ("shapes", "policy", "status", "way"),
    [
        ([SECOND], "fail", {"schema": FIRST.fingerprint}, "follow"),
        ([SECOND], "ignore", {"schema": FIRST.fingerprint}, "take"),
        ([SECOND], "ignore", {"schema": SECOND.fingerprint, "ignored": ["d"]}, "take"),
        ([SECOND, FIRST, SECOND], "evolve", {"schema": FIRST.fingerprint}, "replace"),
        ([table(id=pa.int64(), a=pa.bool_())], "evolve", {"schema": FIRST.fingerprint}, "replace"),
        ([table(id=pa.int64(), a=pa.bool_()), FIRST], "fail", {"schema": FIRST.fingerprint}, "replace"),
        ([table(key=("a",), id=pa.int64(), a=pa.int16())], "evolve", {"schema": FIRST.fingerprint}, "reload"),
        ([table(id=pa.string())], "fail", {"schema": FIRST.fingerprint}, "reload"),
        ([SECOND], "evolve", {"schema": FIRST.fingerprint, "state": State.OK}, "it follows the change"),
        ([FIRST], "fail", {"schema": FIRST.fingerprint, "state": State.OK}, "the lake has its newest shape"),
        ([FIRST], "ignore", {"schema": FIRST.fingerprint}, "not stopped because of its shape: a damaged file"),
        ([FIRST], "evolve", {"schema": None}, "the lake has no such table"),
    ],
)
def test_a_shape_is_accepted_in_the_way_that_ends_with_what_the_source_has(
    tmp_path: Path, shapes: list[TableSchema], policy: SchemaChanges, status: dict[str, Any], way: str
) -> None:
    shop = Shop(tmp_path)
    shop.write(6, shapes)
    known_status = TableStatus(
        **{"state": State.STOPPED, "error": "a damaged file", **status}, segment=5, offset=55, version=1
    )
    try:
        outcome: str = accept_schema.plan_acceptance(shop.staging, "shop.orders", known_status, policy).way.value
    except LakeError as error:
        outcome = str(error)
    assert outcome == way or (" " in way and way in outcome)


def test_the_policy_of_a_table_changes_what_is_told_of_its_changes(shop: Shop) -> None:
    tables = '\n[lake.tables."shop.ord*"]\nschema_changes = "{}"\n'
    stop_table(shop, ignored=["d"], state=State.OK, error=None)
    shop.file.write_text(CONFIG + tables.format("ignore"))
    output = shop.run("shop.orders").stdout
    assert "d added: string  ->  left out" in output and 'schema_changes = "ignore"' in output
    assert "lake: version 2 without d, merged to offset 45, ok" in output
    shop.file.write_text(CONFIG + tables.format("fail"))
    answer = json.loads(shop.run("shop.orders", "--json").stdout)
    assert (answer["schema_changes"], answer["lake"]["ignored"]) == ("fail", ["d"])
    assert "dblog schema accept shop.orders" in answer["versions"][1]["changes"][0]["lake"]


def test_it_tells_of_the_variants_that_the_lake_has_beside_json(shop: Shop) -> None:
    newest = replace(WITH_JSON, columns=(*WITH_JSON.columns, *table(e=pa.string()).columns))
    shop.write(6, [newest])
    assert "variant" not in shop.run("shop.orders").stdout
    shop.file.write_text(CONFIG + '\n[lake.tables."shop.orders"]\njson_as = "variant"\n')
    assert 'json_as = "variant": b_variant beside b\n' in shop.run("shop.orders").stdout
    assert json.loads(shop.run("shop.orders", "--json").stdout)["json_as"] == "variant"
