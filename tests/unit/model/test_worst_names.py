"""The worst names that servers take, in each place where we write names and read them again."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dblog_core.airflow.params import named_tables
from dblog_core.config.loader import load
from dblog_core.dumps import requests
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import ConfigError, RequestError
from dblog_core.lake import table_commits
from dblog_core.lake.lake_status import history_location, lake_at, link_encoded_name, table_location
from dblog_core.lake_engine.tables.column_types import quote as quote_column
from dblog_core.maintenance.schedule import TableSize
from dblog_core.model import table_names, table_patterns
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.monitoring import metrics
from dblog_core.monitoring.metrics import Sources
from dblog_core.monitoring.source_status import MergeProgress, SourceStatus, TableInStatus
from dblog_core.monitoring.storage_usage import MeasuredTable, RetentionStatus, StorageStatus
from dblog_core.outputs import avro
from dblog_core.signals.message import EXECUTE, Message, translate
from dblog_core.sources.mysql.ddl import statements
from dblog_core.sources.mysql.ddl.statements import Means
from dblog_core.sources.mysql.sql.watermarks import qualify
from dblog_core.sources.postgres.logical.wal2json import _filter
from dblog_core.sources.postgres.sql import typed_names
from dblog_core.staging.segment import safe_name
from dblog_core.verify.slices import _path
from spark_jobs.source import _names
from tests import worst_names
from tests.unit import requests_world
from tests.unit.requests_world import World
from tests.worst_names import EVERY, EXPANDED, PAIRS

PLAIN = [table for table in PAIRS if not set(str(table)) & {"*", "?"}]
ODD = TableName('Quoted_" . Schema', "a.b\n")


def test_each_table_has_one_text_and_each_text_one_table() -> None:
    assert len({str(table) for table in PAIRS}) == len(PAIRS)
    assert all(TableName.parse(str(table)) == table for table in PAIRS)
    assert [str(TableName("shop", "orders.2026")), str(TableName("shop.eu", "orders"))] == [
        "shop.orders.2026",
        '"shop.eu".orders',
    ]
    assert TableName.parse('"shop".orders') == TableName("shop", "orders")
    assert table_names.canonical('"shop".orders') == "shop.orders"
    for text in ("orders", ".orders", "shop.", '"shop".', ""):
        with pytest.raises(ValueError, match=r"SCHEMA\.TABLE"):
            TableName.parse(text)


def test_the_text_of_a_table_is_a_pattern_of_it_and_of_no_other() -> None:
    for table in PLAIN:
        assert table_patterns.matches(table, [str(table)])
    others = [TableName(schema, "t") for schema in EVERY]
    for schema in EVERY:
        if not set(schema) & {"*", "?"}:
            pattern = str(TableName(schema, "*"))
            assert [t.schema for t in others if table_patterns.matches(t, [pattern])] == [schema]
            assert [s for s in EVERY if table_patterns.matches_schema(s, [pattern])] == [schema]


def test_a_star_in_the_schema_takes_no_dot_of_the_table() -> None:
    assert not table_patterns.matches(TableName("shop", "a.b"), ["*.b"]), "the schema is shop"
    assert table_patterns.matches(TableName("shop.eu", "b"), ["*.b"])
    assert not table_patterns.matches(TableName("shop.eu", "b"), ["shop.*"])


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _file(path: Path, **source: Any) -> Path:
    settings = {
        "name": "shop",
        "kind": "postgres",
        "database": "shop",
        "tables": ["*.*"],
        "password": "secret",
        **source,
    }
    sections = {key: settings.pop(key) for key in ("columns", "keys") if key in settings}
    text = ["[source]", *(f"{key} = {_toml(value)}" for key, value in settings.items())]
    for table, rules in sections.get("columns", {}).items():
        text += [f"[source.columns.{table_names.quote_for_toml(table)}]", f"mask = {_toml(rules)}"]
    text += ["[source.keys]"] if "keys" in sections else []
    text += [f"{table_names.quote_for_toml(t)} = {json.dumps(k)}" for t, k in sections.get("keys", {}).items()]
    text += ["[staging]", 'path = "staging"', "[state]", 'url = "sqlite:////tmp/none.db"', "[lake]", 'path = "lake"']
    file = path / "shop.toml"
    file.write_text("\n".join(text), encoding="utf-8")
    return file


def test_a_file_names_tables_columns_and_keys(tmp_path: Path) -> None:
    tables = [t for t in PLAIN if EXPANDED not in str(t)][::7]
    columns = {str(t): [t.name] for t in tables if t.name != EXPANDED}
    config = load(
        _file(tmp_path, tables=[str(t) for t in tables], columns=columns, keys={str(t): ["k"] for t in tables})
    )
    for table in tables:
        assert table_patterns.matches(table, config.source.tables)
        assert config.source.columns[str(table)].mask == (table.name,)
        assert config.source.keys[str(table)] == ("k",)


def test_a_setting_in_another_text_than_the_tables_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="double quotes that needs none") as refused:
        load(_file(tmp_path, columns={'"shop".orders': ["iban"]}))
    assert '[source.columns."\\"shop\\".orders"]' in str(refused.value)


def test_the_lake_has_a_directory_of_its_own_for_each_table(tmp_path: Path) -> None:
    lake = lake_at(str(tmp_path))
    paths = {table: table_location(lake, table).path for table in PAIRS}
    assert len(set(paths.values())) == len(PAIRS)
    for path in paths.values():
        schema, name = path.split("/")
        assert {schema, name}.isdisjoint({"", ".", ".."}) and "\0" not in path and "\\" not in path
        assert max(len(part.encode()) for part in (schema, name)) <= 255
        assert not any(ord(c) < 32 or ord(c) == 127 for c in path)
    assert all(len(history_location(lake, t).path.rpartition("/")[2].encode()) <= 255 for t in PAIRS)


def test_delta_rs_reads_the_directory_of_each_by_either_name(tmp_path: Path) -> None:
    lake = lake_at(str(tmp_path / "lake"))
    directory_made = tmp_path / "made"
    write_deltalake(directory_made, pa.table({"x": [1, 2]}))
    for table in [TableName(schema, "t") for schema in EVERY] + [TableName("shop", name) for name in EVERY]:
        place = table_location(lake, table)
        link_encoded_name(lake, table)
        assert place.local is not None
        shutil.copytree(directory_made, place.local)
        encoded = [re.sub("[/%]", lambda c: quote(c[0], safe=""), name) for name in (table.schema, table.name)]
        encoded = [name.replace(".", "%2E") if name in (".", "..") else name for name in encoded]
        other = [] if "~2F" in (table.schema, table.name) else [f"{tmp_path}/lake/{'/'.join(encoded)}"]
        for path in (str(place), *other):
            assert DeltaTable(path).to_pyarrow_table().num_rows == 2, path
        assert table_commits.version(place) == 0


def test_what_an_earlier_version_has_put_under_a_percent_encoded_name_moves(tmp_path: Path) -> None:
    lake = lake_at(str(tmp_path))
    table = TableName("a/b", "100%25")
    before = tmp_path / "a%2Fb" / "100%2525"
    before.mkdir(parents=True)
    (before / "file").write_text("rows")
    for _ in range(2):
        link_encoded_name(lake, table)
        place = table_location(lake, table).local
        assert place is not None and not place.is_symlink() and (place / "file").read_text() == "rows"
        assert (before / "file").read_text() == "rows" and place.parent.name == "a~2Fb"


def test_no_link_stands_in_the_place_of_another_table(tmp_path: Path) -> None:
    """`/` lies at ~2F, and the table ~2F at ~7E2F: neither order may mix them, nor move one."""
    names = ["/", "~2F", "%2F", "~7E2F", "a/b", "a%2Fb", "a~2Fb", ".", "..", "%2E", "~2E"]
    for number, order in enumerate((names, names[::-1])):
        lake = lake_at(str(tmp_path / str(number)))
        for name in order * 2:
            link_encoded_name(lake, table := TableName("shop", name))
            place = table_location(lake, table).local
            assert place is not None and not place.is_symlink()
            place.mkdir(parents=True, exist_ok=True)
            (place / "name").write_text(name)
        for name in names:
            place = table_location(lake, TableName("shop", name)).local
            assert place is not None and (place / "name").read_text() == name


def test_mysql_reads_its_own_statements_of_them() -> None:
    for table in PAIRS:
        text = qualify(table).replace("%%", "%")
        for sql, means in (
            (f"TRUNCATE TABLE {text}", Means.EMPTIES),
            (f"DROP TABLE IF EXISTS {text} /* generated by server */", Means.EMPTIES),
            (f"ALTER TABLE {text} ADD COLUMN x int", Means.HARMLESS),
        ):
            classified = statements.classify(sql, "other")
            assert (classified.means, classified.tables) == (means, (table,)), sql
        other = qualify(ODD).replace("%%", "%")
        swapped = statements.classify(f"RENAME TABLE {text} TO {other}", "other")
        assert swapped.tables == tuple(dict.fromkeys([table, ODD]))


def test_sql_for_people_quotes_what_the_server_would_read_otherwise() -> None:
    assert typed_names.table(TableName("public", "orders")) == "public.orders"
    assert typed_names.table(TableName("order", 'a"b')) == '"order"."a""b"'
    assert [typed_names.column(name) for name in ("id", "Id", "1a", "user", "grün")] == [
        "id",
        '"Id"',
        '"1a"',
        '"user"',
        '"grün"',
    ]


def test_wal2json_is_asked_for_just_that_table() -> None:
    for table in PLAIN:
        text = _filter(str(table))
        parts = [""]
        escaped = False
        assert text is not None
        for character in text:  # as the plugin reads it
            if escaped or character not in "\\.,":
                parts[-1] += character
                escaped = False
            elif character == "\\":
                escaped = True
            else:
                parts.append("")
        assert parts == [table.schema, table.name]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    dump_world = requests_world.make(tmp_path, monkeypatch, chunk_size=10, workers=2)
    source = dump_world.config.source.model_copy(update={"tables": ("*.*",)})
    object.__setattr__(dump_world, "config", dump_world.config.model_copy(update={"source": source}))
    for table in (TableName(schema, name) for schema in ("shop", *worst_names.SCHEMAS["postgres"]) for name in EVERY):
        dump_world.database.schemas[table] = TableSchema(table, (Column("id", "bigint", pa.int64()),), ("id",))
    return dump_world


def test_a_request_names_one_table_however_it_comes(world: World) -> None:
    """By the command line, by Airflow's form and REST API, and by a signal."""

    def resolved_names(tables: tuple[str, ...] | None) -> list[str]:
        resolved_tables, _ = requests.resolve(world.config, DumpRequest(tables))
        return [str(resolved_table.schema.table) for resolved_table in resolved_tables]

    for table in (t for t, shape in world.database.schemas.items() if shape.key):
        name = str(table)
        assert resolved_names((name,)) == [name]
        if name.strip() == name:
            assert resolved_names(named_tables({"tables": [f" {name}\r"]})) == [name], "a line of the form"
        assert resolved_names(named_tables({"tables": [json.dumps(name)]})) == [name]
        always_quoted = f'"{table.schema.replace(chr(34), chr(34) * 2)}".{table.name}'
        assert resolved_names((always_quoted,)) == [name]
        signal = translate(Message("1", EXECUTE, json.dumps({"data-collections": [always_quoted]})), kind="postgres")
        assert isinstance(signal, DumpRequest) and resolved_names(signal.tables) == [name]
    with pytest.raises(RequestError, match="double quotes"):
        translate(Message("1", EXECUTE, json.dumps({"data-collections": ["shop.a[b]{c}(d)"]})), kind="postgres")


def test_spark_is_given_names_by_commas_or_as_json() -> None:
    texts = [str(table) for table in PAIRS]
    assert _names(json.dumps(texts)) == texts
    assert _names("shop.a, shop.b ,,") == ["shop.a", "shop.b"]
    assert all(quote_column(name)[1:-1].replace("``", "`") == name for name in EVERY)


def test_files_and_nodes_are_named_by_plain_text() -> None:
    for table in PAIRS:
        assert set(safe_name(str(table))) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~-")
        assert "/" not in _path(table).removeprefix("slices/") and _path(table).isascii()
    assert len({_path(table) for table in PAIRS}) == len(PAIRS)


def test_metrics_carry_them_as_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [str(table) for table in PAIRS[::3]]
    sizes = [MeasuredTable(TableSize(text, 1, 1, 1, 0, 1, 1), "") for text in texts]
    status = SourceStatus(
        source="s", leader=None, position=None, offset=None, lag_seconds=None, rows_per_second=None,
        tables=tuple(TableInStatus(text, "ok") for text in texts), windows=(), dumps=(),
        merge=MergeProgress(None, None), outputs=(), errors=(),
        storage=StorageStatus({}, tuple(sizes), RetentionStatus()),
    )  # fmt: skip
    monkeypatch.setattr(metrics, "read_source_status", lambda *_: status)
    registry = CollectorRegistry()
    registry.register(Sources([load(_file(tmp_path))]))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    labels = [sample.labels for family in families for sample in family.samples]
    assert {labels_of_sample["table"] for labels_of_sample in labels if "table" in labels_of_sample} == set(texts)


def test_avro_names_are_names_and_the_docs_have_the_own() -> None:
    for table in PAIRS[::5]:
        shape = TableSchema(table, (Column(table.name, "text", pa.string()),), (table.name,))
        schema = avro.value_schema(shape)
        avro.Coder(schema)
        assert orjson.loads(orjson.dumps(schema)) == schema
