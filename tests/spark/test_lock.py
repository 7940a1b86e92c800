"""One merger at a time, in processes of their own: a second one waits, or says who has the lake."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dblog_core.config.settings import Config
from dblog_core.errors import LakeBusy
from dblog_core.lake.lake_status import lake_at, own_directory
from dblog_core.lake.spark_submit import CONFIG_VARIABLE
from dblog_core.lake_engine.merging.lock import lake_lock
from dblog_core.state.sqlite import SqliteState
from dblog_core.wiring import open_lake

SECONDS = 300  # a deadline, for a machine that is busy
TTL = 600  # no lease ends by itself, however long its holder stands still

_HOLD = """
import sys
from contextlib import closing
from dblog_core.lake.lake_status import lake_at
from dblog_core.state.sqlite import SqliteState
from dblog_core.lake_engine.merging.lock import lake_lock
lake, file, ttl = sys.argv[1:]
with closing(SqliteState(file, prefix="t")) as state, lake_lock(lake_at(lake), state, ttl=float(ttl)):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder(lake: Path, state: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lake until its stdin is closed."""
    command = [sys.executable, "-c", _HOLD, str(lake), str(state), str(TTL)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("shared", ["file", "lease"])
def test_a_second_process_says_who_has_the_lake_or_waits_for_it(tmp_path: Path, shared: str) -> None:
    """`file`: another state store, and the same directory; `lease`: the same state store alone, as on two machines."""
    lake = tmp_path / "lake"
    state = tmp_path / "state.db"
    own_paths = (lake, tmp_path / "mine.db") if shared == "file" else (tmp_path / "elsewhere", state)
    with _holder(lake, state) as other, closing(SqliteState(str(own_paths[1]), prefix="t")) as store:
        with (
            pytest.raises(LakeBusy, match=f"{socket.gethostname()}:{other.pid} merges into this lake"),
            lake_lock(lake_at(str(own_paths[0])), store, ttl=TTL),
        ):
            pass
        assert other.stdin is not None
        threading.Timer(0.3, other.stdin.close).start()
        with lake_lock(lake_at(str(own_paths[0])), store, ttl=TTL, wait=SECONDS) as check:
            check()
            assert store.leader("merge") is not None


def test_the_lake_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    state = tmp_path / "state.db"
    with _holder(lake, state) as other, closing(SqliteState(str(state), prefix="t")) as store:
        other.kill()
        with lake_lock(lake_at(str(lake)), store, ttl=TTL, wait=SECONDS):
            lease = store.leader("merge")
            assert lease is not None and lease.holder == f"{socket.gethostname()}:{os.getpid()}"


@pytest.mark.parametrize("shared", ["file", "lease"])
def test_who_waits_gives_up_when_it_is_told_to(tmp_path: Path, shared: str) -> None:
    lake = tmp_path / "lake"
    state = tmp_path / "state.db"
    own_paths = (lake, tmp_path / "mine.db") if shared == "file" else (tmp_path / "elsewhere", state)
    looks = 0

    def go_on() -> bool:
        nonlocal looks
        looks += 1
        return looks < 3

    with _holder(lake, state), closing(SqliteState(str(own_paths[1]), prefix="t")) as store:
        waiting = lake_lock(lake_at(str(own_paths[0])), store, ttl=TTL, wait=math.inf, go_on=go_on)
        with pytest.raises(LakeBusy), waiting:
            pass
    assert looks == 3


@pytest.mark.one_of(2)
def test_a_merge_that_goes_on_stands_by_until_it_is_stopped(tmp_path: Path) -> None:
    """It waits before it starts Spark: standing by costs little."""
    lake = tmp_path / "lake" / "t"
    sections = {
        "source": {"name": "t", "kind": "mysql", "database": "d", "tables": ["d.a"]},
        "staging": {"path": str(tmp_path / "staging")},
        "state": {"url": f"sqlite://{tmp_path / 'state.db'}"},
        "lake": {"path": str(lake)},
    }
    config = Config.model_validate(sections)
    with (
        _holder(own_directory(open_lake(config)).local or lake, tmp_path / "other.db"),
        subprocess.Popen(
            [sys.executable, "-m", "spark_jobs.merge", "--continuous"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, CONFIG_VARIABLE: config.model_dump_json()},
            stderr=subprocess.PIPE,
            text=True,
        ) as merge,
    ):
        assert merge.stderr is not None
        assert "standing by" in merge.stderr.readline()
        merge.terminate()
        assert merge.wait(timeout=SECONDS) == 0
