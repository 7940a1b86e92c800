"""The stack in containers is the local one: docker/ beside what dblog_core.local starts its servers with.

No container runs here: settings are read, and linted. The scripts are run by tests/integration/test_containers.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from numba.core import caching
from typer.testing import CliRunner

from dblog_core import __version__
from dblog_core.cli import app
from dblog_core.config.loader import load
from dblog_core.local.packages import kafka_jars, versitygw
from dblog_core.local.servers import airflow_settings, kafka, spark_cluster, zookeeper
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.monitoring.metrics import GAUGES
from dblog_core.rows.shipped_kernels import ShippedKernels
from tests.unit.container_files import COMPOSE, DOCKER, ROOT, SERVICES, TEXT, our_commands

BUILT = {f"dblog/{target}:{__version__}": target for target in ("dblog", "airflow")}


PROFILES = {"mysql", "mariadb", "postgres", "zookeeper", "spark", "airflow", "kafka", "s3", "grafana"}


_PINNED = re.compile(r"[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}")


_VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(:[?-])?([^}]*)\}")


_SECRET = re.compile(r"PASSWORD|SECRET|FERNET")


def _dockerfile() -> str:
    return (DOCKER / "Dockerfile").read_text()


def _environment(service: str) -> dict[str, str]:
    environment: dict[str, str] = SERVICES[service]["environment"]
    return environment


def _command(service: str) -> dict[str, str]:
    """The settings among the arguments of a database server."""
    options = [word.removeprefix("--").removeprefix("-c") for word in SERVICES[service]["command"]]
    return dict(option.split("=", 1) for option in options)


def test_the_profiles_are_the_ones_that_the_page_names() -> None:
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == PROFILES
    page = (ROOT / "docs" / "deployment.md").read_text()
    assert [profile for profile in PROFILES if f"| `{profile}` |" not in page] == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_limited_watched_and_reached_from_this_machine_alone(name: str) -> None:
    service = SERVICES[name]
    if target := BUILT.get(service["image"]):
        assert service["cap_drop"] == ["ALL"], "ours run as a user of their own"
        assert service["build"]["target"] == target and f"\nFROM base AS {target}\n" in _dockerfile()
    else:
        assert _PINNED.fullmatch(service["image"])
    limits = service["deploy"]["resources"]["limits"]
    assert limits["cpus"] and limits["memory"]
    once = service["restart"] == "no"
    assert once or service["restart"] == "unless-stopped"
    assert once or service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    mounted = [volume.split(":")[0] for volume in service.get("volumes", [])]
    assert all(part in COMPOSE["volumes"] or (DOCKER / part).exists() for part in mounted)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_those_that_start_with_it(name: str) -> None:
    """Compose refuses a service that waits for one whose profile is not asked for, unless it need not be there."""
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert SERVICES[other]["profiles"] == SERVICES[name]["profiles"] or not how.get("required", True)
        once = SERVICES[other]["restart"] == "no"
        assert once == (how["condition"] == "service_completed_successfully")


def test_what_an_image_runs_belongs_to_root_and_only_volumes_are_written() -> None:
    assert "chown" not in _dockerfile()
    stages = _dockerfile().split("\nFROM ")
    final_stages = [stage for stage in stages if re.match(r"base AS (airflow|dblog)\n", stage)]
    assert len(final_stages) == 2 and all("\nUSER 10001:10001\n" in stage for stage in final_stages)
    variables = dict(re.findall(r"(\w+)=(/\S+)", _dockerfile()))
    assert variables["DBLOG_SHIPPED_DIR"].startswith("/opt/dblog/")
    assert variables["DBLOG_CACHE_DIR"].startswith("/var/lib/dblog/")
    ours = [service for service in SERVICES.values() if service["image"] == f"dblog/dblog:{__version__}"]
    assert len(ours) >= 9
    for service in ours:
        assert service["read_only"] is True
        assert {volume.split(":")[-1] for volume in service["volumes"]} == {"ro", "/var/lib/dblog", "/tmp"}


def test_numba_finds_the_class_that_reads_an_images_kernels() -> None:
    (names,) = re.findall(r"NUMBA_CACHE_LOCATOR_CLASSES=(\S+)", _dockerfile())
    first, second = names.split(",")
    module, _, name = first.rpartition(".")
    assert getattr(importlib.import_module(module), name) is ShippedKernels
    assert getattr(caching, second) is caching.UserProvidedCacheLocator


def test_every_image_that_ours_are_built_from_is_pinned() -> None:
    stages = re.findall(r"^FROM (\S+)(?: AS (\w[\w-]*))?$", _dockerfile(), re.MULTILINE)
    names = {name for _, name in stages}
    assert [image for image, _ in stages if image not in names and not _PINNED.fullmatch(image)] == []
    copied = set(re.findall(r"--from=(\S+)", _dockerfile()))
    assert copied <= names


def test_no_secret_has_a_default_and_each_is_asked_for() -> None:
    defaults: dict[str, set[str]] = {}
    for name, how, message in _VARIABLE.findall(TEXT):
        defaults.setdefault(name, set()).add(how)
        assert how != ":?" or message, f"{name}: says what is missing"
    secret = {name for name in defaults if _SECRET.search(name)}
    assert all(defaults[name] == {":?"} for name in secret)
    assert all(defaults[name] == {":-"} for name in defaults.keys() - secret)
    example = (DOCKER / ".env.example").read_text()
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == secret
    assert [name for name in defaults if name not in example] == []
    assert not re.search(r'(PASSWORD|SECRET|KEY): (?!"?\$\{|dblog$)', TEXT, re.MULTILINE)


def test_passwords_are_made_once_for_the_user_alone(tmp_path: Path) -> None:
    (tmp_path / ".env.example").write_text((DOCKER / ".env.example").read_text())
    make = [sys.executable, str(DOCKER / "make-env"), str(tmp_path)]
    assert subprocess.run(make, check=False).returncode == 0
    env_text = (tmp_path / ".env").read_text()
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    values = dict(re.findall(r"^(\w+)=(.*)$", env_text, re.MULTILINE))
    assert all(len(value) >= 32 for value in values.values()) and len(set(values.values())) == len(values)
    assert len(values["AIRFLOW_JWT_SECRET"]) >= 64
    assert subprocess.run(make, check=False, capture_output=True).returncode == 1
    assert (tmp_path / ".env").read_text() == env_text


@pytest.mark.parametrize("server", [MysqlServer, MariadbServer, PostgresServer], ids=lambda server: server.kind)
def test_a_database_has_the_settings_of_the_local_one(server: Any) -> None:
    assert _command(server.kind) == server.shared
    assert server.shared.items() <= server.settings.items()


def test_the_ensemble_has_the_settings_of_the_local_one() -> None:
    of_image = {
        "ZOO_TICK_TIME": "tickTime",
        "ZOO_INIT_LIMIT": "initLimit",
        "ZOO_SYNC_LIMIT": "syncLimit",
        "ZOO_MAX_CLIENT_CNXNS": "maxClientCnxns",
        "ZOO_ADMINSERVER_ENABLED": "admin.enableServer",
        "ZOO_4LW_COMMANDS_WHITELIST": "4lw.commands.whitelist",
    }
    for number in ("1", "2", "3"):
        environment = _environment(f"zoo{number}")
        extra = dict(entry.split("=", 1) for entry in environment["ZOO_CFG_EXTRA"].split())
        assert {name: environment[image] for image, name in of_image.items()} | extra == zookeeper.SETTINGS
        assert environment["ZOO_MY_ID"] == number and f"server.{number}=zoo{number}:" in environment["ZOO_SERVERS"]


def test_the_broker_has_the_settings_of_the_local_one() -> None:
    environment = _environment("kafka")
    assert {name: environment["KAFKA_" + name.upper().replace(".", "_")] for name in kafka.SETTINGS} == kafka.SETTINGS
    assert environment["CLUSTER_ID"] == kafka.CLUSTER


def test_the_cluster_has_the_settings_of_the_local_one() -> None:
    for service, entry in (("spark-master", spark_cluster.MASTER), ("spark-worker", spark_cluster.WORKER)):
        assert spark_cluster.SETTINGS.items() <= _environment(service).items()
        assert SERVICES[service]["entrypoint"] == ["spark-class", entry]
    assert SERVICES["spark-worker"]["deploy"]["replicas"] == 2


def _options() -> dict[str, dict[str, Any]]:
    """All that Airflow can be told, by its own list."""
    airflow = Path(str(distribution("apache-airflow-core").locate_file("airflow/config_templates/config.yml")))
    sections: dict[str, dict[str, Any]] = yaml.safe_load(airflow.read_text())
    return {section: {**entry["options"]} for section, entry in sections.items()}


def test_airflow_has_the_settings_of_the_local_one_and_none_that_it_does_not_know() -> None:
    image = dict(re.findall(r"(AIRFLOW__\w+)=(\S+)", _dockerfile()))
    known_options = {
        **_options(),
        "core": {**_options()["core"], "simple_auth_manager_users": {}, "simple_auth_manager_passwords_file": {}},
    }
    services = [name for name, service in SERVICES.items() if service["image"] == f"dblog/airflow:{__version__}"]
    assert len(services) == 5
    for service in services:
        environment = {**image, **_environment(service)}
        given_options = {
            tuple(n.lower().split("__")[1:]): value for n, value in environment.items() if n.startswith("AIRFLOW__")
        }
        assert [place for place in given_options if place[1] not in known_options[place[0]]] == []
        local_options = {
            (part, name): v for part, options in airflow_settings.SETTINGS.items() for name, v in options.items()
        }
        assert local_options.items() <= given_options.items()


def test_images_of_servers_are_of_the_local_versions() -> None:
    tags = {name: re.sub(r"^[^:]+:v?|@.*", "", service["image"]) for name, service in SERVICES.items()}
    page = (ROOT / "docs" / "operations.md").read_text()
    (mysql, mariadb), (postgres, _) = re.findall(r"^### .*\(tested with (\S+) and (\S+)\)$", page, re.MULTILINE)
    for kind, tested in (("mysql", mysql), ("mariadb", mariadb), ("postgres", postgres)):
        assert tags[kind].startswith(f"{tested}.")
    broker = next(jar for jar in kafka_jars.JARS if jar.name == "kafka_2.13")
    jar = next(Path(str(distribution("pyspark").locate_file("pyspark/jars"))).glob("zookeeper-[0-9]*.jar"))
    assert tags["kafka"] == broker.version and tags["s3"] == versitygw.VERSION
    assert {tags[f"zoo{number}"] for number in (1, 2, 3)} == {jar.stem.removeprefix("zookeeper-")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11" and "FROM python:3.11." in _dockerfile()


@pytest.mark.parametrize("image", ["dblog", "airflow"])
def test_the_lock_of_an_image_is_part_of_the_lock_that_is_tested(image: str) -> None:
    def pins(file: Path) -> dict[str, frozenset[str]]:
        text = re.sub(r"^\s*#.*$", "", file.read_text(), flags=re.MULTILINE)
        entries = re.split(r"\n(?=[a-z0-9])", text.strip())
        return {entry.split()[0]: frozenset(re.findall(r"sha256:[0-9a-f]{64}", entry)) for entry in entries}

    our_pins = pins(DOCKER / image / "requirements.txt")
    tested = pins(ROOT / "requirements.txt")
    assert all(our_pins.values()) and [pin for pin in our_pins if our_pins[pin] != tested.get(pin)] == []
    names = {pin.split("==")[0] for pin in our_pins}
    needed = {"pyspark", "delta-spark", "setuptools", *({"apache-airflow", "asyncpg"} if image == "airflow" else ())}
    assert needed <= names and not names & {"pytest", "mypy", "ruff", "moto"}


def test_what_the_images_copy_is_let_into_their_build() -> None:
    allowed = set(re.findall(r"^!(.+)$", (DOCKER / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    sources = [
        word
        for line in re.findall(r"^COPY (?!.*--from)(.+)$", _dockerfile(), re.MULTILINE)
        for word in shlex.split(line)[:-1]
        if not word.startswith("--")
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(source == entry or source.startswith(f"{entry}/") for entry in allowed)


@pytest.mark.parametrize("file", sorted((DOCKER / "config").glob("*.toml")), ids=lambda file: file.stem)
def test_a_configuration_of_the_stack_names_what_the_services_set(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = file.stem.removeprefix("shop_")
    environment = _environment(f"capture-{kind}")
    assert environment["DBLOG_CONFIG"] == f"/etc/dblog/{file.name}"
    for name, value in environment.items():
        monkeypatch.setenv(name, _VARIABLE.sub(lambda match: match[3] if match[2] == ":-" else "secret", value))
    config = load(file)
    assert (config.source.kind, config.source.host, config.source.database) == (kind, kind, "shop")
    assert config.source.name == file.stem and config.airflow.capture == "watch"
    assert config.spark.master == "local[2]" and config.s3.endpoint == "http://s3:7070"


@pytest.mark.parametrize(("name", "arguments"), list(our_commands()))
def test_a_command_is_one_of_ours_with_options_that_there_are(name: str, arguments: list[str]) -> None:
    help_result = CliRunner().invoke(app, [arguments[0], "--help"])
    assert help_result.exit_code == 0
    assert [word for word in arguments if word.startswith("--") and word not in help_result.stdout] == []


def _metrics(expression: str) -> set[str]:
    return set(re.findall(r"\bdblog_\w+", expression))


def test_dashboard_and_alerts_ask_for_metrics_that_there_are() -> None:
    known_metrics = {"dblog_up", *(f"dblog_{gauge.name}" for gauge in GAUGES)}
    board = json.loads((DOCKER / "grafana" / "dashboards" / "dblog.json").read_text())
    shown_metrics = {
        name for panel in board["panels"] for target in panel["targets"] for name in _metrics(target["expr"])
    }
    assert shown_metrics == known_metrics, "each metric has its place on the dashboard"
    rules = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    assert {name for rule in rules for name in _metrics(rule["expr"])} <= known_metrics
    labels = {f"dblog_{gauge.name}": {"source", *gauge.labels} for gauge in GAUGES} | {"dblog_up": {"source"}}
    for panel in board["panels"]:
        for target in panel["targets"]:
            (name, *_) = sorted(_metrics(target["expr"]))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels[name]
    for rule in rules:
        name = re.findall(r"dblog_\w+", rule["expr"])[0]
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels[name]
    (job,) = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert SERVICES[host]["command"][-1] == f"0.0.0.0:{port}"


def test_the_linters_find_nothing() -> None:
    done = subprocess.run([ROOT / "tools" / "lint-docker"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("linter", "name", "text"),
    [
        (["hadolint"], "Dockerfile", "FROM debian\nRUN cd /tmp && apt-get install curl\n"),
        (["shellcheck"], "script", "#!/usr/bin/env bash\nrm -rf $1/*\n"),
        (
            ["check-jsonschema", "--builtin-schema", "vendor.compose-spec"],
            "compose.yaml",
            "services: {a: {of: b}}\n",
        ),
        (
            ["kubernetes-validate", "--strict"],
            "a.yaml",
            "apiVersion: v1\nkind: Pod\nspec: {of: []}\n",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_linter_refuses_what_is_wrong(linter: list[str], name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    program = Path(sys.executable).with_name(linter[0])
    done = subprocess.run([program, *linter[1:], tmp_path / name], check=False, capture_output=True, text=True)
    assert done.returncode != 0 and done.stdout + done.stderr


def test_what_the_steps_of_an_image_call_is_on_its_path() -> None:
    path = re.search(r"\bPATH=(\S+)", _dockerfile())[1]  # type: ignore[index]
    assert path.split(":")[:2] == ["/opt/dblog/venv/bin", "/opt/java/openjdk/bin"]
    programs = (
        "bash",
        "find",
        "groupadd",
        "install",
        "touch",
        "useradd",
    )
    assert [name for name in programs if not shutil.which(name, path=path)] == []
    steps = "".join(step.read_text() for step in (DOCKER / "steps").iterdir())
    assert [name for name in programs if not re.search(rf"\b{name}\b", steps)] == []


def test_what_is_run_may_be_run() -> None:
    folders = [DOCKER / name for name in ("steps", "dblog", "airflow", "init")]
    programs = [program for folder in folders for program in folder.iterdir() if not program.suffix]
    assert len(programs) >= 9 and [program for program in programs if not os.access(program, os.X_OK)] == []


def test_what_an_image_runs_of_ours_while_it_is_built_is_there() -> None:
    calls = re.findall(r"from ([\w.]+) import (\w+); \2\.(\w+)\(\)", (DOCKER / "steps" / "package").read_text())
    assert len(calls) == 1
    for package, module, function in calls:
        assert callable(getattr(importlib.import_module(f"{package}.{module}"), function))
