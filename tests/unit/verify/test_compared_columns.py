"""Every column that a comparison is not of is named: what is compared is proven by the shape that is hashed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.commands.verify import text
from dblog_core.config.source import ColumnRules
from dblog_core.lake.json_variants import COMMENT
from dblog_core.lake_engine.tables.column_types import PROVENANCE
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import HASH
from dblog_core.verify.compared_columns import OWN_COLUMNS, NotCompared, SourceColumns, list_not_compared
from dblog_core.verify.report import Report, TableReport
from tests.plain_hashes import row_hash

SCHEMA = TableSchema(
    TableName("shop", "orders"),
    (
        Column("id", "bigint", pa.int64()),
        Column("mail", "text", pa.string()),
        Column("price", "double", pa.float64()),
        Column("note", "text", pa.string()),
        Column("secret", "text", pa.string()),
        Column("doc", "json", pa.string()),
    ),
    ("id",),
)
RULES = Rules({"shop.orders": ColumnRules(hash=("price", "mail"), mask=("note",), exclude=("secret",))})
KEYED = Rules({"shop.orders": ColumnRules(hash=("mail",))}, "a key of sixteen characters")


def lake(*names: str, **fields: Any) -> list[dict[str, Any]]:
    """The fields of a lake table."""
    own = [{"name": name, "type": "long"} for name in sorted(OWN_COLUMNS)]
    return [*({"name": name, "type": "string"} for name in names), *own, *fields.values()]


def names_of(not_compared: tuple[NotCompared, ...]) -> dict[str, str]:
    return {column.column: column.reason for column in not_compared}


def test_each_column_that_is_in_no_hash_is_named_with_its_reason() -> None:
    names = tuple(column.name for column in SCHEMA.columns)
    source = SourceColumns(names=(*names, "total"), captured=names, excluded=("secret",), ignored=("late",))
    source = replace(source, names=(*source.names, "late"))
    hashed = RULES.shape_for_hashes(SCHEMA)
    reasons = names_of(
        list_not_compared(hashed, source, lake("id", "mail", "price", "note", "doc", "gone", "_dblog_x"))
    )
    assert set(reasons) == {"price", "secret", "total", "late", "gone", "_dblog_x"}
    assert reasons["price"].startswith("a floating-point number under the rule hash")
    assert reasons["secret"] == "excluded by [source.columns]"
    assert reasons["total"] == "neither log nor dumps have it, such as a generated column"
    assert reasons["late"] == 'the lake leaves it out (schema_changes = "ignore")'
    assert reasons["gone"] == reasons["_dblog_x"] == "only the lake has it"
    (keyed,) = list_not_compared(KEYED.shape_for_hashes(SCHEMA), SourceColumns(names, names), lake(*names))
    assert keyed.column == "mail" and keyed.reason.startswith("hashed with hash_key")
    still = names_of(list_not_compared(hashed, source, lake("secret")))["secret"]
    assert still == "excluded by [source.columns]; the lake still has it from before"


def test_a_variant_is_compared_with_its_text_once_it_has_all_values() -> None:
    source = SourceColumns(names=("id", "doc"), captured=("id", "doc"))
    schema = replace(SCHEMA, columns=tuple(c for c in SCHEMA.columns if c.name in ("id", "doc")))
    filled = {"name": "doc_variant", "type": "variant", "metadata": {"comment": COMMENT}}
    assert not list_not_compared(schema, source, lake("id", "doc", v=filled))
    for other in ({**filled, "metadata": {}}, {**filled, "type": "string"}, {**filled, "name": "id_variant"}):
        assert [c.column for c in list_not_compared(schema, source, lake("id", "doc", v=other))] == [other["name"]]


def test_dblogs_own_columns_are_the_provenance() -> None:
    assert {field.name for field in PROVENANCE} == OWN_COLUMNS


@given(st.sets(st.sampled_from("abcdefgh")), st.sets(st.sampled_from("abcdefgh")), st.data())
def test_a_column_is_named_or_its_change_changes_the_hash(in_source: set[str], in_lake: set[str], data: Any) -> None:
    """The closed list: of any column of either side one of the two holds."""
    hashed_names = sorted(data.draw(st.sets(st.sampled_from(sorted(in_source) or ["a"]))))
    keyed = data.draw(st.sets(st.sampled_from(hashed_names or ["a"])))
    table = TableName("shop", "t")
    schema = TableSchema(table, tuple(Column(n, "text", pa.string()) for n in ("id", *hashed_names)), ("id",))
    rules = Rules(
        {str(table): ColumnRules(hash=tuple(sorted(keyed & set(hashed_names))))}, "a key of sixteen characters"
    )
    hashed = rules.shape_for_hashes(schema)
    source = SourceColumns(names=("id", *sorted(in_source)), captured=("id", *hashed_names))
    named = {column.column for column in list_not_compared(hashed, source, lake("id", *sorted(in_lake)))}
    row = dict.fromkeys(("id", *"abcdefgh"), "x")
    for name in {"id", *in_source, *in_lake}:
        changes = row_hash(hashed, row) != row_hash(hashed, {**row, name: "y"})
        assert changes != (name in named), (name, HASH)


def test_the_report_names_them_to_people_and_in_json() -> None:
    report = TableReport("shop.a", rows=3, not_compared=(NotCompared("mail", "hashed with hash_key"),))
    assert report.equal and report.outcome == "equal; 1 column is not compared"
    assert report.to_json()["not_compared"] == [{"column": "mail", "reason": "hashed with hash_key"}]
    assert "shop.a: not compared: mail (hashed with hash_key)" in text(Report((report,)))
    assert TableReport("shop.a").to_json()["not_compared"] == []
