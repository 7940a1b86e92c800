"""The lake task `maintain`: files joined, rows put in the order of their key, deleted ones purged, what is old removed.

    old segments of staging -> old cuts and records of merges -> per table and history: join or cluster, purge, remove

A table that fails is named in the outcome, and does not hold the others up; nor does the table of cuts. So is one with
features that we do not write: its files stay as they are. Where nobody can tell which cuts are kept, files are still
joined, clustered and purged, and none is removed.

No row changes, and no cut that is kept: a cut is forgotten before the files go that only it needs, and a file goes only
when it was replaced before the oldest cut that is kept. Any of it may be done again. Between two steps the lake's lock
is looked at; merges wait meanwhile. A continuous merge has written files again beside its rounds before
(`lake_tasks.upkeep`), so that few are left.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from dblog_core.config.settings import Config
from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.features import TableRefused, check_rows_readable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.stored_rows import stored_count
from dblog_core.dumps import dump_store
from dblog_core.errors import DblogError, LakeError, LeaseLost, RequestError, StagingError
from dblog_core.lake import foreign_commits, table_commits
from dblog_core.lake.cuts import cut_of, cuts_location
from dblog_core.lake.lake_status import OWN, State, TableStatus, history_location, own_directory, table_location
from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.merging.faults import DEFECTS, FAULTS, describe_defect, first_lines
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.tables import log, unneeded_files
from dblog_core.lake_engine.tasks import answered_table, expired_cuts, file_upkeep, kept_log
from dblog_core.lake_engine.tasks.context import Done, Tools
from dblog_core.lake_engine.tasks.expired_cuts import Kept
from dblog_core.lake_engine.tasks.mark_times import PURGE, Marks
from dblog_core.maintenance import retention_needs, schedule
from dblog_core.maintenance.maintain_result import (
    FailedPlace,
    MaintainedCuts,
    MaintainedStaging,
    MaintainedTable,
    MaintainResult,
)
from dblog_core.maintenance.schedule import TableSize
from dblog_core.model import durations
from dblog_core.model.schema import TableName
from dblog_core.staging.retention import Retention
from dblog_core.storage.location import Location
from dblog_core.wiring import open_state

_log = logging.getLogger(__name__)

_UNCOMMITTED = 86_400.0  # seconds: for so long a writer may be at work on a file that no commit names yet
_HISTORY_LOG_SECONDS = 7 * 86_400.0  # at least: a stream that reads a history may be away for so long


def plan(tools: Tools, request: MaintainRequest) -> MaintainPlan:
    """Raises RequestError for a table that the lake does not have."""
    for name in request.tables:
        if name not in tools.status.tables:
            raise RequestError("is not in the lake", where=name, fix="`dblog status` lists the lake's tables")
    return MaintainPlan(request.tables)


def carry_out(tools: Tools, plan: MaintainPlan, *, now: Callable[[], float] = time.time) -> Done:
    """Maintains the lake. Raises LakeError, CorruptSegment, StateError."""
    if tools.config is None:
        raise LakeError("needs the configuration", where="maintain", fix="use `dblog maintain`")
    began = now()
    failed: list[FailedPlace] = []
    staging = None
    with _noting(failed, "staging"):  # first: what fails behind it must not hold old segments
        staging = _retain(tools, tools.config, began)
    keep = durations.parse(tools.config.lake.keep)
    oldest_cut: Kept | None = None
    with _noting(failed, "cuts"):
        oldest_cut = expired_cuts.drop(
            cuts_location(tools.lake.location), before=began - keep, now=began, check=tools.check
        )
        Records(own_directory(tools.lake.location)).drop_before(oldest_cut.number)
    tools.step("old cuts dropped")
    chosen = plan.tables or tuple(tools.status.tables)
    tables: dict[str, TableStatus] = {}
    maintained: list[MaintainedTable] = []
    marks = Marks.of(tools, tools.config, began)
    found = list(places(tools))
    for place in found:
        tools.check()
        with _noting(failed, place.name):
            if place.history:  # first: versions of its log go
                before = tables.get(place.table, tools.status.tables[place.table])
                tables[place.table] = _follow_history(place, before)
            improves = place.table in chosen
            maintained.append(_maintain(place, tools, marks, oldest_cut, failed, keep=keep, improves=improves))
            if not place.history:
                tables[place.table] = _answer_others(place, tools)
        tools.step(f"maintained {place.name}")
    sizes = [table.size for table in maintained]
    schedule.write_maintained(tools.lake.location, began, [*sizes, *marks.sizes_of(place.name for place in failed)])
    cuts = None if oldest_cut is None else MaintainedCuts(oldest_cut.number or None, oldest_cut.removed)
    result = MaintainResult(tuple(maintained), cuts, staging, tuple(failed))
    return Done(result, _with_failures(tools, tables, found, failed))


def _maintain(
    place: Place,
    tools: Tools,
    marks: Marks,
    oldest_cut: Kept | None,
    failed: list[FailedPlace],
    *,
    keep: float,
    improves: bool,
) -> MaintainedTable:
    """Maintains one table or history. `oldest_cut` None: nobody can tell which files cuts need, so none is removed.
    `failed` gets the place where its files have to stay as they are."""
    done: list[str] = []
    if improves:
        with _noting_refusal(failed, place.name):
            _improve(place, tools, marks, done)
    tools.check()
    removed = 0
    if oldest_cut is not None:
        removed = _remove_unneeded(place, tools, oldest_cut, keep=keep, now=marks.now)
        before = marks.now - max(keep, _HISTORY_LOG_SECONDS)
        has_cut = place.history or bool(oldest_cut.number)
        find_version = partial(_oldest_read, tools, place, oldest_cut, before) if has_cut else None
        kept_log.clean_log(place.path, tools.check, find_version, keep=keep)
    size = marks.with_mark_time(_size(place), purged="purged" in done)
    return MaintainedTable(size, tuple(done), removed)


@contextmanager
def _noting_refusal(failed: list[FailedPlace], name: str) -> Iterator[None]:
    """Notes in `failed` that the table has what we do not write."""
    try:
        yield
    except TableRefused as error:
        reason = f"its files are not joined: {error.feature}"
        fix = "take the feature from the table, or join its files with Spark: OPTIMIZE"
        if (place := FailedPlace(name, reason, fix)) not in failed:
            failed.append(place)


@contextmanager
def _noting(failed: list[FailedPlace], name: str) -> Iterator[None]:
    """Notes what fails of a place in `failed`: the others do not wait for it."""
    try:
        yield
    except LeaseLost:
        raise
    except DblogError as error:
        failed.append(FailedPlace(name, error.message if error.where == name else error.reason, error.fix))
    except FAULTS as error:
        failed.append(FailedPlace(name, first_lines(error), ""))
    except DEFECTS as error:
        _log.exception("%s: its maintenance has failed", name)
        failed.append(FailedPlace(name, describe_defect(error), ""))


def _with_failures(
    tools: Tools, tables: dict[str, TableStatus], found: Sequence[Place], failed: Sequence[FailedPlace]
) -> dict[str, TableStatus]:
    """The tables with what has failed of each and of its history."""
    errors: dict[str, str] = {}
    for place in found:
        why = [str(each) for each in failed if each.name == place.name]
        errors[place.table] = "; ".join([errors[place.table], *why] if errors.get(place.table) else why)
    changed = {name: tables.get(name, tools.status.tables[name]) for name in errors}
    return {name: replace(table, unmaintained=errors[name] or None) for name, table in changed.items()}


def _answer_others(place: Place, tools: Tools) -> TableStatus:
    """The table's status with its newest version. A table that seldom changes waits long for a merge of its own, which
    would find what other programs have done to its rows."""
    status = tools.status.tables[place.table]
    if status.version is None or status.schema is None or status.state is State.STOPPED:
        return status
    schema = tools.lake.shape_in_lake(tools.staging.schema(status.schema))
    return answered_table.answer_others(tools, place.table, status, tools.lake.table(schema))


def _follow_history(place: Place, status: TableStatus) -> TableStatus:
    """The table's status with the newest version of its history. One that may lack lines begins again with the next
    merge of the table."""
    if status.told_version is None:
        return status
    if (gap := foreign_commits.find_history_gap(place.path, status)) is not None:
        _log.warning("%s begins again with the table's next merge, since it may lack lines: %s", place.name, gap)
        return status  # as it was left: until then neither verify nor a rebuild takes it as whole
    version, commit = table_commits.newest_commit(place.path)
    return replace(status, told_version=version, told_commit=commit)


@dataclass(frozen=True, slots=True)
class Place:
    """A Delta table of the lake that belongs to a source table: its copy, or its history."""

    table: str
    path: Location
    history: bool

    @property
    def name(self) -> str:
        return f"{self.table}__history" if self.history else self.table


def places(tools: Tools) -> Iterator[Place]:
    """All Delta tables of the lake that are there."""
    for name in sorted(tools.status.tables):
        table = TableName.parse(name)
        if table.schema.casefold() == OWN:  # it is stopped: it has no place
            continue
        both = (Place(name, table_location(tools.lake.location, table), False),
                 Place(name, history_location(tools.lake.location, table), True))  # fmt: skip
        yield from filter(_is_there, both)


def _is_there(place: Place) -> bool:
    """Whether there is a table; also where that cannot be read: its maintenance says so."""
    try:
        return log.version(place.path) is not None
    except StagingError:
        return True


def _improve(place: Place, tools: Tools, marks: Marks, done: list[str]) -> None:
    """Joins, clusters or purges the table's files, as they need it; `done` gets what it did. Raises LakeError;
    TableRefused for a table that we do not write."""
    if (table := _open(tools, place)) is None:
        return
    table.refresh()
    _improve_files(place, table, tools.check, marks, done)


def _improve_files(place: Place, table: OpenTable, check: Callable[[], None], marks: Marks, done: list[str]) -> None:
    """A file that we do not read, of another program, ends a step, and the steps behind it take the other files."""
    steps = [_join, _purge] if place.history else [_join, _cluster, _purge]
    refusals: list[TableRefused] = []
    for improve in steps:
        before = table.snapshot.version
        try:
            did = improve(place, table, check, marks)
        except TableRefused as error:
            refusals.append(error)
        else:
            done += [did] if table.snapshot.version != before else []
    if refusals:
        raise refusals[0]


def _join(place: Place, table: OpenTable, check: Callable[[], None], marks: Marks) -> str:
    file_upkeep.join_small_files(table, check)
    return "joined"


def _cluster(place: Place, table: OpenTable, check: Callable[[], None], marks: Marks) -> str:
    file_upkeep.cluster_all(table, check)
    return "clustered"


def _purge(place: Place, table: OpenTable, check: Callable[[], None], marks: Marks) -> str:
    size = _size(place)
    check()
    if _has_many_dead(size) or (marks.are_old(size) and not place.history):
        return "purged" if file_upkeep.purge_all(table, check) else "partly purged"
    if not place.history:
        file_upkeep.purge_deleted(table, check)
    return "deletes purged"


def _open(tools: Tools, place: Place) -> OpenTable | None:
    """None: nothing was merged into the table yet."""
    if place.history:
        return file_upkeep.open_history(tools.lake, place.path)
    if (schema := tools.status.tables[place.table].schema) is None:
        return None
    return file_upkeep.open_table(tools.lake, place.path, tools.staging.schema(schema))


def _has_many_dead(size: TableSize) -> bool:
    return bool(size.deleted and size.rows is not None and size.deleted > PURGE * (size.rows + size.deleted))


def _size(place: Place) -> TableSize:
    """By the table's log, and by its files where that does not say how many rows they have. Of a table with a feature
    that we do not read nobody counts rows."""
    files = TableFiles.at(place.path)
    newest = snapshot.newest(files)
    live_files = newest.files.values()
    rows: int | None = None
    dead: int | None = None
    with suppress(TableRefused):
        check_rows_readable(newest.protocol, newest.metadata, place.name)
        dead = sum(int(live.vector["cardinality"]) for live in live_files if live.vector is not None)
        rows = sum(stored_count(files, live, RowSet()) for live in live_files) - dead
    on_disk = list(place.path.storage.files(place.path.path))
    bytes_on_disk = sum(file.bytes for file in on_disk)
    size = sum(live.size for live in live_files)
    return TableSize(place.name, len(live_files), size, rows, dead, len(on_disk), bytes_on_disk)


def _remove_unneeded(place: Place, tools: Tools, oldest: Kept, *, keep: float, now: float) -> int:
    """Removes the files that neither the newest version needs, nor a cut that is kept, nor a reader who began within
    `keep` seconds; how many. Raises LakeError."""
    if math.isinf(keep):
        return 0
    files = TableFiles.at(place.path)
    since = unneeded_files.nearest_readable_version(files, _oldest_needed(place, tools, oldest, before=now - keep))
    try:
        return unneeded_files.remove_unneeded(files, since, before=now - min(keep, _UNCOMMITTED), check=tools.check)
    except TableRefused as error:
        raise LakeError(
            f"its old files stay, since {error.feature}",
            where=place.name,
            fix="run VACUUM, which knows such tables; or take the feature from the table",
        ) from error


def _oldest_needed(place: Place, tools: Tools, oldest: Kept, *, before: float) -> int:
    """The version that the oldest cut has; of a table that no cut names, the one of that time (seconds UTC)."""
    named = None if place.history or not oldest.number else cut_of(tools.lake.location, oldest.number).tables
    version = None if named is None else named.get(place.table)
    if version is None:
        version = log.newest_before(place.path, before)
    return -1 if version is None else version


def _oldest_read(tools: Tools, place: Place, oldest: Kept, before: float) -> int | None:
    """The version that the oldest cut has; of a history, which no cut names, that of `before` this time."""
    if place.history:
        return log.newest_before(place.path, before)
    return cut_of(tools.lake.location, oldest.number).tables.get(place.table)


def _retain(tools: Tools, config: Config, now: float) -> MaintainedStaging:
    """Staging's own share."""
    staging = tools.staging.handle()
    with closing(open_state(config)) as state:
        retention = Retention(
            staging,
            keep=durations.parse(config.staging.keep),
            now=now,
            over=lambda dump: dump_store.is_dump_over(state, dump),
        )
        starts = {name: output.start for name, output in config.output.items()}
        removed = retention.run(retention_needs.needs(staging, state, tools.status, outputs=starts))
    begins = removed.beginning
    return MaintainedStaging(begins.segment, begins.offset, removed.files, begins.held)
