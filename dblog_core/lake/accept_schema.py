"""What `dblog schema accept` does with a table whose shape the lake does not follow: planned here without
Spark, from staging and the lake's status; carried out by a lake task (`dblog_core.lake_engine.tasks.accept_schema`).

Whatever the log cannot tell comes by a full dump, so that the lake equals the source once that is merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from dblog_core.config.lake import SchemaChanges
from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.model.events import SCHEMA
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark, Manifest


class Way(StrEnum):
    """How a shape is accepted."""

    FOLLOW = "follow"
    """The next merge follows all shapes up to here, as `evolve` does."""
    TAKE = "take"
    """The lake table takes the shape now; a dump brings what its rows lack."""
    REPLACE = "replace"
    """So it does, without the old values of columns whose type is another; what was staged before is left to a dump."""
    RELOAD = "reload"
    """It is emptied and dumped again, as by a reset: the rows that it has cannot be found by the new key."""
    BEGIN = "begin"
    """The lake has nothing of the table yet: it makes it with the shape, and leaves what was staged to a dump."""


BY_RESET = frozenset({Way.REPLACE, Way.RELOAD, Way.BEGIN})
"""Where the table's log begins to count again."""


_DOES = {
    Way.FOLLOW: "the next merge follows the change, as it does with schema_changes = \"evolve\"",
    Way.TAKE: "the lake table takes the newest shape; a full dump brings what its rows lack, and until that is merged "
    "the table is incomplete",
    Way.REPLACE: "the lake table takes the newest shape and keeps its rows, in which a column of another type is NULL; "
    "a full dump brings every row as it is now, and until that is merged the table is incomplete",
    Way.RELOAD: "the lake table is emptied, since another key identifies its rows now, and takes the newest "
    "shape; a full dump brings every row, and until that is merged the table is incomplete",
    Way.BEGIN: "the lake has nothing of the table yet, and makes it with the newest shape; a full dump brings every "
    "row, and until that is merged the table is incomplete",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """`schema`: the fingerprint of the shape that is accepted; `offset`: what is staged at present; `changes`: in
    words.
    """

    table: str
    way: Way
    schema: str
    offset: int
    changes: tuple[str, ...]

    @property
    def does(self) -> str:
        return _DOES[self.way]


def plan_acceptance(staging: Staging, table: str, status: TableStatus | None, policy: SchemaChanges) -> Plan:
    """What an acceptance would do now. Raises LakeError where there is nothing to accept, or it would not help."""
    head = staging.head()
    fingerprint = head.schemas.get(table) if head is not None else None
    if status is not None and status.version is None and status.state is State.STOPPED and head and fingerprint:
        return _plan_first_shape(staging, table, status, head, fingerprint)
    if status is None or status.schema is None or status.version is None or head is None or fingerprint is None:
        raise LakeError(
            "the lake has no such table, or staging does not know its shape",
            where=table,
            fix="`dblog status` names the tables; a new one takes its first shape with its first merge",
        )
    marks = _shapes_since(staging, table, status, head)
    shapes = [staging.schema(status.schema), *(staging.schema(f) for _, f in marks), staging.schema(fingerprint)]
    changes = tuple(word for before, after in pairwise(shapes) for word in describe_change(before, after))
    # By the names that columns have now, where that is proven; a lake that keeps its own names does not ask.
    renames = Renames.of([] if policy == "ignore" else [mark for mark, _ in marks])
    changes = (*(f"column {old} is now {new}" for m, _ in marks for new, old in (m.renamed or {}).items()), *changes)
    led = [
        renames.rename_columns(shapes[0]),
        *(renames.after(m.offset).rename_columns(staging.schema(f)) for m, f in marks),
        shapes[-1],
    ]
    way = _choose_way(led, status, policy, changed=bool(changes))
    if way is None:
        raise _nothing_to_accept(table, status, changed=bool(changes))
    return Plan(table, way, fingerprint, head.last_offset, changes or tuple(_left_out(status)))


def _plan_first_shape(staging: Staging, table: str, status: TableStatus, head: Manifest, fingerprint: str) -> Plan:
    """For a table that its first merge has stopped, since what is staged of it has shapes that do not follow each
    other."""
    newest = staging.schema(fingerprint)
    older = [staging.schema(f) for f in _list_staged_shapes(staging, table, status, head) if f != fingerprint]
    changes = dict.fromkeys(change for schema in older for change in describe_change(schema, newest))
    if not changes:
        raise _nothing_to_accept(table, status, changed=False)
    return Plan(table, Way.BEGIN, fingerprint, head.last_offset, tuple(changes))


def _list_staged_shapes(staging: Staging, table: str, status: TableStatus, head: Manifest) -> list[str]:
    """The fingerprints of all that the table's next merge reads. A row may have another shape than the last mark."""
    shapes = dict[str, None]()
    for manifest in _manifests_since(staging, status, head):
        shapes |= dict.fromkeys(m.schema for m in manifest.marks if m.table == table and m.schema is not None)
        shapes |= dict.fromkeys(file.schema for file in manifest.files if file.table == table)
        shapes |= dict.fromkeys(chunk.schema for chunk in manifest.chunks if chunk.table == table)
    return list(shapes)


def _shapes_since(staging: Staging, table: str, status: TableStatus, head: Manifest) -> list[tuple[LogMark, str]]:
    """The shapes that the table has taken since what the lake has of it: marks with their fingerprints."""
    manifests = _manifests_since(staging, status, head)
    marks = (mark for manifest in manifests for mark in manifest.marks if mark.table == table and mark.op == SCHEMA)
    return [(mark, mark.schema) for mark in marks if mark.schema is not None]


def _manifests_since(staging: Staging, status: TableStatus, head: Manifest) -> Iterable[Manifest]:
    # Retention may have removed the segments behind the table's own.
    first = max(status.segment, staging.first_number() - 1)
    return () if first >= head.segment else staging.manifests(after=first, upto=head.segment)


def _choose_way(shapes: list[TableSchema], status: TableStatus, policy: SchemaChanges, *, changed: bool) -> Way | None:
    newest = shapes[-1]
    # The gravest change decides for the whole way.
    if any(_has_another_key(older, newest) for older in shapes):
        return Way.RELOAD
    if any(compatibility.compare_schemas(older, newest).faults for older in shapes):
        return Way.REPLACE
    if policy == "ignore":
        return Way.TAKE if changed or status.ignored is not None else None
    if policy == "fail":
        return Way.FOLLOW if changed else None
    # A merge follows such shapes on its own, except where the lake keeps a dropped column that came back as another.
    added = any(compatibility.compare_schemas(older, newest).added for older in shapes)
    return Way.REPLACE if status.state is State.STOPPED and added else None


def _has_another_key(older: TableSchema, newest: TableSchema) -> bool:
    if older.key != newest.key:
        return True
    # A widened key column keeps its values, so rows are still found by it.
    pairs = zip(older.key_columns, newest.key_columns, strict=True)
    return any(a.type != b.type and not compatibility.is_widening(a.type, b.type) for a, b in pairs)


def _nothing_to_accept(table: str, status: TableStatus, *, changed: bool) -> LakeError:
    if status.state is State.STOPPED:
        what = f"the table has not stopped because of its shape: {status.error}"
        return LakeError(what, where=table, fix=f"repair that, or run `dblog reset {quote_for_shell(table)}`")
    if changed:
        return LakeError("nothing stands in its way", where=table, fix="run `dblog merge`: it follows the change")
    return LakeError("the lake has its newest shape: there is nothing to accept", where=table)


def _left_out(status: TableStatus) -> list[str]:
    return [f"column {name} is no longer left out" for name in status.ignored or ()]


def describe_change(before: TableSchema, after: TableSchema) -> list[str]:
    """How the shape changes, for people."""
    difference = compatibility.compare_schemas(before, after)
    old, new = ({c.name: c for c in schema.columns} for schema in (before, after))
    changes = [f"column {name} was added ({compatibility.describe_type(new[name])})" for name in difference.added]
    changes += [f"column {name} was dropped" for name in difference.dropped]
    changes += [
        f"column {n} was {compatibility.describe_type(old[n])} and is {compatibility.describe_type(new[n])}"
        for n in difference.widened
    ]
    changes += difference.faults
    if not changes and before.fingerprint != after.fingerprint:
        return ["its columns stand in another order"]
    return changes
