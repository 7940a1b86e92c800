"""What features of a table ask of each commit: ids for the rows of new files, and a time that never goes back.

Source: PROTOCOL.md, "Row Tracking" and "In-Commit Timestamps".
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from dblog_core.delta_writer.features import IN_COMMIT_TIMESTAMP, ROW_TRACKING, has_feature, is_on
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import TRACKS_ROWS
from dblog_core.delta_writer.snapshot import Snapshot, actions_of, commit_path
from dblog_core.delta_writer.statistics import count_rows
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json

_DOMAIN = "delta.rowTracking"
_HIGHEST = "rowIdHighWaterMark"
_TIMED = "delta.enableInCommitTimestamps"
_SUSPENDED = "delta.rowTrackingSuspended"


def complete_actions(files: TableFiles, snapshot: Snapshot, actions: Sequence[Json]) -> list[Json]:
    """The actions of the version after a snapshot, its `commitInfo` first, with all that the table's features ask for.

    Raises LakeError where the log lacks what the next version follows from.
    """
    info, *others = actions
    if has_feature(snapshot.protocol, IN_COMMIT_TIMESTAMP) and is_on(snapshot.metadata, _TIMED):
        info = _with_time(files, snapshot, info)
    if has_feature(snapshot.protocol, ROW_TRACKING) and not is_on(snapshot.metadata, _SUSPENDED):
        if is_on(snapshot.metadata, TRACKS_ROWS):
            # Every row that is copied or updated keeps its id, and every row that is copied its version.
            info = {"commitInfo": {**info["commitInfo"], "tags": {"delta.rowTracking.preserved": "true"}}}
        others = _with_row_ids(snapshot, others, str(files))
    return [info, *others]


def _with_time(files: TableFiles, snapshot: Snapshot, info: Json) -> Json:
    """With the time of the commit: after that of the version before it, whatever the clocks of writers say."""
    fields = info["commitInfo"]
    before = _time_of(files, snapshot.version)
    now = fields["timestamp"]
    return {"commitInfo": {"inCommitTimestamp": now if before is None else max(now, before + 1), **fields}}


def _time_of(files: TableFiles, version: int) -> int | None:
    """The time in a version's commit; None where it has none, as the feature came later."""
    path = commit_path(version)
    if (data := files.read(path)) is None:
        raise LakeError(
            f"the table's commits carry times, and that of version {version} is gone",
            where=files.url(path),
            fix="restore the file from a backup, or set delta.enableInCommitTimestamps to false",
        )
    infos = (action["commitInfo"] for action in actions_of(data, files.url(path)) if "commitInfo" in action)
    time = next((info.get("inCommitTimestamp") for info in infos), None)
    return None if time is None else int(time)


def _with_row_ids(snapshot: Snapshot, actions: Sequence[Json], where: str) -> list[Json]:
    """The actions of the next version, with ids for the rows of files that have none yet, and the highest id."""
    before = int(orjson.loads(snapshot.domains.get(_DOMAIN) or "{}").get(_HIGHEST, -1))
    highest = before
    done: list[Json] = []
    for action in actions:
        add = action.get("add")
        if add is None or add.get("baseRowId") is not None:
            done.append(action)
            continue
        if (rows := count_rows(add.get("stats"))) is None:
            raise LakeError(
                f"the file {add['path']} gets ids of its rows, and its statistics do not say how many it has",
                where=where,
                fix="run OPTIMIZE for the table in Spark, which writes the file again",
            )
        done.append({"add": {**add, "baseRowId": highest + 1, "defaultRowCommitVersion": snapshot.version + 1}})
        highest += rows
    if highest > before:
        configuration = orjson.dumps({_HIGHEST: highest}).decode()
        done.append({"domainMetadata": {"domain": _DOMAIN, "configuration": configuration, "removed": False}})
    return done
