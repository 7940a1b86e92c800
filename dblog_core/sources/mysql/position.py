"""Positions in the log: binlog file and offset, and the set of transactions (GTIDs) that lie before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson

from dblog_core.errors import LogPositionLost


class Gtids(Protocol):
    """A set of executed transactions."""

    def with_transaction(self, gtid: str) -> Gtids:
        """The set with one transaction more. Raises ValueError for a text that is no GTID."""

    def with_transactions(self, gtids: Sequence[str]) -> Gtids:
        """The set with transactions more, in the order in which they were committed."""

    def contains(self, other: Gtids) -> bool:
        """Whether all transactions of the other set are in this one; no set holds one of another server kind."""

    def __str__(self) -> str: ...


Intervals = tuple[tuple[int, int], ...]
"""First and last number of each, in growing order."""


@dataclass(frozen=True)
class MysqlGtids:
    """MySQL: closed intervals per server uuid, or per `uuid:tag`."""

    intervals: dict[str, tuple[tuple[int, int], ...]]

    @classmethod
    def parse(cls, text: str) -> MysqlGtids:
        """Reads `uuid:1-5:7:tag:1-3,…`. Raises ValueError."""
        intervals: dict[str, list[tuple[int, int]]] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            uuid, *pieces = part.split(":")
            owner = uuid.lower()
            for piece in pieces:
                # A tag holds for the intervals behind it, up to the next tag; those in front of the first have none.
                if match := _INTERVAL.fullmatch(piece):
                    intervals.setdefault(owner, []).append((int(match[1]), int(match[2] or match[1])))
                else:
                    owner = f"{uuid.lower()}:{piece.strip().lower()}"
        return cls({owner: _merge(items) for owner, items in intervals.items()})

    def with_transaction(self, gtid: str) -> MysqlGtids:
        owner, _, number = gtid.rpartition(":")
        n = int(number)
        have = self.intervals.get(owner, ())
        if have and have[-1][1] == n - 1:  # the usual case: the next number
            return MysqlGtids({**self.intervals, owner: (*have[:-1], (have[-1][0], n))})
        return MysqlGtids({**self.intervals, owner: _merge([*have, (n, n)])})

    def with_transactions(self, gtids: Sequence[str]) -> MysqlGtids:
        new_intervals: dict[str, list[tuple[int, int]]] = {}
        owner = ""
        first = 0
        last = 0
        for gtid in gtids:
            name, _, number = gtid.rpartition(":")
            n = int(number)
            if name == owner and n == last + 1:  # the usual case: the next number of the same server
                last = n
                continue
            if owner:
                new_intervals.setdefault(owner, []).append((first, last))
            owner = name
            first = n
            last = n
        if owner:
            new_intervals.setdefault(owner, []).append((first, last))
        # Once for each server, not once for each transaction: thousands of them come together here.
        more = {name: _merge([*self.intervals.get(name, ()), *items]) for name, items in new_intervals.items()}
        return MysqlGtids({**self.intervals, **more})

    def contains(self, other: Gtids) -> bool:
        if not isinstance(other, MysqlGtids):
            return False
        for owner, items in other.intervals.items():
            have = self.intervals.get(owner, ())
            # Intervals are merged: one of ours holds the other as a whole, or something is missing.
            if not all(any(a <= first and last <= b for a, b in have) for first, last in items):
                return False
        return True

    def without(self, gtid: str) -> MysqlGtids:
        """The set with this transaction left out."""
        owner, _, number = gtid.rpartition(":")
        n = int(number)
        intervals_left = []
        for a, b in self.intervals.get(owner, ()):
            intervals_left += [(a, b)] if not a <= n <= b else [(x, y) for x, y in ((a, n - 1), (n + 1, b)) if x <= y]
        rest = {name: items for name, items in self.intervals.items() if name != owner}
        return MysqlGtids({**rest, owner: tuple(intervals_left)} if intervals_left else rest)

    def beyond(self, other: MysqlGtids) -> MysqlGtids | None:
        """What `other` lacks of these; None if nothing."""
        left = {owner: _without(items, other.intervals.get(owner, ())) for owner, items in self.intervals.items()}
        lacking = {owner: items for owner, items in left.items() if items}
        return MysqlGtids(lacking) if lacking else None

    @property
    def has_tags(self) -> bool:
        """Whether any GTID has a tag (MySQL 8.3 and later)."""
        return any(":" in owner for owner in self.intervals)

    def __str__(self) -> str:
        def format_interval(a: int, b: int) -> str:
            return str(a) if a == b else f"{a}-{b}"

        return ",".join(
            ":".join([owner, *(format_interval(a, b) for a, b in items)])
            for owner, items in sorted(self.intervals.items())
        )


_INTERVAL = re.compile(r"\s*(\d+)(?:-(\d+))?\s*")


def _merge(items: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for a, b in sorted(items):
        # 1-3 and 4-5 are one interval, as the servers print them.
        if merged and a <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return tuple(merged)


def _without(items: Intervals, others: Intervals) -> Intervals:
    """What of `items` lies in none of `others`; both are in growing order."""
    left = []
    for first, last in items:
        for a, b in others:
            if a > last:
                break
            if first < a:
                left.append((first, a - 1))
            first = max(first, b + 1)
        if first <= last:
            left.append((first, last))
    return tuple(left)


@dataclass(frozen=True)
class MariadbGtids:
    """MariaDB: the last transaction of each replication domain, as (server id, sequence number)."""

    last: dict[int, tuple[int, int]]

    @classmethod
    def parse(cls, text: str) -> MariadbGtids:
        """Reads `domain-server-sequence,…`. Raises ValueError."""
        parts = [piece.strip().split("-") for piece in text.split(",") if piece.strip()]
        return cls({int(domain): (int(server), int(number)) for domain, server, number in parts})

    def with_transaction(self, gtid: str) -> MariadbGtids:
        domain, server, number = map(int, gtid.split("-"))
        return MariadbGtids({**self.last, domain: (server, number)})

    def with_transactions(self, gtids: Sequence[str]) -> MariadbGtids:
        last = dict(self.last)
        for gtid in gtids:
            domain, server, number = gtid.split("-")
            last[int(domain)] = int(server), int(number)
        return MariadbGtids(last)

    def contains(self, other: Gtids) -> bool:
        if not isinstance(other, MariadbGtids):
            return False
        # Numbers of a domain go up whichever server writes, so the server's id says nothing here.
        return all(domain in self.last and self.last[domain][1] >= number for domain, (_, number) in other.last.items())

    def beyond(self, state: str) -> MariadbGtids | None:
        """What a log lacks of these, by its `state`: the last number of each domain and server in it. None: nothing."""
        logged: dict[tuple[int, int], int] = {}
        for piece in filter(None, (part.strip() for part in state.split(","))):
            domain, server, number = map(int, piece.split("-"))
            logged[domain, server] = number
        lacking = {d: (s, n) for d, (s, n) in self.last.items() if logged.get((d, s), -1) < n}
        return MariadbGtids(lacking) if lacking else None

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where the rows of a prepared XA transaction lie: file and offset of its group, and the group's own GTID.

    `before`: on MariaDB the GTIDs before the group, from which the server finds it again; None elsewhere.
    """

    xid: str
    file: str
    start: int
    gtid: str | None
    before: str | None

    def __str__(self) -> str:
        return f"{self.file}:{self.start}" + (f" ({self.gtid})" if self.gtid else "")


@dataclass(frozen=True, slots=True)
class Newest:
    """The transaction that ends at a position, by which a server that has given its GTID to another one is known.

    `time`: when it was committed first, in microseconds; `file`, `start`: where it begins, on the server where it was
    read; `before`: on MariaDB the GTIDs before it, from which any server finds it again; None elsewhere.
    """

    gtid: str
    time: int
    file: str
    start: int
    before: str | None


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two transactions.

    `gtids` is None on a server without GTIDs; then `server` is the server's uuid, whose file names these are. `next`:
    the transaction that begins here, where a part of it has been delivered already. `prepared`: the XA transactions
    that are prepared before this place and neither committed nor rolled back before it. `newest`: what was read last,
    where its time is logged.
    """

    file: str
    offset: int
    gtids: Gtids | None
    server: str | None = None
    next: str | None = None
    prepared: tuple[Prepared, ...] = ()
    newest: Newest | None = None

    def encode(self) -> str:
        """The text that staging keeps, which `decode` reads. Older forms lack the later fields."""
        gtids = None if self.gtids is None else str(self.gtids)
        # Fields that say nothing are left out: such a position is the same text as before there were these fields.
        data: dict[str, Any] = {"file": self.file, "offset": self.offset, "gtids": gtids}
        for name in ("server", "next"):
            if value := getattr(self, name):
                data[name] = value
        if self.prepared:
            data["prepared"] = [[p.xid, p.file, p.start, p.gtid, p.before] for p in self.prepared]
        if self.newest is not None:
            data["newest"] = [getattr(self.newest, field) for field in Newest.__slots__]
        return orjson.dumps(data).decode()

    @classmethod
    def decode(cls, text: str, *, mariadb: bool) -> Position:
        """Reads `encode`'s text. Raises LogPositionLost where it is none."""
        try:
            data = orjson.loads(text)
            gtids = data["gtids"]
            flavour = MariadbGtids if mariadb else MysqlGtids
            parsed: Gtids | None = None if gtids is None else flavour.parse(gtids)
            prepared = tuple(Prepared(*entry) for entry in data.get("prepared", ()))
            newest = Newest(*data["newest"]) if data.get("newest") else None
            return cls(
                str(data["file"]), int(data["offset"]), parsed, data.get("server"), data.get("next"), prepared, newest
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LogPositionLost(
                f"{text[:200]!r} is not a position of this kind of server",
                fix="the staging directory belongs to another source; give this source its own",
            ) from error

    def has_reached(self, target: Position) -> bool:
        """Whether all that is before `target` is before this place too."""
        # After a failover the files are another server's, and only GTIDs can be compared.
        if self.gtids is not None and target.gtids is not None:
            return self.gtids.contains(target.gtids)
        return (file_number(self.file), self.offset) >= (file_number(target.file), target.offset)

    def is_after(self, gtid: str, place: str) -> bool:
        """Whether a transaction lies before this place: `gtid` is its GTID, or no GTID, and `place` where it begins, as
        FILE:OFFSET of the server whose files these are."""
        try:
            if isinstance(self.gtids, MysqlGtids | MariadbGtids):
                return self.gtids.contains(type(self.gtids).parse(gtid))
        except ValueError:
            pass  # it has none, and is of a log without
        file, _, offset = place.rpartition(":")
        return (file_number(file), int(offset)) < (file_number(self.file), self.offset)

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}" + (f" ({self.gtids})" if self.gtids is not None and str(self.gtids) else "")

    def outstanding(self, xid: str) -> Prepared | None:
        """Where the rows of this XA transaction lie, if it is prepared and not finished."""
        return next((entry for entry in self.prepared if entry.xid == xid), None)

    def finished(self, xid: str) -> tuple[Prepared, ...]:
        """`prepared` without this XA transaction."""
        return tuple(entry for entry in self.prepared if entry.xid != xid)

    def after(self, gtids: Sequence[str], *, start: int, end: int, file: str, time: int) -> Position:
        """With these transactions read too, the last of which lies from `start` to `end`, and was committed at `time`
        (0: unknown)."""
        assert self.gtids is not None
        # The last one is added apart: on MariaDB the set before it is what finds it again.
        before = self.gtids.with_transactions(gtids[:-1]) if len(gtids) > 1 else self.gtids
        gtids_before = str(before) if isinstance(before, MariadbGtids) else None
        newest = Newest(gtids[-1], time, file, start, gtids_before) if time else None
        gone_on = before.with_transaction(gtids[-1])
        return replace(self, file=file, offset=end, gtids=gone_on, server=None, newest=newest)

    def with_changes(self, **changes: Any) -> Position:
        """The position with these fields changed."""
        return replace(self, **changes)


def file_number(name: str) -> int:
    """The number at the end of a binlog's file name: names grow in length after 999999."""
    return int(name.rpartition(".")[2])
