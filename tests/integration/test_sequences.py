"""MariaDB's sequences, whose rows its log holds beside those of tables, are nobody's tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.monitoring.preflight import findings
from dblog_core.monitoring.status import read_source_status
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration.test_swapped_tables import capturing, source_rows
from tests.plain_judge import PlainLake
from tests.waiting import wait_until

NEXT = "SELECT NEXTVAL({})"
TABLE_IN_ITS_PLACE = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))",
    "INSERT INTO t VALUES (1, 'one')",
)


@pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
def test_neither_the_log_nor_the_catalogue_has_a_sequence_for_a_table(
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verify_plainly: Callable[[Config], tuple[Verify, PlainLake]],
) -> None:
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)
    database.execute(
        "CREATE SEQUENCE early", NEXT.format("early"), "CREATE TABLE u (id int PRIMARY KEY, v varchar(20))"
    )
    config = database.config(tmp_path, source={"tables": [f"{database.name}*.*"]})
    with capturing(config) as wait:
        database.execute(NEXT.format("early"), "CREATE SEQUENCE late NOCACHE", NEXT.format("late"), NEXT.format("late"))
        database.execute(
            "INSERT INTO late VALUES (5, 1, 9, 1, 1, 0, 0, 0)", "CREATE SEQUENCE gone", NEXT.format("gone")
        )
        database.execute("CREATE TABLE like_it LIKE late", NEXT.format("like_it"), "RENAME TABLE late TO later")
        database.execute(NEXT.format("later"), "DROP TABLE gone", *TABLE_IN_ITS_PLACE, "INSERT INTO u VALUES (1, 'u')")
        wait(source_rows(database, "t", "u"))
        database.execute("CREATE OR REPLACE SEQUENCE t", NEXT.format("t"), "INSERT INTO u VALUES (2, 'after')")
        wait(source_rows(database, "u"))
        filing.submit(config, DumpRequest(None), requested_by=dump_records.SYSTEM)
        with pytest.raises(RequestError, match=r"later"):
            filing.submit(config, DumpRequest((f"{database.name}.later",)))
        with closing(wiring.open_state(config)) as state:
            wait_until(lambda: all(dump.state == "done" for dump in dump_store.list_dumps(state)), "all is dumped")
            dumped_tables = {task.table for dump in dump_store.list_dumps(state) for task in dump.tasks}
        verify, _ = verify_plainly(config)
        report = verify(config)
        assert (
            [checked.table for checked in report.tables] == [f"{database.name}.u"]
            and report.equal
            and not report.left_out
        )
    sequences = {f"{database.name}.{name}" for name in ("early", "late", "later", "gone", "like_it")}
    assert not sequences & {line["table"] for line in lines(wiring.open_staging(config)) if line["op"] != "t"}
    assert not sequences & dumped_tables
    assert not [table for table in read_source_status(config).to_json()["tables"] if table["table"] in sequences]
    assert not [p for p in findings(config) if str(p.problem.table) in sequences]
