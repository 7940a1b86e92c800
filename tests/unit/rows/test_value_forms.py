"""Forms that columns may be staged in: exact, or an error; whatever part of an array they are given."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.config.source import ColumnRules
from dblog_core.model.events import TableChanges, Transaction, changes_schema
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.value_forms import (
    FORMS,
    FormFault,
    digits,
    form_of,
    forms_for,
    shape_to_read,
)

TABLE = TableName("shop", "t")


@given(st.data(), st.integers(1, 38))
def test_decimals_become_every_digit_of_their_scale(data: st.DataObject, precision: int) -> None:
    scale = data.draw(st.integers(0, precision))
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: Decimal(f"{n}e-{scale}"))
    values = data.draw(st.lists(st.none() | numbers, max_size=9))
    array = pa.array(values, pa.decimal128(precision, scale))
    start = data.draw(st.integers(0, len(values)))
    expected = [None if value is None else f"{value:.{scale}f}" for value in values]
    assert digits(array).to_pylist() == expected
    assert digits(array.slice(start)).to_pylist() == expected[start:]
    assert FORMS["double"].convert(array).to_pylist() == [None if text is None else float(text) for text in expected]


@given(st.integers(-(838 * 3600 + 59 * 60 + 59) * 10**6, (838 * 3600 + 59 * 60 + 59) * 10**6), st.integers(0, 6))
def test_times_become_microseconds_with_their_sign(micros: int, scale: int) -> None:
    micros -= micros % 10 ** (6 - scale)
    seconds, fraction = divmod(abs(micros), 10**6)
    time_text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    time_text += f".{fraction:06d}"[: scale + 1] if scale else ""
    array = pa.array(["-" * (micros < 0) + time_text, None])
    assert FORMS["microseconds"].convert(array).to_pylist() == [micros, None]


@pytest.mark.parametrize(
    ("form", "values", "why"),
    [
        ("double", ["1", "1" + "0" * 309], "beyond the range of a double"),
        ("double", ["0.5", "0." + "0" * 400 + "1"], "beyond the range of a double"),
        ("double", ["1", "nan"], "'nan' is no number"),
        ("double", ["1", " 1"], "' 1' is no number"),
        ("double", ["1", ""], "'' is no number"),
        (
            "bigint",
            pa.array([Decimal(1), Decimal(2**63)], pa.decimal128(20, 0)),
            "9223372036854775808 is beyond 64 bits",
        ),
        ("microseconds", ["00:00:00", "1 day"], "'1 day' is no time"),
    ],
)
def test_what_a_form_does_not_hold_is_told_with_its_row(form: str, values: Any, why: str) -> None:
    with pytest.raises(FormFault, match=why) as raised:
        FORMS[form].convert(pa.array(values) if isinstance(values, list) else values)
    assert raised.value.row == 1


def test_forms_are_those_of_a_columns_type() -> None:
    kinds_by_source = {
        "decimal(10,2)": pa.decimal128(10, 2),
        "bigint unsigned": pa.decimal128(20, 0),
        "decimal(65,30)": pa.string(),
        "numeric": pa.string(),
        "numeric[]": pa.string(),
        "time(6)": pa.string(),
        "time without time zone": pa.string(),
        "time with time zone": pa.string(),
        "timestamp(3) without time zone": pa.timestamp("us"),
        "daterange": pa.string(),
        "datetime": pa.string(),
        "blob": pa.binary(),
        "int": pa.int32(),
    }
    forms_by_source = {source: forms_for(Column("c", source, kind)) for source, kind in kinds_by_source.items()}
    assert forms_by_source == {
        "decimal(10,2)": ["double", "text"],
        "bigint unsigned": ["double", "text", "bigint"],
        "decimal(65,30)": ["double", "text"],
        "numeric": ["double", "text"],
        "numeric[]": [],
        "time(6)": ["microseconds"],
        "time without time zone": ["microseconds"],
        "time with time zone": [],
        "timestamp(3) without time zone": ["text", "or_null"],
        "daterange": [],
        "datetime": ["text", "or_null"],
        "blob": ["base64", "hex"],
        "int": [],
    }


def test_the_configuration_knows_the_forms() -> None:
    forms_of_schema = ColumnRules.model_json_schema()["properties"]["staged_as"]["additionalProperties"]["enum"]
    assert set(forms_of_schema) == FORMS.keys()


def test_shapes_of_one_fingerprint_have_one_form() -> None:
    """A column may become another that is staged alike, without a new shape: log and chunk must still agree."""
    shapes = [Column("c", source, pa.string()) for source in ("decimal(65,30)", "varchar(80)")]
    assert {form_of(column, {"c": "double"}) for column in shapes} == {"double"}


def test_moments_are_text_from_the_source_on_and_never_in_a_key() -> None:
    columns = tuple(Column(name, "datetime(6)", pa.timestamp("us")) for name in ("k", "c", "d"))
    schema = TableSchema(TABLE, columns, ("k",))
    rules = {"shop.t": ColumnRules(staged_as={"k": "text", "c": "text"})}
    assert [c.type for c in shape_to_read(schema, rules).columns] == [
        pa.timestamp("us"),
        pa.string(),
        pa.timestamp("us"),
    ]
    rules = {"shop.t": ColumnRules(staged_as={"k": "or_null", "c": "or_null"})}
    assert shape_to_read(schema, rules).fingerprint == schema.fingerprint
    assert [c.or_null for c in shape_to_read(schema, rules).columns] == [False, True, False]
    assert shape_to_read(schema, {}) is schema and shape_to_read(schema, {"shop.t": ColumnRules()}) is schema


def test_changes_before_one_that_has_no_form_stay_and_it_is_told_with_its_place() -> None:
    schema = TableSchema(TABLE, (Column("id", "int", pa.int32()), Column("n", "decimal(65,0)", pa.string())), ("id",))
    rules = Rules({"shop.t": ColumnRules(staged_as={"n": "double"})})
    images = [{"id": n, "n": value} for n, value in enumerate(("1", "2", "9" * 400))]
    rows = [
        {
            "sequence": n,
            "transaction": n,
            "op": "c",
            "key_only": False,
            "unchanged": None,
            "before": None,
            "after": image,
        }
        for n, image in enumerate(images)
    ]
    names = changes_schema(schema).names
    batch = pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in names} for row in rows], changes_schema(schema)
    )
    places = tuple(Transaction(f"t{n}", f"file:{n}", 1) for n in range(3))
    fine, unreadable = rules.changes(TableChanges(schema, batch), places)
    assert unreadable is not None and (unreadable.sequence, unreadable.transaction, unreadable.table) == (2, 2, TABLE)
    assert unreadable.why.startswith("shop.t at file:2 (transaction t2): column n: 999")
    assert "staged_as" in unreadable.fix and "start the capture again" in unreadable.fix
    assert [row["after"]["n"] for row in fine.batch.to_pylist()] == [1.0, 2.0]
    assert fine.schema.columns[1].type == pa.float64()
