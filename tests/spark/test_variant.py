"""JSON columns as VARIANT: beside each text what it is when parsed, whatever becomes of text, column or setting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as ByDeltaRs
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dblog_core.config.settings import Config
from dblog_core.delta_writer.rewriting import key_overlap
from dblog_core.lake import cuts, lake_tasks
from dblog_core.lake.cuts import find_cut
from dblog_core.lake.lake_status import State, TableStatus, read_status
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tables.column_types import PROVENANCE
from dblog_core.lake_engine.tables.variants import METADATA
from dblog_core.maintenance import disk_usage
from dblog_core.maintenance.disk_usage import Patience
from dblog_core.maintenance.maintain_result import MaintainResult
from dblog_core.model.schema import TableSchema
from dblog_core.verify.judge.lake_columns import OTHER
from dblog_core.verify.pinned_version import Pin
from spark_jobs import views
from tests.spark.asked import ask_well, replay
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, json_in, table
from tests.spark.shapes import expected_rows

pytestmark = pytest.mark.one_of(8)

HUGE = (
    '{"n": 12345678901234567890123456789012345678901234567890, "d": 1.10, "m": 98765432109876543210987654321098765432}'
)
TWICE = '{"a": 1, "a": 2}'
NESTED = '{"b": [1, {"c": null}, "x"], "a": true}'


DOC = json_in(table("t", id=pa.int64(), j=pa.string(), v=pa.string()), j="jsonb")


def doc(key: int, j: str | None, v: str = "a") -> Row:
    return {"id": key, "j": j, "v": v}


def printed_rows(lake: TestLake, schema: TableSchema = DOC) -> list[Row]:
    """The table's rows by key, each VARIANT as it prints; no name of ours."""
    frame = lake.spark.read.format("delta").load(str(lake.table(schema)))
    printed = {f.name: F.to_json(f.name) for f in frame.schema if f.dataType.typeName() == "variant"}
    rows = [row.asDict() for row in frame.withColumns(printed).collect()] if printed else lake.rows(schema)
    own_columns = [{k: v for k, v in row.items() if not k.startswith("_dblog_")} for row in rows]
    return sorted(own_columns, key=lambda row: int(row[schema.key[0]]))


def document_texts(lake: TestLake, pin: Pin) -> list[str | None]:
    """The texts as a verification compares them, by key."""
    return [row["j"] for row in sorted(expected_rows(lake, DOC, pin), key=lambda row: int(row["id"]))]


def both(key: int, j: str | None, variant: str | None, v: str = "a") -> Row:
    return {"id": key, "j": j, "j_variant": variant, "v": v}


def status(lake: TestLake) -> TableStatus:
    table_status = read_status(lake.location)
    assert table_status is not None
    return table_status.tables["shop.t"]


def state(lake: TestLake, schema: TableSchema = DOC) -> tuple[list[str], bool]:
    """The columns of the source's, and whether the table wants the feature of its readers."""
    features = ByDeltaRs(str(lake.table(schema))).protocol().reader_features or []
    return list(printed_rows(lake, schema)[0]), "variantType" in features


@pytest.fixture
def variants(lake: TestLake) -> TestLake:
    lake.json_as = "variant"
    return lake


def test_every_change_of_a_text_is_one_of_its_variant_and_what_equals_is_not_written(variants: TestLake) -> None:
    lake = variants
    build = variants.build
    lake.history = True
    for key, j in enumerate([NESTED, TWICE, HUGE, None, "null", '"x"'], start=1):
        build.create(DOC, doc(key, j))
    build.seal()
    lake.merge_well()
    nested = '{"a":true,"b":[1,{"c":null},"x"]}'
    right = [
        both(1, NESTED, nested),
        both(2, TWICE, None),
        both(3, HUGE, '{"d":1.1,"m":98765432109876543210987654321098765432,"n":1.2345678901234567E49}'),
        both(4, None, None),
        both(5, "null", "null"),
        both(6, '"x"', '"x"'),
    ]
    assert printed_rows(lake) == right
    build.update(DOC, doc(1, "[1]"))
    build.update(DOC, doc(2, None, "b"), unchanged=["j"])  # a long value that the log leaves out
    build.update(DOC, doc(5, "", "b"), unchanged=["j"])
    build.delete(DOC, {"id": 6})
    build.chunk(DOC, [doc(3, HUGE), doc(4, '{"z": 1}'), doc(7, "7")])
    build.seal()
    (merged,) = lake.merge_well()
    right = [both(1, "[1]", "[1]"), both(2, TWICE, None, "b"), right[2], both(4, '{"z": 1}', '{"z":1}')]
    right += [both(5, "null", "null", "b"), both(7, "7", "7")]
    assert printed_rows(lake) == right
    assert (merged.tables[0].updated, merged.tables[0].unchanged) == (4, 1)
    assert state(lake) == (["id", "j", "j_variant", "v"], True)
    history = lake.spark.read.format("delta").load(f"{lake.table(DOC)}__history")
    assert [name for name in history.columns if "variant" in name] == []


def fill_texts(lake: TestLake) -> None:
    """A table of text, as it was before the setting."""
    for key, j in ((1, '{"a": 1}'), (2, None), (3, TWICE)):
        lake.build.create(DOC, doc(key, j))
    lake.build.seal()
    lake.merge_well()
    assert state(lake) == (["id", "j", "v"], False)


FILLED = [both(1, '{"a": 1}', '{"a":1}'), both(2, None, None), both(3, TWICE, None)]


def test_the_setting_fills_the_rows_that_are_there_once_and_its_end_takes_them_away(lake: TestLake) -> None:
    fill_texts(lake)
    lake.json_as = "variant"
    lake.merge_well()
    assert state(lake) == (["id", "j", "v"], False)  # no row came: nobody has looked
    lake.build.create(DOC, doc(4, "[4]"))
    lake.build.seal()
    lake.merge_well()
    assert printed_rows(lake) == [*FILLED, both(4, "[4]", "[4]")]
    assert (merged := status(lake).merged) is not None and merged.updated == 0
    version = log.version(lake.table(DOC)) or 0
    lake.build.create(DOC, doc(5, "[5]"))
    lake.build.seal()
    lake.merge_well()
    assert log.version(lake.table(DOC)) == version + 1  # nothing but its own commit
    lake.json_as = "text"
    replay(lake, 1, lake.build.offset)  # before a merge has looked: what is there is kept up
    assert printed_rows(lake)[3:] == [both(4, "[4]", "[4]"), both(5, "[5]", "[5]")]
    lake.build.update(DOC, doc(1, '{"a": 2}'))
    lake.build.seal()
    lake.merge_well()
    assert printed_rows(lake)[:2] == [doc(1, '{"a": 2}'), doc(2, None)]
    assert state(lake)[0] == ["id", "j", "v"]


def test_what_dies_while_the_setting_is_turned_on_is_finished_by_the_next_merge(lake: TestLake) -> None:
    fill_texts(lake)
    sql = f"delta.`{lake.table(DOC)}`"
    lake.json_as = "variant"
    lake.spark.sql(f"ALTER TABLE {sql} ADD COLUMNS (j_variant VARIANT AFTER j)")  # and no more: it died there
    pinned = Pin(log.version(lake.table(DOC)) or 0, lake.build.offset, 1, lake.build.offset)
    assert document_texts(lake, pinned) == ['{"a": 1}', None, TWICE]  # no false alarm meanwhile
    lake.build.update(DOC, doc(2, "[2]"))
    lake.build.seal()
    lake.merge_well()
    assert printed_rows(lake) == [FILLED[0], both(2, "[2]", "[2]"), FILLED[2]]
    lake.spark.sql(f"ALTER TABLE {sql} ALTER COLUMN j_variant COMMENT ''")  # as if it had died before it said so
    lake.build.update(DOC, doc(2, "[3]"))
    lake.build.seal()
    lake.merge_well()
    assert printed_rows(lake) == [FILLED[0], both(2, "[3]", "[3]"), FILLED[2]]
    operations = [log.operation(lake.table(DOC), n) for n in range(log.version(lake.table(DOC)) or 0)]
    assert operations.count("UPDATE") == 1


LATER = json_in(table("t", id=pa.int64(), k=pa.string(), v=pa.string(), more=pa.string()), k="jsonb", more="json")


def test_a_variant_follows_its_text_through_renames_drops_and_returns(variants: TestLake) -> None:
    lake = variants
    build = variants.build
    for key in (1, 2):
        build.create(DOC, doc(key, f"[{key}]"))
    build.seal()
    lake.merge_well()
    build.schema(LATER, renamed={"k": "j"}, filled={"more": None})
    build.create(LATER, {"id": 3, "k": "[3]", "v": "a", "more": "{}"})
    build.seal()
    lake.merge_well()
    names = ["id", "k", "k_variant", "v", "more", "more_variant"]
    rows = [
        dict(zip(names, (n, f"[{n}]", f"[{n}]", "a", m, m), strict=True)) for n, m in ((1, None), (2, None), (3, "{}"))
    ]
    assert printed_rows(lake, LATER) == rows
    without = table("t", id=pa.int64(), v=pa.string())
    build.schema(without)
    build.update(without, {"id": 2, "v": "b"})
    build.seal()
    lake.merge_well()
    rows[1] |= {"k": None, "k_variant": None, "v": "b"}
    assert printed_rows(lake, LATER) == rows
    ask_well(lake, "rebuild", {"table": "shop.t"})
    assert printed_rows(lake, LATER) == rows
    lake.drop_columns = True
    build.schema(DOC)
    build.create(DOC, doc(4, "[4]"))
    build.seal()
    lake.merge_well()
    assert printed_rows(lake) == [both(n, None, None, v) for n, v in ((1, "a"), (2, "b"), (3, "a"))] + [
        both(4, "[4]", "[4]")
    ]


def test_two_documents_swap_their_names(variants: TestLake) -> None:
    lake = variants
    build = variants.build
    two = json_in(table("t", id=pa.int64(), a=pa.string(), b=pa.string()), a="json", b="json")
    build.create(two, {"id": 1, "a": "[1]", "b": "[2]"})
    build.seal()
    lake.merge_well()
    build.schema(two, renamed={"a": "b", "b": "a"})
    build.create(two, {"id": 2, "a": "[3]", "b": "[4]"})
    build.seal()
    lake.merge_well()
    swapped = [("[2]", "[2]", "[1]", "[1]"), ("[3]", "[3]", "[4]", "[4]")]
    assert [tuple(row[n] for n in ("a", "a_variant", "b", "b_variant")) for row in printed_rows(lake, two)] == swapped
    path = lake.table(two)
    assert {*lake.rows(two, provenance=True)[0]} == {*lake.rows(two)[0], *(f.name for f in PROVENANCE)}
    operations = [log.operation(path, n) for n in range((log.version(path) or 0) + 1)]
    assert "UPDATE" not in operations  # they were renamed, not filled anew


def test_a_column_that_is_no_json_any_more_loses_its_variant(variants: TestLake) -> None:
    lake = variants
    build = variants.build
    build.create(DOC, doc(1, "[1]"))
    build.seal()
    lake.merge_well()
    plain = table("t", id=pa.int64(), j=pa.string(), v=pa.string(), w=pa.string())
    build.schema(plain)
    build.create(plain, {**doc(2, "[2]"), "w": "w"})
    build.seal()
    lake.merge_well()
    assert printed_rows(lake, plain) == [{**doc(1, "[1]"), "w": None}, {**doc(2, "[2]"), "w": "w"}]


def test_a_column_of_the_source_with_the_name_of_a_variant_stops_its_table_alone(variants: TestLake) -> None:
    lake = variants
    build = variants.build
    other = json_in(replace(DOC, table=replace(DOC.table, name="other")), j="jsonb")
    build.create(DOC, doc(1, "[1]"))
    build.create(other, doc(1, "[1]"))
    build.seal()
    lake.merge_well()
    shape_with_name_taken = json_in(
        table("t", id=pa.int64(), j=pa.string(), J_variant=pa.string(), v=pa.string()), j="json"
    )
    build.schema(shape_with_name_taken)
    build.create(shape_with_name_taken, {**doc(2, "[2]"), "J_variant": "x"})
    build.create(other, doc(2, "[2]"))
    build.seal()
    lake.merge()
    assert status(lake).state is State.STOPPED
    error_text = str(status(lake).error)
    assert "the source has a column J_variant: the VARIANT of j cannot be named j_variant" in error_text
    assert 'json_as = "text" under [lake.tables."shop.t"]' in error_text
    assert [row["j_variant"] for row in printed_rows(lake, other)] == ["[1]", "[2]"]
    lake.json_as = "text"
    lake.merge_well()
    assert [row["J_variant"] for row in printed_rows(lake, shape_with_name_taken)] == [None, "x"]


def test_a_variant_that_is_not_its_texts_is_found_and_a_dump_of_the_row_mends_it(variants: TestLake) -> None:
    lake = variants
    build = variants.build
    for key, j in ((1, '{"a": 1}'), (2, None), (3, TWICE), (4, "[4]")):
        build.create(DOC, doc(key, j))
    build.seal()
    lake.merge_well()
    right = printed_rows(lake)
    harm = "UPDATE delta.`{}` SET j_variant = parse_json('{{\"a\": 2}}') WHERE id < 4"
    lake.spark.sql(harm.format(lake.table(DOC)))

    def texts_of_lake() -> list[str | None]:
        return document_texts(lake, Pin(log.version(lake.table(DOC)) or 0, build.offset, build.segment, build.offset))

    assert texts_of_lake() == [f'{{"a": 1}}{OTHER}', OTHER, f"{TWICE}{OTHER}", "[4]"]
    build.chunk(DOC, [doc(1, '{"a": 1}'), doc(2, None), doc(3, TWICE), doc(4, "[4]")], dump="mends")
    build.seal()
    (merged,) = lake.merge_well()
    assert (merged.tables[0].updated, merged.tables[0].unchanged) == (3, 1)
    assert printed_rows(lake) == right
    assert texts_of_lake() == ['{"a": 1}', None, TWICE, "[4]"]
    lake.spark.sql(harm.format(lake.table(DOC)))
    replay(lake, 1, build.offset)
    assert printed_rows(lake) == right


def test_maintenance_cuts_and_other_readers_of_the_log_know_such_a_table(
    lake: TestLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.vectors = True
    fill_texts(lake)
    (before,) = lake.cuts()
    lake.json_as = "variant"
    lake.build.update(DOC, doc(2, "[0]"))
    for key in (4, 5, 6):
        lake.build.create(DOC, doc(key, f"[{key}]"))
    lake.build.seal()
    lake.merge_well()
    lake.build.update(DOC, doc(5, "[0]"))  # a deletion vector beside the file that the last merge has written
    lake.build.seal()
    lake.merge_well()
    right = [FILLED[0], both(2, "[0]", "[0]"), FILLED[2]]
    right += [both(4, "[4]", "[4]"), both(5, "[0]", "[0]"), both(6, "[6]", "[6]")]
    newest = find_cut(lake.location, None).cut
    cuts.check_readable(lake.location, newest)
    assert disk_usage.of_table(lake.table(DOC), "shop.t", Patience(None)) is not None
    monkeypatch.setattr(key_overlap, "FILES", 0)  # all files count as mixed
    task = lake_tasks.file_task(lake.location, MaintainRequest())
    lake.merger(config=_config(tmp_path)).run_task()
    outcome = lake_tasks.read_outcome(lake.location, task.id, MaintainResult)
    assert outcome is not None and outcome.error is None and outcome.result is not None, outcome
    (table_result,) = outcome.result.tables
    assert {"joined", "clustered"} & {*table_result.did}
    assert (table_result.size.rows, table_result.size.deleted) == (6, 0)
    assert printed_rows(lake) == right
    cuts.check_readable(lake.location, newest)
    then = views.at_cut(lake.spark, lake.location, cut=newest.number).table("shop.t", accept_incomplete=True)
    assert then.where("variant_get(j_variant, '$[0]', 'int') = 0").count() == 2
    first = views.at_cut(lake.spark, lake.location, cut=before["cut"]).table("shop.t", accept_incomplete=True)
    assert "j_variant" not in first.columns and first.count() == 3
    with pytest.raises(PySparkException, match="VARIANT"):  # why what they print is compared
        then.where("j_variant = j_variant").count()


def _config(directory: Path) -> Config:
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(directory / "staging")},
            "state": {"url": f"sqlite:///{directory / 'state.db'}"},
            "lake": {"path": str(directory / "lake")},
        }
    )


def test_a_table_that_is_made_anew_or_keeps_its_columns_has_its_variants_too(lake: TestLake) -> None:
    fill_texts(lake)
    lake.json_as = "variant"
    lake.changes = "ignore"
    wider = json_in(table("t", id=pa.int64(), j=pa.string(), v=pa.string(), more=pa.string()), j="jsonb", more="json")
    named_so = json_in(table("t", id=pa.int64(), j=pa.string(), j_variant=pa.string(), v=pa.string()), j="jsonb")
    lake.build.schema(named_so)
    lake.build.create(named_so, {**doc(4, "[4]"), "j_variant": "left out"})
    lake.build.seal()
    lake.merge_well()
    assert printed_rows(lake) == [*FILLED, both(4, "[4]", "[4]")] and status(lake).ignored == ["j_variant"]
    lake.build.schema(wider)
    lake.build.seal()
    lake.merge_well()
    assert status(lake).ignored == ["more"]
    lake.json_as = "text"
    ask_well(lake, "rebuild", {"table": "shop.t"})
    assert printed_rows(lake) == [doc(1, '{"a": 1}'), doc(2, None), doc(3, TWICE), doc(4, "[4]")]
    lake.json_as = "variant"
    ask_well(lake, "rebuild", {"table": "shop.t"})
    assert printed_rows(lake) == [*FILLED, both(4, "[4]", "[4]")]
    rebuilt = lake.spark.read.format("delta").load(str(lake.table(DOC))).schema
    assert rebuilt["j_variant"].metadata == METADATA  # so that no merge fills it again
    ask_well(lake, "reset", {"table": "shop.t"})
    since = lake.build.offset
    lake.build.chunk(wider, [{**doc(1, "[1]"), "more": "{}"}], dump="dump1")
    lake.build.finished(wider, "dump1", since=since, since_segment=lake.build.segment + 1)
    lake.build.seal()
    lake.merge_well()
    assert printed_rows(lake, wider) == [{**both(1, "[1]", "[1]"), "more": "{}", "more_variant": "{}"}]
    commits = log.version(lake.table(DOC))
    lake.build.create(wider, {**doc(2, "[2]"), "more": None})
    lake.build.seal()
    lake.merge_well()
    assert log.version(lake.table(DOC)) == (commits or 0) + 1  # they are known to be filled
