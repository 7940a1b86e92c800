"""All rows of a table, and its columns, give way to others in one commit. Its versions continue, so that earlier ones
stay readable.

  newest version -> what the table is from now on -> files of the new rows -> `txn`, `metaData`, a `remove` of each file
  and an `add` of each new one as the next version, created if absent

No file of the table is read, so that one with a damaged file is repaired by it. Memory holds one part of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa

from dblog_core.delta_writer.altering.alterations import Change, TableForm, alter_form
from dblog_core.delta_writer.altering.column_mapping import is_mapped, map_fields, name_in_files
from dblog_core.delta_writer.altering.needed_features import enable_features, find_needed_features
from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.commit import removal
from dblog_core.delta_writer.data_file import StoredFile, store_rows
from dblog_core.delta_writer.features import is_on, refusal
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.shape import COLUMN_ID, PHYSICAL_NAME, Shape
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.delta_writer.table_log import ATTEMPTS
from dblog_core.interfaces import Json

_KEPT = (COLUMN_ID, PHYSICAL_NAME, "comment")
"""What a column that stays keeps of its metadata in the log: the rest is about values, and all of them go."""
_CLUSTERING = "delta.clustering"


@dataclass(frozen=True, slots=True)
class Replacement:
    """`fields`: the columns, as a schema in the log has them; `plan`: changes of properties, of the columns and
    properties that the table has now; `rows`: the new rows in some parts, with all columns of the shape that it gets,
    which can be gone through again."""

    fields: Sequence[Json]
    plan: Callable[[Json, Mapping[str, str]], Sequence[Change]]
    rows: Callable[[Shape], Iterable[pa.Table]]


def replace_rows(table: OpenTable, replacement: Replacement, app: str, number: int) -> Upserted:
    """Commits the replacement as transaction `number` of `app`, whatever others commit meanwhile.

    A column that has the name and the type of one that the table has stays that column, to its mapping, to a partition
    and to a clustering. Raises TableRefused where the table needs another writer, Overtaken where others leave no room,
    and StagingError with storage's own faults: then the same call later finds out what became of the commit.
    """
    files: list[StoredFile] | None = None
    before: Json = {}
    after = Snapshot()
    for _ in range(ATTEMPTS):
        table.look()
        if table.snapshot.txns.get(app, -1) >= number:
            return Upserted(table.snapshot.version, already=True)
        clustering = table.snapshot.domains.get(_CLUSTERING)
        now = {"metaData": table.snapshot.metadata, "protocol": table.snapshot.protocol, _CLUSTERING: clustering}
        if now != before:  # the new columns have other names in files
            files = None
            before = now
            after = _replaced(table, replacement)
        shape = _check_shape(table, after)
        # A VACUUM of somebody else may have taken a file that no version names yet.
        if files is None or not all(table.files.exists(file.name) for file in files):
            files = _write(table, replacement.rows(shape), shape, after)
        if (done := _commit(table, after, files, app, number)) is not None:
            return done
    raise table.overtaken_error()


def _replaced(table: OpenTable, replacement: Replacement) -> Snapshot:
    """The table's version without a file, in its new form."""
    where = str(table.files)
    now = table.snapshot
    schema = orjson.loads(now.metadata["schemaString"])
    changes = replacement.plan(schema, now.configuration)
    form = alter_form(TableForm(now.metadata, now.protocol), changes, where, table.new_id)
    metadata = _with_columns(form.metadata, replacement.fields)
    protocol = enable_features(form.protocol, find_needed_features(metadata))
    return replace(now, files={}, metadata=metadata, protocol=protocol, domains=_with_clustering(now, metadata))


def _with_columns(metadata: Json, wanted: Sequence[Json]) -> Json:
    """The `metaData` action with these columns alone."""
    schema = orjson.loads(metadata["schemaString"])
    configuration = dict(metadata.get("configuration") or {})
    former = {field["name"]: field for field in schema["fields"]}
    fields = []
    for field in wanted:
        about = dict(field.get("metadata") or {})
        if (old := former.get(field["name"])) is not None and old["type"] == field["type"]:
            had = old.get("metadata") or {}
            about = {**{name: had[name] for name in _KEPT if name in had}, **about}
        fields.append({**field, "metadata": about})
    if is_mapped(configuration):
        # Ids go on behind the highest that was ever given: the others' files are read in versions of before.
        map_fields(fields, configuration, name_in_files, schema=fields)
    stays = {field["name"] for field in fields if former.get(field["name"], {}).get("type") == field["type"]}
    return {
        **metadata,
        "schemaString": orjson.dumps({**schema, "fields": fields}).decode(),
        "configuration": configuration,
        "partitionColumns": [name for name in metadata.get("partitionColumns") or () if name in stays],
    }


def _with_clustering(now: Snapshot, metadata: Json) -> Mapping[str, str]:
    """The domains, of which that of the clustering names columns alone that the table has."""
    if _CLUSTERING not in now.domains:
        return now.domains
    about = orjson.loads(now.domains[_CLUSTERING])
    named = about.get("clusteringColumns") or []
    fields = orjson.loads(metadata["schemaString"])["fields"]
    left = {(field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]) for field in fields}
    stays = [path for path in named if ([path] if isinstance(path, str) else path)[0] in left]
    if stays == named:
        return now.domains
    return {**now.domains, _CLUSTERING: orjson.dumps({**about, "clusteringColumns": stays}).decode()}


def _check_shape(table: OpenTable, after: Snapshot) -> Shape:
    where = str(table.files)
    if is_on(table.snapshot.metadata, "delta.appendOnly"):
        raise refusal(where, "it takes appended rows alone")
    # No row stays, so that it does not matter how rows go.
    return after.shape(where, only_grows=True)


def _write(table: OpenTable, parts: Iterable[pa.Table], shape: Shape, after: Snapshot) -> list[StoredFile]:
    """A file for the rows of each part, and of each partition. Rows that are tracked get ids by their places."""
    files: list[StoredFile] = []
    for part in parts:
        table.check()
        files += [file for file, _ in store_rows(table.files, part, shape, after.configuration, table.new_id)]
    return files


def _commit(table: OpenTable, after: Snapshot, files: Sequence[StoredFile], app: str, number: int) -> Upserted | None:
    """None if another's commit came first."""
    now = table.now_ms()
    before = table.snapshot
    old = list(before.files.values())
    actions: list[Json] = [{"txn": {"appId": app, "version": number, "lastUpdated": now}}]
    if after.protocol != before.protocol:
        actions.append({"protocol": after.protocol})
    if after.metadata != before.metadata:
        actions.append({"metaData": after.metadata})
    if (clustering := after.domains.get(_CLUSTERING)) != before.domains.get(_CLUSTERING):
        actions.append({"domainMetadata": {"domain": _CLUSTERING, "configuration": clustering, "removed": False}})
    actions += [removal(live, now_ms=now, data_change=True) for live in old]
    actions += [{"add": file.addition(now_ms=now, data_change=True)} for file in files]
    metrics = {
        "numFiles": len(files),
        "numOutputRows": sum(file.count for file in files),
        "numOutputBytes": sum(file.size for file in files),
        "numRemovedFiles": len(old),
        "numRemovedBytes": sum(live.size for live in old),
    }
    if not table.commit("WRITE", metrics, actions):
        return None
    return Upserted(table.snapshot.version, inserted=sum(file.count for file in files))
