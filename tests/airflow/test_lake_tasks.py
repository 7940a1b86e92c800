"""What the tasks on the lake make of a run's parameters and interval, and what they tell; no Airflow runs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from dblog_core.airflow import lake
from dblog_core.airflow.spark import on_connection
from dblog_core.config import Config
from dblog_core.errors import RequestError
from dblog_core.lake import LakeStatus, State, TableStatus, lake_at, own_directory
from dblog_core.verify.report import TableReport
from spark_jobs.record import Records

HOUR = dt.timedelta(hours=1)
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def run(params: dict[str, Any], begin: dt.datetime | None = None, end: dt.datetime | None = None) -> dict[str, Any]:
    return {"params": params, "data_interval_start": begin, "data_interval_end": end}


def test_an_interval_is_the_runs_unless_its_parameters_say_one() -> None:
    assert lake.ends(run({}, NOON, NOON + HOUR)) == ("2026-11-21T12:00:00+00:00", "2026-11-21T13:00:00+00:00")
    assert lake.ends(run({"from": "5", "to": ""}, NOON, NOON + HOUR)) == ("5", None)
    assert lake.ends(run({})) == lake.ends(run({}, NOON, NOON)) == (None, None)


def test_an_empty_form_asks_for_all_rows_of_all_tables() -> None:
    asked = lake.verify_request({"tables": None, "repair": False, "sample_rows": None, "rows_per_second": None})
    assert (asked.tables, asked.mend, asked.wish.sampled, asked.rate) == (None, False, False, 0)
    asked = lake.verify_request({"tables": ["a.b", ""], "repair": True, "sample_rows": 9, "rows_per_second": 70})
    assert (asked.tables, asked.mend, asked.wish.rows, asked.rate) == (("a.b",), True, 9, 70)


def test_what_differs_is_told_by_key_and_no_more_than_a_page_of_it() -> None:
    report = TableReport("shop.a", rows=50, missing=tuple(range(30)), different=((77, ("name",)),))
    assert lake.summary(report)["missing"] == list(range(lake.SHOWN)) and lake.summary(report)["missing_keys"] == 30
    line = lake.told(report)
    assert line.startswith("shop.a: 31 keys differ, 50 rows: missing 0; ") and line.endswith("and 11 more")
    assert lake.told(TableReport("shop.a", extra=(3,), different=((7, ("x", "y")),))).endswith(
        "extra 3; different 7 (x, y)"
    )
    assert lake.told(TableReport("shop.a", error="it has no key")) == "shop.a: it has no key"
    first = {"dump": "d1", "missing": [5], "extra": list(range(30)), "different": []}
    mended = TableReport("shop.a", repaired=first)
    assert lake.told(mended).startswith("shop.a: equal, 0 rows; mended by dump d1: missing 5; extra 0; ")
    shown = lake.summary(mended)["repaired"]
    assert (shown["missing"], shown["extra_keys"], len(shown["extra"])) == ([5], 30, lake.SHOWN)


def test_intervals_in_a_row_have_all_slices_whichever_is_the_first() -> None:
    day = dt.timedelta(days=1)
    numbers = [lake.slice_of(run({}, NOON + n * day), 30, day.total_seconds()) for n in range(90)]
    assert all(sorted(numbers[i : i + 30]) == list(range(1, 31)) for i in range(60))
    again = lake.slice_of(run({}, NOON + 5 * day), 30, day.total_seconds())
    assert again == numbers[5], "a run that is cleared repairs the same keys"


def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "postgres", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(tmp_path / "staging")},
            "state": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
            "lake": {"path": str(tmp_path / "lake")},
        }
    )


def test_tables_of_the_lake_are_named_or_matched(tmp_path: Path) -> None:
    given = config(tmp_path)
    with pytest.raises(RequestError, match=r"no table shop\.a") as none:
        lake.of_lake(given, ["shop.a"])
    assert "nothing is merged" in none.value.fix
    tables = {name: TableStatus(State.OK, None, 1, 9, 1) for name in ("shop.a", "shop.b1", "shop.b2")}
    Records(own_directory(lake_at(given.lake.path))).finish(LakeStatus(merge=1, tables=tables))
    assert lake.of_lake(given, ["shop.b*", "shop.b1", "shop.a"]) == ["shop.b1", "shop.b2", "shop.a"]
    with pytest.raises(RequestError, match=r"no table shop\.c") as missing:
        lake.of_lake(given, ["shop.a", "shop.c"])
    assert "shop.a, shop.b1, shop.b2" in missing.value.fix


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ('{"conn_type": "spark", "host": "local[2]"}', "local[2]"),
        ('{"conn_type": "spark", "host": "spark://10.0.0.1", "port": 7077}', "spark://10.0.0.1:7077"),
        ("spark://10.0.0.1:7077", "spark://10.0.0.1:7077"),
    ],
)
def test_spark_runs_where_the_connection_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: str, master: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DBLOG_SPARK", connection)
    assert on_connection(config(tmp_path)).spark.master == master


def test_a_missing_connection_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_DBLOG_SPARK", raising=False)
    with pytest.raises(AirflowException, match="dblog_spark"):
        on_connection(config(tmp_path))
