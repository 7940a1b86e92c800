"""Who still needs old segments of the super-changelog: what retention asks before it removes any.

    the lake        its own segment, by which it knows its staging (`lake.continuity`); each table from the segment
                    after its own on (one that waits for a dump has no use for what is older: the dump's chunks are
                    newer; one that has stopped and is no longer captured needs a dump when it comes back)
    dumps           an unfinished one from its first chunk on; a finished one until its end is merged
    the capture     events that a SELECT may not have seen yet: its memory of them is read again after a restart
    outputs         each that is configured what it has not passed on (`outputs.positions`), or all from its start on

Whatever begins while they are gathered needs only what is newer; a dump that ends meanwhile is found by its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps import dump_store
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import StateStore
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus
from dblog_core.model.events import FINISHED
from dblog_core.outputs import positions
from dblog_core.staging import Staging, table_records
from dblog_core.staging.log_start import Need
from dblog_core.staging.manifest import Manifest
from dblog_core.state import settings_in_force
from dblog_core.state.settings_in_force import LiveSettings


def needs(
    staging: Staging, state: StateStore, lake: LakeStatus | None, *, outputs: Mapping[str, str | int]
) -> list[Need]:
    """All needs. `lake`: the last finished merge, by the holder of the lake's lock; None: none has finished yet;
    `outputs`: where each that is configured begins.

    Raises CorruptSegment, StateError.
    """
    head = staging.head()
    if head is None:
        return []
    # Read before the ends of dumps below: a dump that ends in between is found there.
    dumps = list(of_dumps(head, dump_store.list_unfinished_dumps(state)))
    records = table_records.read_newest(staging, settings_in_force.NODE)
    in_force = settings_in_force.read_in_force(records)
    return [
        *of_lake(lake, in_force),
        *dumps,
        *_of_ends(staging, lake, in_force),
        *_of_unseen(staging, head),
        *_of_outputs(staging, head, state, outputs),
    ]


def of_lake(lake: LakeStatus | None, in_force: LiveSettings | None = None) -> Iterator[Need]:
    """What the lake's own record tells. `in_force`: the settings that say which tables are captured; None: all are."""
    if lake is None or not lake.merge:
        yield Need(1, "nothing is merged into the lake yet")
        return
    yield Need(max(1, lake.segment), f"the lake has merged up to segment {lake.segment}")
    for name, table in _list_waiting_tables(lake, in_force):
        if table.state is State.STOPPED:
            yield Need(table.segment + 1, f"{name} is stopped at segment {table.segment}")
        else:  # it is late, or a reset has set it there
            yield Need(table.segment + 1, f"{name} is merged up to segment {table.segment}")


def _list_waiting_tables(lake: LakeStatus, in_force: LiveSettings | None) -> Iterator[tuple[str, TableStatus]]:
    """The tables that still need what the others have merged."""
    for name, table in sorted(lake.tables.items()):
        if table.state is not State.STOPPED:
            if table.segment < lake.segment:
                yield name, table
        elif in_force is None or settings_in_force.is_captured(name, in_force):
            yield name, table


def of_dumps(head: Manifest, unfinished: Iterable[DumpStatus]) -> Iterator[Need]:
    """Unfinished dumps, by the newest manifest and by the state store: either may know more than the other."""
    for staged, progress in sorted(head.progress().items()):
        yield from _of_task(staged.dump, progress)
    for dump in unfinished:
        for task in dump.tasks:
            yield from _of_task(dump.id, task.progress)


def _of_task(dump: str, progress: TaskProgress) -> Iterator[Need]:
    if progress.attempt or progress.ordinal:  # before its first watermark, nothing of it is staged
        yield Need(progress.since_segment, f"dump {dump} of {progress.table} is not finished")


def _of_ends(staging: Staging, lake: LakeStatus | None, in_force: LiveSettings | None) -> Iterator[Need]:
    """Dumps whose end is staged and not merged by their tables: all of its chunks are needed to find ghosts."""
    if lake is None or not lake.merge:
        return
    waiting = dict(_list_waiting_tables(lake, in_force))
    after = min([lake.segment, *(table.segment for table in waiting.values())])
    for manifest in staging.manifests(after=max(after, staging.first_number() - 1)):
        for mark in manifest.marks:
            merged = waiting[mark.table].offset if mark.table in waiting else lake.offset
            if mark.op == FINISHED and mark.since_segment is not None and mark.offset > merged:
                yield Need(mark.since_segment, f"the end of dump {mark.dump} of {mark.table} is not merged")


def _of_unseen(staging: Staging, head: Manifest) -> Iterator[Need]:
    if head.unseen_after is not None and head.unseen_after < head.last_offset:
        segment = staging.segment_of(head.unseen_after + 1, head)
        yield Need(segment, f"the capture remembers events after offset {head.unseen_after}")


def _of_outputs(staging: Staging, head: Manifest, state: StateStore, starts: Mapping[str, str | int]) -> Iterator[Need]:
    """Of outputs that are configured: the others no longer need anything."""
    for name, start in sorted(starts.items()):
        entry = positions.read_place(state, name)
        if entry is None and start != "latest":  # that one begins where the log is when it begins
            segment = 1 if start == "earliest" else staging.segment_of(int(start), head)
            yield Need(segment, f"output {name} has not begun")
        elif entry is not None and (offset := entry[0].offset) < head.last_offset:
            # The one that it stands in, read whole or not: those without a line may follow it.
            yield Need(staging.segment_of(offset, head), f"output {name} has passed on up to offset {offset}")
