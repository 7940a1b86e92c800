"""No request reads rows by a column that a rule hides: which keys it brings would tell the values."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.airflow import params
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.config.source import SourceConfig
from dblog_core.dumps import dry_run, dump_store, work_loop
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.model.filters import Typed
from dblog_core.signals import inbox
from dblog_core.staging.reader import lines
from dblog_core.wiring import open_staging, open_state
from tests.fix_servers import Database
from tests.waiting import wait_until

pytestmark = pytest.mark.in_turn("source_kind")

GUESS = "DE5guess"
RULES = {"exclude": "photo", "mask": "iban", "hash": "email"}


def make(database: Database, path: Path, *, ruled: bool = True) -> Config:
    database.execute(
        "CREATE TABLE people (id int PRIMARY KEY, iban varchar(40), email varchar(40), photo varchar(40),"
        " city varchar(9))",
        "INSERT INTO people VALUES (1, 'DE1', 'a@b', 'x', 'Oslo'), (2, 'DE9', 'c@d', 'y', 'Rome')",
    )
    return with_rules(database.config(path, signals={"file": str(path / "requests.jsonl")}), database, ruled=ruled)


def with_rules(config: Config, database: Database, *, ruled: bool) -> Config:
    columns = {f"{database.schema}.people": {rule: [column] for rule, column in RULES.items()}} if ruled else {}
    source = SourceConfig.model_validate({**config.source.model_dump(), "columns": columns})
    return config.model_copy(update={"source": source})


@contextmanager
def capturing(config: Config) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def read_log(config: Config) -> list[Any]:
    return [line["key"] for line in lines(open_staging(config)) if line["op"] == "r"]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_each_way_to_request_rows_refuses_a_filter_by_a_hidden_column(
    database: Database, tmp_path: Path, rule: str
) -> None:
    config, column = make(database, tmp_path), RULES[rule]
    table = f"{database.schema}.people"
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("dblog_core").addHandler(handler)
    request = DumpRequest((table,), filters=((column, ">=", Typed(GUESS)),))
    from_airflow = params.request({"tables": [table], "filters": [f"{column} >= {GUESS}"]})
    try:
        for asked in (request, from_airflow):
            for carry_out in (submit, dry_run.plan):
                with pytest.raises(RequestError, match=rf"people.* hides {column} \({rule}\)") as refused:
                    carry_out(config, asked)
                assert GUESS not in str(refused.value)
        with capturing(config):
            condition = {"data-collection": table, "filter": f"{column} >= '{GUESS}'"}
            data = {"data-collections": [table], "additional-conditions": [condition]}
            signal = {"id": "s1", "type": "execute-snapshot", "data": data}
            with (tmp_path / "requests.jsonl").open("ab") as file:
                file.write(orjson.dumps(signal) + b"\n")

            def find_record() -> Any:
                state = open_state(config)
                try:
                    record = inbox.read_signal(state, inbox.node_name("s1"))
                    return record if record is not None and record.state.is_over else None
                finally:
                    state.close()

            record = wait_until(find_record, "the signal is refused")
    finally:
        logging.getLogger("dblog_core").removeHandler(handler)
    assert f"hides {column} ({rule})" in (record.error or "")
    assert record.dump is None
    assert GUESS not in f"{record.error}{log.getvalue()}"
    state = open_state(config)
    assert dump_store.list_dumps(state) == []
    state.close()
    assert read_log(config) == []


def test_a_rule_that_comes_after_a_request_ends_its_dump(database: Database, tmp_path: Path) -> None:
    config = make(database, tmp_path, ruled=False)
    request = DumpRequest((f"{database.schema}.people",), filters=(("iban", ">=", Typed("DE5")),))
    dump_id = submit(config, request)
    config = with_rules(config, database, ruled=True)
    with capturing(config):
        with pytest.raises(RequestError, match=r"hides iban \(mask\)"):
            work_loop.work(config, stop=threading.Event(), once=True, dump_id=dump_id)
        state = open_state(config)
        status = dump_store.read_dump(state, dump_id)
        state.close()
    assert status.state == "failed"
    assert "hides iban (mask)" in (status.error or "")
    assert "DE5" not in (status.error or "")
    assert read_log(config) == []


def test_a_filter_by_an_open_column_still_brings_its_rows(database: Database, tmp_path: Path) -> None:
    config = make(database, tmp_path)
    request = DumpRequest((f"{database.schema}.people",), filters=(("city", "=", Typed("Rome")),))
    dump_id = submit(config, request)
    with capturing(config):
        work_loop.work(config, stop=threading.Event(), once=True, dump_id=dump_id)
    assert read_log(config) == [{"id": 2}]
