"""A staging directory that is put back from a copy, or replaced, beside a state store that has lived on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_store, filing, task_store, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import LogPositionLost
from dblog_core.model.task_id import TaskId
from tests.fix_servers import Database
from tests.integration.test_lost_log import mend, replay
from tests.integration.test_read_only import capturing
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.one_of(3)]
ROWS = 60
CHUNK = 5
COPIED_CHUNKS = 2
LATER_CHUNKS = 3
SLOW_SECONDS = 1.0  # between two chunks, so that a dump is paused before its end


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    values = ", ".join(f"({n}, 'v{n}')" for n in range(ROWS))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", f"INSERT INTO t VALUES {values}")
    dump = {"chunk_size": CHUNK, "in_flight": 1, "delay": SLOW_SECONDS}
    return database.config(tmp_path, source={"tables": [f"{database.schema}.t"]}, dump=dump)


@contextmanager
def working(config: Config) -> Iterator[None]:
    """A worker on whatever dump there is, beside the test."""
    stop = threading.Event()
    worker = threading.Thread(target=work_loop.work, args=(config,), kwargs={"stop": stop, "once": False})
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join(timeout=PATIENCE_SECONDS)
        assert not worker.is_alive()


def source_values(database: Database) -> dict[int, str]:
    return dict(database.query("SELECT id, v FROM t"))


def status_of(config: Config, dump_id: str) -> DumpStatus:
    with closing(wiring.open_state(config)) as state:
        return dump_store.read_dump(state, dump_id)


def is_end_recorded(config: Config, dump_id: str) -> bool:
    """By a capture, which looks each second, or by whoever waits for the dump."""
    with closing(wiring.open_state(config)) as state:
        return bool(dump_store.read_settings(state, dump_id)[0] == "done")


def count_placed(config: Config, dump_id: str) -> int:
    with closing(wiring.open_state(config)) as state:
        return task_store.read_progress(state, TaskId(dump_id, 0), "").ordinal


def request(config: Config) -> str:
    return filing.submit(config, DumpRequest(tables=("*.t",)))


def set_paused(config: Config, dump_id: str, is_paused: bool) -> None:
    with closing(wiring.open_state(config)) as state:
        (control.pause if is_paused else control.resume)(state, dump_id)


def dump_until(config: Config, dump_id: str, chunks: int) -> None:
    """Works on a dump until so many of its chunks at least are placed and others are not, and pauses it there."""
    with working(config):
        wait_until(lambda: count_placed(config, dump_id) >= chunks, f"{chunks} chunks are placed")
        set_paused(config, dump_id, True)
    assert chunks <= count_placed(config, dump_id) < ROWS // CHUNK
    assert status_of(config, dump_id).state == "paused"


def hurry(config: Config, dump_id: str) -> None:
    with closing(wiring.open_state(config)) as state:
        control.retune(state, dump_id, delay=0)


def dump_to_the_end(config: Config, dump_id: str) -> None:
    hurry(config, dump_id)
    with working(config):
        wait_until(lambda: is_end_recorded(config, dump_id), "the dump ends")


def change_rows(database: Database, word: str, first: int) -> None:
    """Of each chunk a row is changed, one is deleted, and of the first ones one has another key."""
    database.execute(
        f"UPDATE t SET v = '{word}' WHERE id % {CHUNK} = {first}",
        f"DELETE FROM t WHERE id % {CHUNK} = {first + 1}",
        f"UPDATE t SET id = id + 1000 WHERE id % {CHUNK} = {first + 2} AND id < {ROWS // 2}",
    )


@pytest.mark.parametrize("moment", ["before it ends", "after it has ended", "after it has begun and ended"])
def test_a_directory_that_is_put_back_from_a_copy_of_before_loses_no_row_of_a_dump(
    database: Database, config: Config, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is read again from the copy on: chunks of the dump that it brings are not there any more."""
    staging = Path(config.staging.path)
    copy = staging.with_name("copy")
    with capturing(config):
        dump_id = "" if moment == "after it has begun and ended" else request(config)
        if dump_id:
            dump_until(config, dump_id, COPIED_CHUNKS)
        shutil.copytree(staging, copy)  # while the capture goes on
        copied = count_placed(config, dump_id) if dump_id else 0
        change_rows(database, "after the copy", 0)
        if dump_id:
            set_paused(config, dump_id, False)
        dump_id = dump_id or request(config)
        if moment == "before it ends":
            dump_until(config, dump_id, copied + LATER_CHUNKS)
            hurry(config, dump_id)
            set_paused(config, dump_id, False)
        else:
            dump_to_the_end(config, dump_id)
            assert replay(config) == source_values(database)
    change_rows(database, "while nothing runs", 1)
    shutil.rmtree(staging)
    shutil.copytree(copy, staging)
    if database.kind == "postgres":  # the slot keeps no log of before: what is lost is said, with a way on that works
        with pytest.raises(LogPositionLost) as caught:
            run_capture(config, stop=threading.Event(), until_current=True)
        assert "--fresh-start" in caught.value.fix
        database.execute(f"SELECT pg_drop_replication_slot('dblog_{database.name}')")
        with working(config):
            mend(config, fresh_start=True, rows=source_values(database))
        return
    with capturing(config), working(config):
        change_rows(database, "at last", 2)
        wait_until(
            lambda: replay(config) == source_values(database),
            "every row is there",
            describe=lambda: (status_of(config, dump_id), replay(config).items() ^ source_values(database).items()),
        )
        wait_until(lambda: is_end_recorded(config, dump_id), "the dump has ended again")
    assert ("had ended, and this staging directory lacks chunks" in caplog.text) == (moment != "before it ends")
    staged = [chunk for manifest in wiring.open_staging(config).manifests() for chunk in manifest.chunks]
    ordinals = [chunk.ordinal for chunk in staged if chunk.dump == dump_id]
    assert ordinals == list(range(len(ordinals))), "each is there once, from the first on"
    assert len(ordinals) == status_of(config, dump_id).chunks > copied


def test_a_dump_that_is_unfinished_while_staging_is_replaced_ends_with_all_rows(
    database: Database, config: Config
) -> None:
    """Its chunks are gone with the directory, and so is the log that was read: another attempt reads the table."""
    with capturing(config):
        dump_id = request(config)
        dump_until(config, dump_id, COPIED_CHUNKS)
        change_rows(database, "staged and lost", 0)
    change_rows(database, "while nothing runs", 1)
    attempt = status_of(config, dump_id).tasks[0].record.attempt
    shutil.rmtree(config.staging.path)
    set_paused(config, dump_id, False)
    with capturing(config):
        wait_until(lambda: count_placed(config, dump_id) == 0, "the state store goes by the new directory")
        task = status_of(config, dump_id).tasks[0]
        assert task.progress.broken >= attempt and task.progress.reason
        change_rows(database, "at last", 2)
        dump_to_the_end(config, dump_id)
        wait_until(lambda: replay(config) == source_values(database), "every row is there")
    status = status_of(config, dump_id)
    assert status.tasks[0].record.attempt > attempt
    staged = [chunk for manifest in wiring.open_staging(config).manifests() for chunk in manifest.chunks]
    assert [chunk.ordinal for chunk in staged] == list(range(status.chunks))
