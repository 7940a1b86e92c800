"""Whether a lake continues a staging: asked before anything is merged, and before anybody says "up to date".

The lake's record names a segment, its last offset, its log position and when it was sealed. A number alone proves
nothing: a staging that was put back from a copy seals the same log in other segments, and a new one begins to count
again. Offset and position prove too little: where the lake's segment had one row of a chunk, a mark may have its place.
So the segment must be in the staging with all of these, and the staging must have the identity that the lake recorded.
A copy has the identity too: up to the lake's own segment it is then the same super-changelog. The epoch of a segment
would tell less than its time: it is the same again where the state store was put back with the staging.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum

import orjson

from dblog_core.errors import CorruptSegment, LakeError
from dblog_core.lake.lake_status import LakeStatus, own_directory, read_status
from dblog_core.lake.merge_plan import Span
from dblog_core.staging import Staging
from dblog_core.storage.location import Location

_FIX = (
    "put the staging back that this lake was merged from; if it is lost, run `dblog lake adopt`: the lake continues "
    "with this one, and all tables are dumped"
)


class Continuity(StrEnum):
    """How a lake stands to a staging."""

    CONTINUES = "continues"
    NOTHING_MERGED = "nothing_merged"  # a new lake continues any staging
    OTHER_IDENTITY = "other_identity"
    ENDS_BEFORE = "ends_before"  # the newest segment is older than the lake's
    OTHER_SEGMENT = "other_segment"  # the lake's segment is missing, or ends elsewhere
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`identity`: the staging's; `message`, `where` and `fix`: why the lake does not continue it."""

    continuity: Continuity
    identity: str | None = None
    message: str = ""
    where: str = ""
    fix: str = ""

    @property
    def may_merge(self) -> bool:
        return self.continuity in (Continuity.CONTINUES, Continuity.NOTHING_MERGED)

    def to_error(self) -> LakeError:
        """The error of a command that needs a lake which continues the staging."""
        return LakeError(self.message, where=self.where, fix=self.fix)

    def check(self) -> None:
        """Raises LakeError unless the lake may be merged into."""
        if not self.may_merge:
            raise self.to_error()


@dataclass(frozen=True, slots=True)
class _Place:
    """A place up to which the lake has, or may have, changes. `whose` names it in messages; `offset`: the last
    one, or within the next segment if `is_inside`; `position`, `sealed_at`: None if nobody recorded it."""

    whose: str
    segment: int
    offset: int
    position: str | None = None
    is_inside: bool = False
    sealed_at: int | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedMerge:
    """A merge that was begun and has no outcome yet: rows of its span may be in tables. `staging`: the identity that
    its record names."""

    number: int
    span: Span
    staging: str | None


def read_unfinished_merge(lake: Location, status: LakeStatus | None) -> UnfinishedMerge | None:
    """The merge after `status`, if it was begun; its record is written before it applies anything. Raises LakeError."""
    number = (status.merge if status is not None else 0) + 1
    path = own_directory(lake) / "merges" / f"{number:012d}.json"
    try:
        if (data := path.read()) is None:
            return None
        record = orjson.loads(data)
        return UnfinishedMerge(number, Span(**record["span"]), record.get("staging"))
    except (ValueError, KeyError, TypeError) as error:
        raise LakeError(
            f"the record of a merge cannot be read: {error}", where=str(path), fix="restore it from a backup"
        ) from error


def judge_lake(staging: Staging, lake: Location) -> tuple[LakeStatus | None, Verdict]:
    """The lake's last finished merge, and whether the lake continues the staging.

    Raises LakeError, StagingUnavailable.
    """
    status = read_status(lake)
    begun = read_unfinished_merge(lake, status)
    return status, judge(staging, status, begun)


def judge(staging: Staging, lake: LakeStatus | None, unfinished: UnfinishedMerge | None = None) -> Verdict:
    """Whether the lake continues the staging. `lake`: its last finished merge. Raises StagingUnavailable."""
    begun = None
    if unfinished is not None and unfinished.span.last >= unfinished.span.first:
        begun = unfinished
    where = staging.storage.url("")
    try:
        identity = staging.identity()
        if (lake is None or not lake.merge) and begun is None:
            return Verdict(Continuity.NOTHING_MERGED, identity)
        recorded = (lake.staging if lake is not None else None) or (begun.staging if begun is not None else None)
        if recorded is not None and recorded != identity:
            message = f"the lake was merged from staging {recorded}, and this is {_name(identity)}"
            return Verdict(Continuity.OTHER_IDENTITY, identity, message, where, _FIX)
        head = staging.head_number()
        for place in _places(lake, None if begun is None else begun.span):
            if (fault := _find_fault(staging, place, head)) is not None:
                return Verdict(fault[0], identity, fault[1], where, _FIX)
    except CorruptSegment as error:
        return Verdict(Continuity.UNREADABLE, None, error.message, error.where, error.fix)
    return Verdict(Continuity.CONTINUES, identity)


def _name(identity: str | None) -> str:
    return "one without an identity" if identity is None else f"staging {identity}"


def _places(lake: LakeStatus | None, begun: Span | None) -> list[_Place]:
    places = []
    if lake is not None and lake.merge:
        position = lake.position or None
        places.append(_Place("the lake is at", lake.segment, lake.offset, position, sealed_at=lake.sealed_at))
        # A reset counts a table's log from a place of its own, behind which rows of an older log would be left out.
        places += [
            _Place(f"{name} is at", table.segment, table.offset, is_inside=True)
            for name, table in sorted(lake.tables.items())
            if table.segment > lake.segment
        ]
    if begun is not None:
        whose = "the merge that is not finished ends with"
        places.append(_Place(whose, begun.last, begun.offset, begun.position, sealed_at=begun.sealed_at))
    return places


def _find_fault(staging: Staging, place: _Place, head: int) -> tuple[Continuity, str] | None:
    """Why the place is not in the staging; None: it is."""
    if place.segment > head:
        ends = f"the staging ends before it, with segment {head}" if head else "the staging is empty"
        return (Continuity.ENDS_BEFORE, f"{place.whose} segment {place.segment}, {ends}") if place.segment else None
    begins = staging.beginning()
    if place.segment < begins.segment:
        if (place.segment, place.offset) == (begins.segment - 1, begins.offset - 1):
            return None  # nothing behind it was removed
        what = f"the staging begins with segment {begins.segment}, after offset {begins.offset - 1}"
        return Continuity.OTHER_SEGMENT, f"{place.whose} segment {place.segment}, offset {place.offset}; {what}"
    manifest = staging.manifest(place.segment)
    end = manifest.end_of(place.segment)
    if place.is_inside and end < place.offset and place.segment < head:
        following = staging.manifest(place.segment + 1)
        end = place.offset if place.offset < following.end_of(place.segment + 1) else end
    position = manifest.log_position_after(place.segment)
    sealed_at = manifest.sealed_at_of(place.segment)
    # What an earlier version has not recorded, or not kept of joined segments, leaves the rest to tell.
    if end != place.offset or _differ(place.position, position):
        have = f"offset {place.offset}" + (f", position {place.position}" if place.position else "")
        has = f"ends at offset {end}, position {position or 'unknown'}"
    elif _differ(place.sealed_at, sealed_at):
        have = f"sealed at {_time_text(place.sealed_at)}"
        has = f"was sealed at {_time_text(sealed_at)}"
    else:
        return None
    return (
        Continuity.OTHER_SEGMENT,
        f"{place.whose} segment {place.segment}, {have}; in this staging that segment {has}: it was put back from a "
        "copy, and has continued since",
    )


def _differ(recorded: str | int | None, present: str | int | None) -> bool:
    """Whether both are known, and not the same."""
    return None not in (recorded, present) and recorded != present


def _time_text(microseconds: int | None) -> str:
    if microseconds is None:
        return "an unknown time"
    return f"{dt.datetime.fromtimestamp(microseconds / 1e6, dt.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
