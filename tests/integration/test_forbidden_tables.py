"""Tables that the capture's user may not read, or not all rows of: dumps of them alone are refused, with the grant."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import dump_records, dump_store, filing
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from tests.fix_servers import Database
from tests.integration.test_swapped_tables import capturing, source_rows
from tests.waiting import wait_until

SHAPE = "(id int PRIMARY KEY, v varchar(20))"


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_row_security_and_a_missing_right_stop_neither_the_capture_nor_dumps_of_other_tables(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)
    config = database.config(tmp_path)
    user = f'"{database.account.user}"'
    database.execute(*(f"CREATE TABLE {name} {SHAPE}" for name in ("guarded", "hidden", "u")))
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(
        "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
        f"REVOKE ALL ON hidden FROM {user}",
        f"CREATE TABLE made {SHAPE}",
        "ALTER TABLE made ENABLE ROW LEVEL SECURITY",
        f"CREATE TABLE other {SHAPE}",
        *(f"INSERT INTO {name} VALUES (1, '{name}')" for name in ("guarded", "hidden", "u", "made", "other")),
    )
    with capturing(config) as wait:  # it starts, and takes the new ones in
        wait(source_rows(database, "guarded", "hidden", "u", "made", "other"))
        database.execute(f"CREATE TABLE late {SHAPE}", "ALTER TABLE late ENABLE ROW LEVEL SECURITY")
        database.execute(f"CREATE TABLE later {SHAPE}", "INSERT INTO later VALUES (1, 'x')")
        wait(source_rows(database, "guarded", "hidden", "u", "made", "other", "later"))
        dump = dump_all(config)
    refused = {r.table: r.reason for r in dump.refused}
    assert set(dump.tables) == {"public.u", "public.other", "public.later"} and dump.state == "done"
    assert set(refused) == {f"public.{name}" for name in ("guarded", "hidden", "made", "late")}
    assert "row-level security" in refused["public.guarded"] and "denied" in refused["public.hidden"]
    problems = {p.table: p.fix for p in wiring.open_source(config.source).check() if p.fatal}
    assert set(problems) == set(refused)
    database.execute(*problems.values())
    with capturing(config):
        assert set(dump_all(config).tables) == {*dump.tables, *refused}


def dump_all(config: Any) -> DumpStatus:
    """A dump of all, by the capture, once it is over."""
    dump_id = filing.submit(config, DumpRequest(None), requested_by=dump_records.SYSTEM)
    with contextlib.closing(wiring.open_state(config)) as state:
        wait_until(lambda: dump_store.read_dump(state, dump_id).state in OVER, "the dump is over")
        return dump_store.read_dump(state, dump_id)
