"""Rows that change their key between two SELECTs of a dump, from what is still to be read to what has been, while the
log leaves columns out: the dump brings them all the same, whatever its consumers had of them before."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import control, dump, requests, wiring
from dblog_core.capture import run_capture
from dblog_core.config import Config
from dblog_core.requests import DumpRequest
from dblog_core.staging.reader import Line, lines
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)  # others' images are whole

ROWS = 800
BIG = secrets.token_hex(6_000)  # is stored out of line: an update that leaves it alone leaves it out of the log


@contextmanager
def setting(stop: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        stop.set()


@contextmanager
def capturing(config: Config) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        capture = pool.submit(run_capture, config, stop=stop)
        with setting(stop):
            yield
        capture.result(timeout=PATIENCE_SECONDS)


def known_since(found: list[Line], since: int) -> dict[int, dict[str, Any]]:
    """What a consumer has that knew nothing before offset `since`."""
    rows: dict[int, dict[str, Any]] = {}
    gone: dict[int, dict[str, Any]] = {}
    for line in (line for line in found if line["offset"] > since):
        if line["op"] == "d":
            gone[line["key"]["id"]] = rows.pop(line["key"]["id"], {})
        elif line["op"] in "cur":
            moved = line.get("moved_from")
            old = gone.get(moved["id"], {}) if moved else rows.get(line["key"]["id"], {})
            left = {name: old[name] for name in line["unchanged"] if name in old}
            rows[line["key"]["id"]] = {**left, **line["after"]}
    return rows


@pytest.mark.parametrize("moved", [1, 150])
@pytest.mark.parametrize("ranges", [1, 3])
def test_a_dump_brings_rows_that_left_what_it_was_still_to_read(
    database: Database, tmp_path: Path, ranges: int, moved: int
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, big text)")
    values = ", ".join(f"({n}, {n}, '{n:04d}{BIG}')" for n in range(1, ROWS + 1))
    database.execute(f"INSERT INTO t VALUES {values}")
    config = database.config(tmp_path)
    name = f"{database.schema}.t"
    stop = threading.Event()
    with capturing(config), closing(wiring.open_state(config)) as state:
        dump_id = requests.submit(config, DumpRequest(tables=(name,), chunk_size=5, ranges=ranges), state=state)
        with ThreadPoolExecutor(1) as pool, setting(stop):
            working = pool.submit(dump.work, config, stop=stop, dump_id=dump_id, workers=1)
            while control.dump(state, dump_id).tasks[0].progress.ordinal < 2:
                assert not working.done(), "the dump is over before it could be paused"
            control.pause(state, dump_id)
            pause = threading.Event()
            while (placed := control.dump(state, dump_id).rows) < ROWS:
                pause.wait(1.0)
                if control.dump(state, dump_id).rows == placed:
                    break
            assert placed < ROWS - moved, "what is to move is read already"
            database.execute(f"UPDATE t SET id = id - {ROWS}, v = -v WHERE id > {ROWS - moved}")
            control.resume(state, dump_id)
            working.result(timeout=PATIENCE_SECONDS)
        assert control.dump(state, dump_id).state == "done"
    found = list(lines(wiring.open_staging(config)))
    (end,) = (line for line in found if line["op"] == "f")
    known = known_since([line for line in found if line["offset"] < end["offset"]], end["since"])
    source = {row[0]: {"id": row[0], "v": row[1], "big": row[2]} for row in database.query("SELECT id, v, big FROM t")}
    assert {key: row.keys() for key, row in known.items()} == {key: row.keys() for key, row in source.items()}
    assert known == source
    arrived = [line for line in found if line.get("moved_from")]
    assert len(arrived) == moved and all("big" in line["unchanged"] for line in arrived), "nothing was left out"
