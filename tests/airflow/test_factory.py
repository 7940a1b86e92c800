"""What the DAG files make of a directory of sources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from dblog_core.airflow.dag_factory import dags
from tests.airflow import parsing
from tests.airflow.parsing import DAGS
from tests.marked import mark_config

GOOD = """
[source]
name = "{name}"
kind = "mysql"
password = "${{A_SECRET_THAT_IS_NOT_SET}}"
database = "shop"
tables = {tables}
[staging]
path = "/nowhere/staging"
[state]
url = "sqlite:////nowhere/state.db"
[lake]
path = "/nowhere/lake"
[dump]
chunk_size = 7000
"""


def look(sources: Path) -> dict[str, Any]:
    """What one parse finds, in this process: to import Airflow takes longer than everything else here."""
    with patch.dict(os.environ, {"DBLOG_CONFIG_DIR": str(sources)}):
        return parsing.parse()


def look_afresh(sources: Path, home: Path) -> dict[str, Any]:
    """What one parse finds in a process of its own, as in Airflow's DAG processor."""
    env = {**os.environ, "AIRFLOW_HOME": str(home), "DBLOG_CONFIG_DIR": str(sources)}
    program = [sys.executable, parsing.__file__]
    result = subprocess.run(program, env=env, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def write(directory: Path, file: str, *, name: str, tables: list[str] | None = None, more: str = "") -> None:
    directory.mkdir(exist_ok=True)
    (directory / file).write_text(GOOD.format(name=name, tables=json.dumps(tables or ["shop.orders"])) + more)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tmp_path / "sources"


def test_a_source_gets_its_dags_without_secrets_drivers_or_connections(sources: Path, tmp_path: Path) -> None:
    write(sources, "shop.toml", name="shop")
    answer = look_afresh(sources, tmp_path)
    captures = ("capture", "capture_standby")
    lake = ("merge", "replay", "verify", "repair", "maintenance")
    assert set(answer["tasks"]) == {f"dblog_shop_{kind}" for kind in (*captures, "dump", *lake)}
    assert answer["tasks"]["dblog_shop_capture"] == {"capture": 100}
    periods = {name.removeprefix("dblog_shop_"): period for name, period in answer["periods"].items()}
    assert (periods["verify"], periods["repair"], periods["maintenance"]) == (604800.0, 86400.0, 86400.0)
    assert set(answer["tasks"]["dblog_shop_dump"]) == {"plan", "work", "complete", "close"}
    assert answer["drivers"] == []
    assert answer["error"] == ""


def test_a_merge_that_goes_on_all_the_time_has_a_standby(sources: Path) -> None:
    write(sources, "shop.toml", name="shop", more='[airflow]\nmerge = "continuous"\n')
    answer = look(sources)
    merges = {name: schedule for name, schedule in answer["schedules"].items() if "_merge" in name}
    assert merges == dict.fromkeys(("dblog_shop_merge", "dblog_shop_merge_standby"), "ContinuousTimetable")
    assert {answer["tasks"][name]["merge"] for name in merges} == {2}
    write(sources, "shop.toml", name="shop", more='[airflow]\nmerge = "batches"\n')
    schedules = look(sources)["schedules"]
    assert "dblog_shop_merge_standby" not in schedules and schedules["dblog_shop_merge"] == "AssetTriggeredTimetable"


def test_the_dump_form_has_the_parameters_of_the_contract_all_optional(sources: Path) -> None:
    write(sources, "a.toml", name="a", tables=["shop.orders", "shop.items"])
    write(sources, "b.toml", name="b", tables=["shop.*"])
    answer = look(sources)["params"]
    form = answer["dblog_a_dump"]
    rows = ["pks", "key_from", "key_to", "filters"]
    pace = ["chunk_size", "delay_seconds", "rows_per_second", "workers", "ranges", "adaptive", "max_retained"]
    assert list(form) == ["tables", *rows, *pace, "dry_run"]
    assert all("null" in schema["type"] for name, schema in form.items() if name not in ("tables", "dry_run"))
    assert "Captured: shop.orders, shop.items." in form["tables"]["description_md"]
    assert "7000" in form["chunk_size"]["description_md"]
    assert r"Captured: shop.\*." in answer["dblog_b_dump"]["tables"]["description_md"]


def test_a_broken_file_and_a_name_used_twice_cost_only_those_sources_their_dags(sources: Path) -> None:
    write(sources, "good.toml", name="good")
    write(sources, "one.toml", name="twin")
    write(sources, "two.toml", name="twin")
    (sources / "broken.toml").write_text("[source]\nnme = 1\n")
    answer = look(sources)
    assert {name.split("_")[1] for name in answer["tasks"]} == {"good"}
    for file in ("broken.toml", "one.toml", "two.toml"):
        assert file in answer["error"]
    assert "good.toml" not in answer["error"]


def test_what_reads_the_source_runs_in_its_pool_and_a_large_dump_is_approved(sources: Path) -> None:
    write(sources, "shop.toml", name="shop", more='[airflow]\npool = "shop_reads"\napprove_rows = 10\n')
    answer = look(sources)
    pools = answer["pools"]
    assert (pools["dblog_shop_verify"]["verify"], pools["dblog_shop_repair"]["repair"]) == ("shop_reads", "shop_reads")
    dump = pools["dblog_shop_dump"]
    assert {task for task, pool in dump.items() if pool == "shop_reads"} == {"work"}
    assert set(dump) == {"approve", "plan", "work", "complete", "close"}
    assert pools["dblog_shop_capture"] == {"capture": "default_pool"}, "a capture waits for no dump"


def test_a_capture_that_runs_elsewhere_is_watched_and_has_no_standby(sources: Path) -> None:
    write(sources, "shop.toml", name="shop", more='[airflow]\ncapture = "watch"\n')
    answer = look(sources)["tasks"]
    assert answer["dblog_shop_capture"] == {"capture": 0}, "a failed watch is told at once"
    assert "dblog_shop_capture_standby" not in answer and "dblog_shop_dump" in answer


def test_ended_runs_are_told_by_airflows_notifiers(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.py").write_text(
        "from airflow.sdk import BaseNotifier\n"
        "class Note(BaseNotifier):\n"
        "    def __init__(self, *, to):\n        super().__init__()\n"
        "    def notify(self, context): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    note = '[[airflow.notify]]\nnotifier = "{}"\ndags = ["dump", "verify"]\narguments = {{ {} }}\n'
    write(sources, "good.toml", name="good", more=note.format("notes.Note", 'to = "x"'))
    write(sources, "missing.toml", name="missing", more=note.format("no.such.Note", ""))
    write(sources, "other.toml", name="other", more=note.format("pathlib.Path", ""))
    write(sources, "wrong.toml", name="wrong", more=note.format("notes.Note", "whom = 1"))
    answer = look(sources)
    messages_by_name = {name: messages_by_name for name, messages_by_name in answer["told"].items() if messages_by_name}
    assert messages_by_name == {"dblog_good_dump": ["Note"], "dblog_good_verify": ["Note"]}
    assert len(answer["told"]) == 8, "the others cost their sources the DAGs"
    for file, reason in (("missing", "there is no no.such.Note"), ("other", "is no notifier"), ("wrong", "whom")):
        assert f"{file}.toml" in answer["error"] and reason in answer["error"]


def test_a_merge_that_takes_too_long_is_told(sources: Path) -> None:
    late = (
        '[airflow]\nmerged_within = "10m"\n[[airflow.notify]]\nnotifier = "airflow.sdk.BaseNotifier"\nwhen = "late"\n'
    )
    write(sources, "shop.toml", name="shop", more=late)
    write(sources, "nobody.toml", name="nobody", more='[airflow]\nmerged_within = "10m"\n')
    write(sources, "never.toml", name="never", more=late.replace('merged_within = "10m"\n', ""))
    answer = look(sources)
    deadlines_by_name = {name: deadlines for name, deadlines in answer["late"].items() if deadlines}
    assert deadlines_by_name == {"dblog_shop_merge": [["airflow.sdk.BaseNotifier", {}, 600.0]]}
    assert len(answer["late"]) == 8
    assert "[airflow] merged_within: tells nobody" in answer["error"]
    assert "[airflow] notify: waits for a limit" in answer["error"]


@pytest.mark.one_of(2)
def test_fifty_sources_are_parsed_faster_than_airflow_is_imported_and_none_has_anothers(
    sources: Path, tmp_path: Path
) -> None:
    for number in range(50):
        write(sources, f"s{number}.toml", name=f"s{number}", more=f'[airflow]\npool = "reads_{number}"\n')
    code = (
        "import runpy, time\n"
        f"runpy.run_path({str(DAGS / 'dblog.py')!r})\n"
        "first_seconds = time.process_time()\n"
        f"found = runpy.run_path({str(DAGS / 'dblog.py')!r})\n"
        "seconds = time.process_time() - first_seconds\n"
        "import_seconds = first_seconds - seconds\n"  # what any file of DAGs costs once
        "dags = {name: dag for name, dag in found.items() if name.startswith('dblog_')}\n"
        "import json\n"
        "of = lambda dag: [text for t in dag.tasks for text in (t.pool, str(getattr(t, 'config_file', '')),"
        " *(getattr(o, 'uri', '') for o in t.outlets))]\n"
        "ratio = seconds / import_seconds\n"
        "print(ratio, json.dumps({name: [dag.dag_id, *of(dag), *dag.tags] for name, dag in dags.items()}))"
    )
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "DBLOG_CONFIG_DIR": str(sources)}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    ratio, _, output = result.stdout.splitlines()[-1].partition(" ")
    dags = json.loads(output)
    assert len(dags) == 400
    assert float(ratio) < 1
    for name, words in dags.items():
        own_part = name.split("_")[1]
        named = {number for word in words for number in re.findall(r"(?<![a-z0-9])s\d+|reads_\d+", word)}
        assert named <= {own_part, f"reads_{own_part[1:]}"} and own_part in named, name
        assert name.split("_")[2] in words, "each has a tag for what it is for"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    answer = look(tmp_path / "missing")
    assert answer["tasks"] == {}
    assert "DBLOG_CONFIG_DIR" in answer["error"]


def test_no_serialized_dag_has_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in Airflow's database; whoever parses may have the variables set that the files name."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "notes_with_a_secret.py").write_text(
        "from airflow.sdk import BaseNotifier\n"
        "class Note(BaseNotifier):\n"
        "    def __init__(self, *, password):\n        super().__init__()\n        self.password = password\n"
        "    def notify(self, context): ...\n"
    )
    notify = [
        {"notifier": "notes_with_a_secret.Note", "when": when, "arguments": {"password": "{}"}}
        for when in ("failure", "dump")
    ]
    marked_config = mark_config(tmp_path, airflow={"notify": notify})
    (tmp_path / "sources").mkdir()
    text, variables = marked_config.with_variables()
    for name, secret in variables.items():
        monkeypatch.setenv(name, secret)
    (tmp_path / "sources" / "shop.toml").write_text(text)
    dags_by_name = dags(tmp_path / "sources")
    assert len(dags_by_name) == 8
    for dag in dags_by_name.values():
        assert marked_config.shown_in(json.dumps(DagSerialization.to_dict(dag), default=str)) == []
