"""Values that an ALTER TABLE of MySQL or MariaDB converts without a row in the log are dumped, and others are not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dblog_core.capture.run_capture import run_capture
from tests.fix_servers import Database
from tests.integration.test_swapped_tables import capturing, healing, source_rows

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
ALTERS = (
    "ALTER TABLE cut MODIFY v VARCHAR(5)",
    "ALTER TABLE rounded MODIFY v DECIMAL(50,2)",
    "ALTER TABLE longer MODIFY v VARCHAR(400)",
    "ALTER TABLE plain ADD COLUMN more INT, ADD INDEX (v), COMMENT = 'as before'",
    "ALTER TABLE other MODIFY v VARCHAR(1)",
)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("moment", ["while it runs", "between two captures"])
def test_what_an_alter_makes_of_values_is_dumped(database: Database, tmp_path: Path, moment: str) -> None:
    tables = ("cut", "rounded", "longer", "plain")
    config = database.config(tmp_path, source={"tables": [f"{database.schema}.{name}" for name in tables]})
    database.execute(
        "CREATE TABLE cut (id INT PRIMARY KEY, v TEXT)",
        "CREATE TABLE rounded (id INT PRIMARY KEY, v DECIMAL(50,10))",
        "CREATE TABLE longer (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE plain (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE other (id INT PRIMARY KEY, v TEXT)",
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(
        "INSERT INTO cut VALUES (1, 'abc    '), (2, 'abcd')",
        "INSERT INTO rounded VALUES (1, 1.5), (2, 2.3456789), (3, -0.005)",
        "INSERT INTO longer VALUES (1, 'abc ')",
        "INSERT INTO plain VALUES (1, 'abc ')",
        "INSERT INTO other VALUES (1, ' ')",
    )
    before = source_rows(database, *tables)
    if moment == "between two captures":
        with capturing(config) as wait:
            wait(before)
        database.execute(*ALTERS)
    with capturing(config) as wait:
        if moment == "while it runs":
            wait(before)
            database.execute(*ALTERS)
        after = source_rows(database, *tables)
        assert after != before
        wait(after)
        healed = set(healing(config))
    assert healed >= {"cut", "rounded"} and "plain" not in healed and "other" not in healed
    assert moment == "between two captures" or "longer" not in healed
