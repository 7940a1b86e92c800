"""JSON of real servers as VARIANT: through log and dump alike, found where it is damaged, and mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.config.settings import Config
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableName
from dblog_core.wiring import open_lake
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration.verify_shop import Shop

LONG = ", ".join(str(n * n) for n in range(4000))
"""Far more than a row of PostgreSQL holds: an update of another column leaves it out of the log."""


@pytest.mark.one_of(4)
@pytest.mark.in_turn
@pytest.mark.timeout(1800)
def test_documents_have_their_variants_beside_them(
    database: Database, tmp_path: Path, merge_here: Callable[[Config], None], verify_here: Verify, spark: SparkSession
) -> None:
    config = database.config(tmp_path, lake={"json_as": "variant"})
    shop = Shop(database, config)
    second = "jsonb" if database.kind == "postgres" else "json"
    location = table_location(open_lake(config), TableName(database.schema, "docs"))
    database.execute(
        f"CREATE TABLE docs (id bigint PRIMARY KEY, j json, b {second}, v varchar(10))",
        f"INSERT INTO docs VALUES (1, '[{LONG}]', '{{\"a\": 1}}', 'a')",
        "INSERT INTO docs VALUES (2, NULL, 'null', 'a'), (3, '[3]', '{}', 'a')",
    )

    def lake() -> list[tuple[Any, ...]]:
        frame = spark.read.format("delta").load(str(location))
        kinds = {f.name: f.dataType.typeName() for f in frame.schema}
        texts = [F.to_json(n) if kind == "variant" else F.col(n) for n, kind in kinds.items() if n[0] != "_"]
        return sorted(tuple(row) for row in frame.select(*texts).collect())

    with shop.capturing():
        shop.dump()
        merge_here(config)
        database.execute(
            "UPDATE docs SET v = 'b' WHERE id = 1",
            "UPDATE docs SET b = '{\"b\": [true, 1.50]}' WHERE id = 2",
            "DELETE FROM docs WHERE id = 3",
            "INSERT INTO docs VALUES (4, '{\"k\": 1}', NULL, 'c')",
        )
        shop.dump()  # all of the log before it is staged then
        merge_here(config)
        rows = lake()
        if database.kind == "mariadb":
            assert [len(row) for row in rows] == [4, 4, 4]  # its JSON is longtext, to its log and its catalogue
            return
        short = LONG.replace(" ", "")
        assert [(row[0], row[2], row[4], row[5]) for row in rows] == [
            (1, f"[{short}]", '{"a":1}', "b"),
            (2, None, '{"b":[true,1.5]}', "a"),
            (4, '{"k":1}', None, "c"),
        ]
        assert verify_here(config, f"{database.schema}.docs").equal
        other_session = spark.newSession()
        other_session.conf.set("spark.databricks.delta.commitInfo.userMetadata", "theirs")
        other_session.sql(
            f"UPDATE delta.`{location}` SET b_variant = parse_json('{{}}'), j_variant = NULL WHERE id = 1"
        )
        other_session.sql(f"UPDATE delta.`{location}` SET j_variant = NULL, j = '[]' WHERE id = 4")
        report = verify_here(config, f"{database.schema}.docs", repair=True)
        assert report.equal, report.to_json()
        repaired = report.tables[0].repaired
        assert repaired is not None
        assert repaired.differences.different == ((1, ("j_variant", "b_variant")), (4, ("j",)))
        assert lake() == rows
