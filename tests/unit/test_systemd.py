"""The units in docker/systemd start what there is, and stop it as it wants to be stopped."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dblog_core.cli import app

UNITS = sorted((Path(__file__).parents[2] / "docker" / "systemd").glob("*.service"))


def test_there_is_one_for_each_command_that_runs_until_it_is_stopped() -> None:
    assert [unit.name for unit in UNITS] == [
        f"dblog-{name}@.service" for name in ("capture", "merge", "relay", "serve")
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_its_command_is_one_of_ours_with_options_that_there_are(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of systemd have capitals
    parser.read(unit)
    service = parser["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/dblog") and arguments[:2] == ["--config", "/etc/dblog/%i.toml"]
    command, *rest = arguments[2:]
    options = [word for word in rest if word.startswith("--")]
    assert [word for word in rest if word not in options] == (["%j"] if command == "relay" else []), "the output's name"
    help_result = CliRunner().invoke(app, [command, "--help"])
    assert help_result.exit_code == 0
    assert all(option in help_result.stdout for option in options)
    assert service["KillSignal"] == "SIGTERM" and service["Restart"] == "always", "a stop is clean, a fault is no end"
    assert (service["UMask"], service["NoNewPrivileges"]) == ("0077", "yes")
    # Kernels and jars are code: root's own, in /var/cache/dblog, must not come from a directory of the account.
    assert (service["CacheDirectory"], service["CacheDirectoryMode"]) == ("dblog-service", "0700")
    assert service["Environment"] == "DBLOG_CACHE_DIR=%C/dblog-service NUMBA_CACHE_DIR=%C/dblog-service/kernels"
    assert service["CapabilityBoundingSet"] == "" and service["PrivateDevices"] == service["LockPersonality"] == "yes"
    assert (service["ProtectSystem"], service["ProtectHome"], service["PrivateTmp"]) == ("strict", "yes", "yes")
    assert set(service["RestrictAddressFamilies"].split()) == {"AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"}
    assert service["User"] == service["Group"] == "dblog" and service["ReadWritePaths"] == "/var/lib/dblog"
    assert "MemoryDenyWriteExecute" not in service, "kernels are compiled while a program runs"
