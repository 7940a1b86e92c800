"""A lake that keeps its own columns, over real servers: what it has is compared with the source, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableName
from dblog_core.verify.compared_columns import NotCompared
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.waiting import PATIENCE_SECONDS, wait_until

ALTERS = {
    "mysql": "ALTER TABLE t ADD COLUMN more int NOT NULL DEFAULT 7 FIRST, MODIFY n bigint, DROP COLUMN old",
    "mariadb": "ALTER TABLE t ADD COLUMN more int NOT NULL DEFAULT 7 FIRST, MODIFY n bigint, DROP COLUMN old",
    "postgres": "ALTER TABLE t ADD COLUMN more int NOT NULL DEFAULT 7, ALTER n TYPE bigint, DROP COLUMN old",
}


@pytest.mark.one_of(4)
@pytest.mark.in_turn
def test_a_table_that_keeps_its_columns_is_compared_in_those(
    database: Database,
    spark: SparkSession,
    merge_here: Callable[[Config], None],
    verify_here: Verify,
    tmp_path: Path,
) -> None:
    name = f"{database.schema}.t"
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(20), old int)")
    config = database.config(tmp_path, lake={"tables": {f"{database.schema}.*": {"schema_changes": "ignore"}}})
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 1, 'a', 1), (2, 2, 'b', 2), (3, 3, 'c', 3)")
    run_capture(config, stop=threading.Event(), until_current=True)
    merge_here(config)
    database.execute(ALTERS[database.kind], "UPDATE t SET n = 20 WHERE id = 2")
    database.execute("INSERT INTO t (id, n, v) VALUES (4, 4, 'd')")
    run_capture(config, stop=threading.Event(), until_current=True)
    stop = threading.Event()
    capture = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    capture.start()
    try:
        with closing(wiring.open_state(config)) as state:
            while state.leader("capture") is None:
                assert capture.is_alive() and not stop.wait(0.05)
        (before,) = verify_here(config, name).tables  # the change is staged, and not merged
        # The capture has the table dumped: for its ALTER, or since no log tells of one.
        with closing(wiring.open_state(config)) as state:
            wait_until(
                lambda: [dump.state for dump in dump_store.list_dumps(state)] == ["done"],
                "the dump that would mend the harm",
                describe=lambda: dump_store.list_dumps(state),
            )
        merge_here(config)
        (after,) = verify_here(config, name).tables
        place = table_location(wiring.open_lake(config), TableName.parse(name))
        spark.sql(f"UPDATE delta.`{place}` SET v = 'harmed' WHERE id = 1")
        (harmed,) = verify_here(config, name).tables
    finally:
        stop.set()
        capture.join(timeout=PATIENCE_SECONDS)
    assert before.equal and after.equal and after.rows == 4, (before, after)
    not_compared = [
        NotCompared("more", 'the lake leaves it out (schema_changes = "ignore")'),
        NotCompared("old", "only the lake has it"),
    ]
    assert list(before.not_compared) == list(after.not_compared) == not_compared
    assert after.outcome == "equal; 2 columns are not compared"
    assert harmed.different == ((1, ("v",)),)
