"""`dblog metrics`: what `status` tells, in the words of Prometheus."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dblog_core.config.settings import Config
from dblog_core.dumps.dump_records import DumpOptions, DumpState
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import StateUnavailable
from dblog_core.interfaces import LeaseInfo
from dblog_core.maintenance.disk_usage import Room
from dblog_core.maintenance.schedule import TableSize
from dblog_core.monitoring import metrics
from dblog_core.monitoring.metrics import GAUGES, Sources
from dblog_core.monitoring.source_status import (
    MergeProgress,
    OpenWindow,
    OutputInStatus,
    SourceStatus,
    TableInStatus,
)
from dblog_core.monitoring.storage_usage import MeasuredTable, RetentionStatus, StorageStatus
from dblog_core.state.recent_errors import RecentError
from dblog_core.verify.last_results import LastResult
from tests.certificates import authority
from tests.waiting import PATIENCE_SECONDS

DOCS = Path(__file__).parents[3] / "docs"
VERIFIED = LastResult(1_700_000_000_000_000, "3 keys differ", equal=False, rows=9, whole=True)
SIZE = TableSize("shop.a", files=2, bytes=77, rows=None, deleted=None, disk_files=3, disk_bytes=99)


def dump_in(state: DumpState) -> DumpStatus:
    return DumpStatus("d", state, ("shop.a",), DumpOptions(), None, "", "user", ())


STATUS = SourceStatus(
    source="shop",
    leader=LeaseInfo("host-1", 7),
    position="binlog.1:4",
    offset=42,
    lag_seconds=0.25,
    rows_per_second=None,
    tables=(TableInStatus("shop.a", "ok"), TableInStatus("shop.b", "stopped", verified=VERIFIED)),
    windows=(OpenWindow("shop.a", "d", 1.0), OpenWindow("shop.b", "d", 2.0)),
    dumps=tuple(map(dump_in, (DumpState.DONE, DumpState.RUNNING, DumpState.DONE))),
    merge=MergeProgress(40, 3.5),
    outputs=(
        OutputInStatus("search", "http", 40, 1.5, 2, "host-3"),
        OutputInStatus("files", "files", None, None, 0, None),
    ),
    errors=tuple(RecentError(at, at, 1, "merge", "no", "") for at in (9_000_000, 7_000_000)),
    storage=StorageStatus(
        {"log": Room(files=3, bytes=1000), "chunks": None}, (MeasuredTable(SIZE, ""),), RetentionStatus()
    ),
)


def config(name: str, root: Path) -> Config:
    return Config.model_validate(
        {
            "source": {"name": name, "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(root / "staging")},
            "state": {"url": f"sqlite:///{root}/{name}.db"},
            "lake": {"path": str(root / "lake")},
        }
    )


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by name, source and the other label's value, as Prometheus reads them."""
    return {
        (sample.name, sample.labels.pop("source"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_all_of_status_is_told_and_what_is_not_known_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_source_status(config: Config, _: object) -> SourceStatus:
        if config.source.name == "away":
            raise StateUnavailable("no answer", where="zookeeper", fix="start it")
        return STATUS

    monkeypatch.setattr(metrics, "read_source_status", read_source_status)
    registry = CollectorRegistry()
    registry.register(Sources([config("shop", tmp_path), config("away", tmp_path)]))
    samples_read = samples(generate_latest(registry).decode())
    assert {key: value for key, value in samples_read.items() if "away" in key} == {("dblog_up", "away"): 0}
    assert samples_read == {
        ("dblog_up", "away"): 0,
        ("dblog_up", "shop"): 1,
        ("dblog_leader", "shop"): 1,
        ("dblog_leader_epoch", "shop"): 7,
        ("dblog_lag_seconds", "shop"): 0.25,
        ("dblog_staged_offset", "shop"): 42,
        ("dblog_merged_offset", "shop"): 40,
        ("dblog_merge_lag_seconds", "shop"): 3.5,
        ("dblog_windows", "shop"): 2,
        ("dblog_dumps", "shop", "done"): 2,
        ("dblog_dumps", "shop", "running"): 1,
        ("dblog_tables", "shop", "ok"): 1,
        ("dblog_tables", "shop", "stopped"): 1,
        ("dblog_table_ok", "shop", "shop.a"): 1,
        ("dblog_table_ok", "shop", "shop.b"): 0,
        ("dblog_table_verified_timestamp_seconds", "shop", "shop.b"): 1_700_000_000,
        ("dblog_table_verified_equal", "shop", "shop.b"): 0,
        ("dblog_output_offset", "shop", "search"): 40,
        ("dblog_output_lag_seconds", "shop", "search"): 1.5,
        ("dblog_output_dead_letters", "shop", "search"): 2,
        ("dblog_output_dead_letters", "shop", "files"): 0,
        ("dblog_error_timestamp_seconds", "shop", "merge"): 9,
        ("dblog_staging_bytes", "shop", "log"): 1000,
        ("dblog_staging_files", "shop", "log"): 3,
        ("dblog_table_bytes", "shop", "shop.a"): 77,
        ("dblog_table_files", "shop", "shop.a"): 2,
    }


def test_each_metric_is_explained() -> None:
    page = (DOCS / "operations.md").read_text()
    explained = set(re.findall(r"^\| `dblog_([a-z_]+)`", page, flags=re.MULTILINE))
    assert explained == {"up", *(gauge.name for gauge in GAUGES)}


@pytest.fixture
def serve_metrics(tmp_path: Path) -> Iterator[Callable[..., tuple[str, subprocess.Popen[str]]]]:
    """Starts `dblog metrics` as a process; its address."""
    started: list[subprocess.Popen[str]] = []
    for name in ("one", "two"):
        (tmp_path / "sources").mkdir(exist_ok=True)
        (tmp_path / "sources" / f"{name}.toml").write_text(
            f'[source]\nname = "{name}"\nkind = "mysql"\ndatabase = "shop"\ntables = ["shop.*"]\n'
            f'[staging]\npath = "{tmp_path}/staging"\n[state]\nurl = "sqlite:///{tmp_path}/{name}.db"\n'
            f'[lake]\npath = "{tmp_path}/lake"\n'
        )

    def start(*arguments: str) -> tuple[str, subprocess.Popen[str]]:
        command = ["metrics", "--directory", str(tmp_path / "sources"), "--listen", "127.0.0.1:0", *arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "dblog_core.cli", *command], stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        started.append(process)
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"https?://\S+", line)
        assert match is not None, line + process.stderr.read()
        return match.group(), process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_they_are_served_until_a_signal(serve_metrics: Callable[..., Any]) -> None:
    address, process = serve_metrics()
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
        samples_read = samples(answer.read().decode())
    assert samples_read["dblog_up", "one"] == samples_read["dblog_up", "two"] == 1
    assert samples_read["dblog_leader", "one"] == 0
    process.terminate()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0


def test_tls_and_certificates_of_clients(serve_metrics: Callable[..., Any], tmp_path: Path) -> None:
    ca = authority(tmp_path / "ca", "DBLog tests")
    certificate, key = ca.sign("server", "127.0.0.1")
    address, _ = serve_metrics("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", ca.file)
    nobody = ssl.create_default_context(cafile=ca.file)
    with pytest.raises(OSError, match=r"(?i)certificate required|reset|EOF"):  # noqa: SIM117  (an answer would be a fault)
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS, context=nobody) as answer:
            answer.read()
    ssl_context = ssl.create_default_context(cafile=ca.file)
    ssl_context.load_cert_chain(*ca.sign("prometheus"))
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS, context=ssl_context) as answer:
        assert samples(answer.read().decode())["dblog_up", "one"] == 1


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (["--listen", "9178"], "'9178' is no HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "is no HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "a.pem"], "TLS needs both --tls-cert and --tls-key"),
        (["--listen", "192.0.2.1:9178"], "anybody who reaches 192.0.2.1:9178 could read"),
        (["--listen", "192.0.2.1:9178", "--insecure"], "cannot listen at 192.0.2.1:9178"),
    ],
)
@pytest.mark.thorough
def test_wrong_options_are_named(tmp_path: Path, arguments: list[str], expected_text: str) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(
        '[source]\nname = "shop"\nkind = "mysql"\ndatabase = "shop"\ntables = ["shop.*"]\n'
        f'[staging]\npath = "{tmp_path}/staging"\n[state]\nurl = "sqlite:///{tmp_path}/state.db"\n'
        f'[lake]\npath = "{tmp_path}/lake"\n'
    )
    command = [sys.executable, "-m", "dblog_core.cli", "--config", str(file), "metrics", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 2
    assert expected_text in done.stderr and "fix:" in done.stderr and "Traceback" not in done.stderr
