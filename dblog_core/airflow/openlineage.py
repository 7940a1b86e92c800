"""What our tasks read and write, for OpenLineage (where Airflow has that provider): source table, its part of the
super-changelog, lake table.

A table's part of the super-changelog is named STAGING/SOURCE/SCHEMA.TABLE: what a dump or the capture has written there
is what the merge has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from dblog_core.config.settings import Config
    from dblog_core.config.source import SourceConfig
    from dblog_core.dumps.status import DumpStatus
    from dblog_core.lake.lake_status import LakeStatus

    Lineage = OperatorLineage[Any, Any]

Place = tuple[str, str]
"""Namespace and name, as OpenLineage names datasets."""


def source_table(source: SourceConfig, table: str) -> Place:
    if source.kind == "postgres":
        return f"postgres://{source.host}:{source.port}", f"{source.database}.{table}"
    return f"mysql://{source.host}:{source.port}", table  # MariaDB too: OpenLineage has no name of its own for it


def staged_table(config: Config, table: str) -> Place:
    return _path(f"{str(config.staging.path).rstrip('/')}/{config.source.name}/{table}")


def lake_table(config: Config, table: str) -> Place:
    from dblog_core.lake.lake_status import table_location
    from dblog_core.model.schema import TableName
    from dblog_core.wiring import open_lake

    return _path(str(table_location(open_lake(config), TableName.parse(table))))


def _path(path: str) -> Place:
    parts = urlsplit(path)
    return (f"s3://{parts.netloc}", parts.path.lstrip("/")) if parts.scheme == "s3" else ("file", path)


def of_dump(config: Config, dump: DumpStatus) -> Lineage:
    """Of all tables of the dump, with the rows that it has staged."""
    rows: dict[str, int] = {}
    for task in dump.tasks:
        rows[task.table] = rows.get(task.table, 0) + task.progress.rows
    pairs = [(source_table(config.source, t), staged_table(config, t), n) for t, n in sorted(rows.items())]
    return _lineage(pairs)


def of_merge(config: Config, status: LakeStatus, since: int) -> Lineage:
    """Of tables that had rows in merges after the number `since`, by the lake's `status`; the rows are those that the
    last of these merges has written."""
    pairs = []
    for name, table in sorted(status.tables.items()):
        if table.merged is not None and table.merged.merge > since:
            pairs.append((staged_table(config, name), lake_table(config, name), table.merged.applied))
    return _lineage(pairs)


def _lineage(pairs: Iterable[tuple[Place, Place, int]]) -> Lineage:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    inputs: list[Any] = []
    outputs: list[Any] = []
    for source, target, rows in pairs:
        written = statistics.OutputStatisticsOutputDatasetFacet(rowCount=rows)
        inputs.append(InputDataset(*source))
        outputs.append(OutputDataset(*target, outputFacets={"outputStatistics": written}))
    return OperatorLineage(inputs=inputs, outputs=outputs)
