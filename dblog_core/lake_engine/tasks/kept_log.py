"""For how long a table's log is kept, by us and by others: cuts say what is still read, and not the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.altering.alterations import SetProperties
from dblog_core.delta_writer.altering.altered_table import AlteredTable
from dblog_core.delta_writer.features import TableRefused, protects_log, reader_features, writer_features
from dblog_core.delta_writer.files import TableFiles
from dblog_core.lake_engine.tables import alter_table, checkpoints, log_cleanup
from dblog_core.storage.location import Location

_LONGEST = 100 * 365 * 86_400.0  # seconds: `keep = "forever"`, in Delta's words
_KEPT_DAYS = {"delta.logRetentionDuration": 30, "delta.deletedFileRetentionDuration": 7}
"""For how long Delta keeps the log, and a VACUUM the files that were replaced, where a table says nothing else."""


def clean_log(
    path: Location,
    check: Callable[[], None],
    find_version: Callable[[], int | None] | None,
    *,
    keep: float,
) -> None:
    """Has others keep the table's log and files for `keep` seconds, and removes the log before the version that
    `find_version` says (None: it stays). The log of a table with a feature that is not known here, or from which one
    was dropped, stays as long as Delta keeps it."""
    try:
        newest = snapshot.newest(TableFiles.at(path))
    except TableRefused:
        return
    features = {*reader_features(newest.protocol), *writer_features(newest.protocol)}
    properties = newest.metadata.get("configuration") or {}
    _keep_from_others(alter_table.open_altered(path, check), properties, keep, cleans=protects_log(features))
    if protects_log(features) or find_version is None:
        return
    version = find_version()
    if not log_cleanup.has_checkpoint(path):  # for a later maintenance: a log begins with one
        checkpoints.write(path)
    if version is not None:
        log_cleanup.clean(path, version)


def _keep_from_others(table: AlteredTable, properties: Mapping[str, str], keep: float, *, cleans: bool) -> None:
    """Has VACUUMs of others, and Delta's own cleaning of the log, leave what cuts need: a cut names the newest version
    of a table that seldom changes, however old it is. `cleans`: Delta's cleaning stays."""
    settings = {} if cleans else {checkpoints.CLEANS: "false"}
    days = math.ceil(min(keep, _LONGEST) / 86_400)
    settings |= {name: f"interval {days} days" for name, least in _KEPT_DAYS.items() if days > least}
    if lacking := {name: value for name, value in settings.items() if properties.get(name) != value}:
        table.alter(lambda have: [SetProperties(lacking)])
