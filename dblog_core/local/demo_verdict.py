"""The demo's last word: every row and column of source and lake, compared by a path of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dblog_core import lake, spark, wiring
from dblog_core.config import Config
from dblog_core.local.demo_rows import write_rows
from dblog_core.local.errors import LocalError
from dblog_core.local.server import DatabaseServer
from dblog_core.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the job says of each table: `table`, `rows`, `equal`, numbers of `missing`, `extra` and `different` rows,
    and `examples` of them."""

    tables: tuple[Mapping[str, Any], ...]

    @property
    def equal(self) -> bool:
        return bool(self.tables) and all(table["equal"] for table in self.tables)

    def summary(self) -> dict[str, str]:
        """A line for each table, and one for all."""
        outcome = "every row and column is equal" if self.equal else "SOURCE AND LAKE DIFFER"
        return {**{table["table"]: _counts(table) for table in self.tables}, "verdict": outcome}


def compare(server: DatabaseServer, config: Config, directory: Path, schemas: Sequence[TableSchema]) -> Verdict:
    """Nothing may write to the source meanwhile. `directory` is made, and keeps what the source said."""
    directory.mkdir()
    tasks = [_task(server, config, directory, schema) for schema in schemas]
    file = directory / "tasks.json"
    file.write_text(json.dumps(tasks))
    return judge(spark.job_command("compare", config, arguments=[str(file)]), tables=len(tasks))


def judge(command: spark.SparkCommand, *, tables: int) -> Verdict:
    """Runs the job. Raises LocalError where it does not tell of all tables, or not what its exit code says."""
    done = subprocess.run(command.argv, env={**os.environ, **command.env}, capture_output=True, text=True, check=False)
    verdict = Verdict(tuple(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")))
    if len(verdict.tables) != tables or verdict.equal != (done.returncode == 0):
        raise LocalError(f"the comparison failed:\n{done.stderr[-2000:]}", where="demo")
    return verdict


def _task(server: DatabaseServer, config: Config, directory: Path, schema: TableSchema) -> dict[str, Any]:
    file = directory / f"{schema.table.name}.parquet"
    write_rows(server, schema, file)
    path = lake.table_location(wiring.open_lake(config), schema.table)
    return {"schema": schema.to_json(), "files": [str(file)], "lake": str(path)}


def _counts(table: Mapping[str, Any]) -> str:
    faults = ", ".join(f"{kind} {table[kind]}" for kind in ("missing", "extra", "different"))
    examples = f" {json.dumps(table['examples'])}" if table["examples"] else ""
    return f"{table['rows']:,} rows; {faults}{examples}"
