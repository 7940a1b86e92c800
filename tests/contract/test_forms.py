"""Columns that are staged in another form than the usual one: the same through log and chunk, and in row hashes."""

from __future__ import annotations

import base64
import datetime as dt
import re
from contextlib import closing
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.config.source import ColumnRules
from dblog_core.errors import ValueOutOfRange
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.monitoring.preflight import form_problems
from dblog_core.rows import column_rule_faults
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import HASH
from dblog_core.rows.value_forms import FORMS
from dblog_core.wiring import open_source
from tests.contract import every_type
from tests.contract.keyed import shape
from tests.contract.printed import print_columns
from tests.contract.test_every_type import start
from tests.contract.test_generated_values import WHOLE, fill, same
from tests.contract.test_source import create, log, run
from tests.fix_servers import Database
from tests.plain_hashes import of_rows

BEYOND = {"n", "d65_0"}
"""Columns whose generated values are beyond a double, or need no other form."""


def form_rules(schema: TableSchema, form: str) -> dict[str, ColumnRules]:
    """The rules under which all columns that it fits have a form."""
    fitting = {c.name: form for c in schema.columns if FORMS[form].fits(c) and c.name not in {*schema.key, *BEYOND}}
    assert fitting, f"no column of {schema.table} can be staged as {form}"
    return {str(schema.table): ColumnRules.model_validate({"staged_as": fitting})}


def stage_rows(source: Source, position: str, rules: Rules) -> dict[Any, dict[str, Any]]:
    """The rows that the log has, by key, as they are staged."""
    rows_by_id = {}
    for batch in log(source, position):
        for changes in batch.changes:
            formed, unreadable = rules.changes(changes, batch.transactions)
            assert unreadable is None, unreadable
            for row in formed.batch.to_pylist():
                rows_by_id[row["after"]["id"]] = row["after"]
    return rows_by_id


def first_refusal(source: Source, position: str, rules: Rules) -> str:
    """Why the rows that the log has cannot be staged, as is told of the first."""
    changes_and_transactions = [
        (changes, batch.transactions) for batch in log(source, position) for changes in batch.changes
    ]
    reasons = [signal.why for each in changes_and_transactions if (signal := rules.changes(*each)[1]) is not None]
    return reasons[0]


def test_log_chunk_and_hash_agree_on_values_of_any_seed_in_every_form(
    database: Database, source_config: Config, source: Source, reader: ChunkReader, soak_seed: int
) -> None:
    every_type.create(database)
    position = start(database, source)
    fill(database, soak_seed)
    usual = {row["id"]: row for row in reader.read(shape(database, reader), **WHOLE).rows.to_pylist()}
    for form in FORMS.keys() - {"bigint"}:
        columns = form_rules(shape(database, reader), form)
        rules = Rules(columns)
        ruled = open_source(source_config.source.model_copy(update={"columns": columns}))
        with closing(ruled.open_reader()) as its_reader:
            schema = shape(database, its_reader)
            read = its_reader.read(schema, **WHOLE)
            rows = its_reader.hashes(schema, **WHOLE).rows.column(HASH).to_pylist()
        assert rows == of_rows(read, rules).rows.column(HASH).to_pylist(), f"{form}, seed {soak_seed}"
        logged = stage_rows(ruled, position, rules)
        printed_by_id = {int(row["id"] or ""): row for row in print_columns(database, schema)}
        for row in rules.rows(schema, read.rows).to_pylist():
            key = row["id"]
            for name, value in row.items():
                same(logged[key][name], value, f"{name} of row {key} as {form}, seed {soak_seed}")
            for name in columns[str(schema.table)].staged_as:
                is_form_of(form, row[name], usual[key][name], printed_by_id[key][name])


def is_form_of(form: str, value: Any, usual: Any, expected_text: str | None) -> None:
    """By a way of its own. `told`: what the server prints of the column."""
    if usual is None:
        assert value is None
    elif form == "or_null":
        assert value == usual
    elif form == "base64":
        assert base64.b64decode(value) == usual
    elif form == "hex":
        assert bytes.fromhex(value) == usual
    elif form == "double":
        assert repr(value) == repr(float(usual) + 0.0)
    elif form == "text":
        assert value == expected_text
    else:
        hours, minutes, seconds = usual.removeprefix("-").split(":")
        whole, _, fraction = seconds.partition(".")
        total = ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 10**6 + int(f"{fraction:0<6}")
        assert value == (-total if usual.startswith("-") else total)


def big(database: Database) -> str:
    return "numeric(20,0)" if database.kind == "postgres" else "bigint unsigned"


def test_numbers_that_fit_are_staged_as_bigint_and_others_are_an_error_that_names_their_place(
    database: Database, source_config: Config, source: Source
) -> None:
    position = create(database, source, "a", f"id int PRIMARY KEY, b {big(database)}")
    run(database, f"INSERT INTO a VALUES (1, {2**63 - 1}), (2, 0), (3, NULL)")
    columns = {f"{database.schema}.a": ColumnRules.model_validate({"staged_as": {"b": "bigint"}})}
    rules = Rules(columns)
    with closing(open_source(source_config.source.model_copy(update={"columns": columns})).open_reader()) as reader:
        schema = reader.schema(TableName(database.schema, "a"))
        read = reader.read(schema, **WHOLE)
        rows = rules.rows(schema, read.rows).to_pylist()
        assert rows == [{"id": 1, "b": 2**63 - 1}, {"id": 2, "b": 0}, {"id": 3, "b": None}]
        assert stage_rows(source, position, rules) == {row["id"]: row for row in rows}
        row_hashes = reader.hashes(schema, **WHOLE).rows.column(HASH).to_pylist()
        assert row_hashes == of_rows(read, rules).rows.column(HASH).to_pylist()
        run(database, "INSERT INTO a VALUES (4, 1)", f"UPDATE a SET b = {2**63} WHERE id = 2")
        with pytest.raises(ValueOutOfRange, match=f"a: column b: {2**63} is beyond 64 bits"):
            rules.rows(schema, reader.read(schema, **WHOLE).rows)
    why = first_refusal(source, position, rules)
    assert re.search(rf"a at \S+ \(transaction .+\): column b: {2**63} is beyond 64 bits", why)


def test_check_refuses_a_form_that_does_not_fit_a_column(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    create(database, source, "a", "id int PRIMARY KEY, v varchar(9), n decimal(10,2), i int")
    schema = shape(database, reader)
    forms_by_column = {"id": "double", "v": "double", "n": "bigint", "i": "text", "gone": "hex"}
    rules = ColumnRules(staged_as=forms_by_column)  # type: ignore[arg-type]
    table = str(schema.table)
    names = [c.name for c in schema.columns]
    unfit = column_rule_faults.of_table(table, names, schema.key, {table: rules})
    problems = {p.what.partition("staged_as: ")[2]: p.fix for p in [*form_problems(schema, rules), *unfit]}
    problems_text = " | ".join(f"{what}; {fix}" for what, fix in problems.items())
    assert "id belongs to the key" in problems_text and "has no column gone" in problems_text
    assert "and double is for decimals; remove it" in problems_text and "i is int" in problems_text
    assert "and bigint is for whole decimals and unsigned 64 bits; use double or text" in problems_text
    assert len(problems) == 5
    assert not list(form_problems(schema, ColumnRules(staged_as={"n": "double"})))


def test_a_column_of_another_type_since_keeps_its_usual_form_where_it_has_no_other(
    database: Database, source: Source
) -> None:
    position = create(database, source, "a", "id int PRIMARY KEY, n decimal(10,2)")
    alter = "ALTER TABLE a ALTER n TYPE" if database.kind == "postgres" else "ALTER TABLE a MODIFY n"
    run(database, "INSERT INTO a VALUES (1, 1.5)", f"{alter} bigint", "INSERT INTO a VALUES (2, 7)")
    rules = Rules({f"{database.schema}.a": ColumnRules.model_validate({"staged_as": {"n": "double"}})})
    assert repr(stage_rows(source, position, rules)) == repr({1: {"id": 1, "n": 1.5}, 2: {"id": 2, "n": 7}})
    position = source.current_position()
    run(database, f"{alter} varchar(20)", "INSERT INTO a VALUES (3, '3.5')")
    assert stage_rows(source, position, rules) == {3: {"id": 3, "n": 3.5}}
    run(database, "INSERT INTO a VALUES (4, 'x')")
    why = first_refusal(source, position, rules)
    assert re.search(r"a at \S+ \(transaction .+\): column n: 'x' is no number", why)


ODD = {
    "mysql": ["0000-00-00", "2023-02-31", "2024-00-10", "2024-01-00", "9999-12-31", "0001-01-01"],
    "postgres": ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "9999-12-31", "2024-02-29"],
}
"""Dates without another form, and some that have one."""


@pytest.mark.parametrize("form", ["text", "or_null"])
def test_dates_that_have_no_other_form_are_staged_as_the_servers_text_or_null(
    database: Database, source_config: Config, source: Source, form: str
) -> None:
    on_postgres = database.kind == "postgres"
    kinds = ("date", "timestamp", "timestamptz") if on_postgres else ("date", "datetime(3)", "timestamp(6) NULL")
    names = ("d", "t", "z")
    position = create(
        database, source, "a", f"id int PRIMARY KEY, {', '.join(map(' '.join, zip(names, kinds, strict=True)))}"
    )
    odd_values = ODD["postgres" if on_postgres else "mysql"]
    expected_values = odd_values if on_postgres else ["0000-00-00", "2001-02-03 04:05:06.000007"]
    values = ", ".join(
        f"({n}, '{text}', '{text}', '{expected_values[n % len(expected_values)]}')" for n, text in enumerate(odd_values)
    )
    mode = "SET TimeZone = 'UTC'" if on_postgres else "SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'"
    run(database, mode, f"INSERT INTO a VALUES {values}", "INSERT INTO a (id) VALUES (99)")
    columns = {f"{database.schema}.a": ColumnRules.model_validate({"staged_as": dict.fromkeys(names, form)})}
    rules = Rules(columns)
    ruled = open_source(source_config.source.model_copy(update={"columns": columns}))
    with closing(ruled.open_reader()) as reader:
        schema = shape(database, reader)
        read = reader.read(schema, **WHOLE)
        assert reader.hashes(schema, **WHOLE).rows.column(HASH).to_pylist() == (
            of_rows(read, rules).rows.column(HASH).to_pylist()
        )
    assert not list(form_problems(schema, columns[f"{database.schema}.a"]))
    chunk = {row["id"]: row for row in rules.rows(schema, read.rows).to_pylist()}
    printed_by_id = {int(row["id"] or ""): row for row in print_columns(database, schema)}
    assert stage_rows(ruled, position, rules) == chunk
    if form == "text":
        assert {key: {name: row[name] for name in names} for key, row in chunk.items()} == {
            key: {name: row[name] for name in names} for key, row in printed_by_id.items()
        }
        assert chunk[0]["d"] == odd_values[0] and chunk[99]["d"] is None
        return
    days = [dt.date.fromisoformat(text) if n >= 4 else None for n, text in enumerate(odd_values)]
    assert {key: row["d"] for key, row in chunk.items()} == {**dict(enumerate(days)), 99: None}
    for n, day in enumerate(days):
        moment = None if day is None else dt.datetime.combine(day, dt.time())
        assert chunk[n]["t"] == moment
        if on_postgres:
            assert chunk[n]["z"] == (None if moment is None else moment.replace(tzinfo=dt.UTC))
        else:
            assert chunk[n]["z"] == (dt.datetime(2001, 2, 3, 4, 5, 6, 7, dt.UTC) if n % 2 else None)


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_no_number_in_a_decimal_has_its_form_as_a_double_and_as_text(
    database: Database, source_config: Config, source: Source
) -> None:
    position = create(database, source, "a", "id int PRIMARY KEY, n numeric(10,2), m numeric(10,2)")
    run(database, "INSERT INTO a VALUES (1, 'NaN', 'NaN'), (2, 1.5, -0.5)")
    columns = {"public.a": ColumnRules.model_validate({"staged_as": {"n": "double", "m": "text"}})}
    rules = Rules(columns)
    ruled = open_source(source_config.source.model_copy(update={"columns": columns}))
    with closing(ruled.open_reader()) as reader:
        schema = shape(database, reader)
        read = reader.read(schema, **WHOLE)
        rows = reader.hashes(schema, **WHOLE).rows.column(HASH).to_pylist()
    assert rows == of_rows(read, rules).rows.column(HASH).to_pylist()
    chunk = {row["id"]: row for row in rules.rows(schema, read.rows).to_pylist()}
    assert repr(chunk) == repr({1: {"id": 1, "n": float("nan"), "m": "NaN"}, 2: {"id": 2, "n": 1.5, "m": "-0.50"}})
    assert repr(stage_rows(ruled, position, rules)) == repr(chunk)
