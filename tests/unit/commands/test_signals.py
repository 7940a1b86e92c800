"""`dblog signals`: what scripts and people read of signals and of what became of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from dblog_core.cli import app
from dblog_core.config import loader
from dblog_core.errors import RequestError
from dblog_core.signals import inbox
from dblog_core.signals.message import Message
from dblog_core.wiring import open_state


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration without a server, whose inbox has a signal and a refusal."""
    file = tmp_path / "shop.toml"
    file.write_text(
        f'[source]\nname = "shop"\nkind = "mysql"\nport = 9\ndatabase = "shop"\ntables = ["shop.*"]\n'
        f'[staging]\npath = "{tmp_path}/staging"\n[state]\nurl = "sqlite:///{tmp_path}/state.db"\n'
        f'[lake]\npath = "{tmp_path}/lake"\n'
    )
    with closing(open_state(loader.load(file))) as state:
        inbox.put_signal(state, Message("one", "execute-snapshot", "{}"), channel="http", at_us=1_764_000_000_000_000)
        error = RequestError("a signal is not JSON", fix="give one")
        inbox.put_refusal(state, "bad", channel="file", at_us=1_764_000_001_000_000, error=error)
    return file


def test_signals_are_printed_for_scripts_as_they_always_were(file: Path) -> None:
    done = CliRunner().invoke(app, ["--config", str(file), "signals", "--json"])
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        '[{"id":"one","type":"execute-snapshot","channel":"http","state":"waiting","dump":null,"what":null,'
        '"error":null,"fix":null,"at":1764000000000000},'
        '{"id":"bad","type":"","channel":"file","state":"refused","dump":null,"what":null,'
        '"error":"a signal is not JSON","fix":"give one","at":1764000001000000}]\n'
    )


def test_signals_are_printed_for_people_with_what_is_to_be_done(file: Path) -> None:
    done = CliRunner().invoke(app, ["--config", str(file), "signals"])
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "AT ID TYPE CHANNEL STATE WHAT",
        "2025-11-24 16:00:00Z one execute-snapshot http waiting",
        "2025-11-24 16:00:01Z bad file refused",
        "bad: a signal is not JSON",
        "fix: give one",
    ]


def test_a_signal_of_a_caller_with_a_token_of_its_own_has_its_name(file: Path) -> None:
    with closing(open_state(loader.load(file))) as state:
        inbox.put_signal(state, Message("of", "pause-snapshot"), channel="http", at_us=1764000002000000, caller="ops")
    done = CliRunner().invoke(app, ["--config", str(file), "signals", "--json"])
    assert [signal.get("caller") for signal in orjson.loads(done.stdout)] == [None, None, "ops"]
    done = CliRunner().invoke(app, ["--config", str(file), "signals"])
    assert " pause-snapshot http: ops waiting" in " ".join(done.stdout.split())
