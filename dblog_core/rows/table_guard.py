"""What of a source with hiding rules may pass: rows of tables that are proven to be what somebody has accepted.

    MySQL, MariaDB  -> the log tells: a table has its columns until a statement changes them, and comes into being by a
                       CREATE TABLE; what a statement may have moved is held from its place on (`follow`)
    PostgreSQL      -> the catalogue tells, asked after rows were read and before they pass: what it describes as it was
                       described when it was accepted has been so in between (`judge`)

The list is of what may pass. A table that is not on it, or is there with another shape, is held (`Held`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from dblog_core.config.source import ColumnRules
from dblog_core.interfaces import Problem
from dblog_core.model.events import Altered, Created, RowsMoved, SchemaSeen, Signal, Transaction
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_identity import Origin
from dblog_core.rows import column_rule_faults, former_partitions
from dblog_core.rows.acceptance import Acceptance, Acceptances, Held, digest_columns
from dblog_core.rows.held_problems import explain


class Witness(Protocol):
    """A source whose catalogue tells what a table is."""

    def origins(self, tables: Collection[TableName]) -> Mapping[TableName, Origin]:
        """Of those of the tables that exist now."""

    def current_position(self) -> str: ...


class Places(Protocol):
    """A source that compares places of its log."""

    def has_reached(self, position: str, target: str) -> bool: ...

    def lies_before(self, transaction: Transaction, position: str) -> bool: ...

    def horizon(self) -> str | None:
        """As `Source.horizon`."""


class _Unordered:
    """Of a log in which no table waits."""

    def has_reached(self, position: str, target: str) -> bool:
        raise NotImplementedError(f"{position} and {target} are compared by a source")

    def lies_before(self, transaction: Transaction, position: str) -> bool:
        raise NotImplementedError(f"{transaction} and {position} are compared by a source")

    def horizon(self) -> str | None:
        raise NotImplementedError("a source has a horizon")


UNORDERED: Places = _Unordered()
"""For who has no source."""


@dataclass(frozen=True, slots=True)
class Hold:
    """From here on no row of the table passes; `problem`: why, and what a person does. None: it is accepted as it is
    now, and waits until the log is read up to now."""

    table: TableName
    problem: Problem | None


class TableGuard:
    """The acceptances at the log's place. One without hiding rules lets all pass."""

    def __init__(
        self,
        rules: Mapping[str, ColumnRules],
        entries: Mapping[str, str],
        acceptances: Acceptances | None = None,
        *,
        witness: Witness | None = None,
    ) -> None:
        """`entries`: digest of each table's entry; `acceptances`: those of the manifest; `witness`: None where the log
        tells."""
        self._hides = {table for table in rules if column_rule_faults.hidden_columns(rules[table])}
        self._entries = dict(entries)
        self._witness = witness
        self._acceptances = dict(acceptances or {})
        self._held = {table for table, a in self._acceptances.items() if a.why_held not in (None, Held.GONE)}
        self._oids: dict[TableName, set[int]] = {}
        self._proven: set[TableName] = set()
        self._hides_parts = False
        self._doubts_parts = False
        self._shown: dict[str, str] = {}
        self._is_saved = acceptances is not None or not self.is_active

    @property
    def is_active(self) -> bool:
        """Whether any table has columns to hide."""
        return bool(self._hides)

    @property
    def asks_log(self) -> bool:
        """Whether the log alone tells what a table is, so that nothing is proven which it was not read up to."""
        return self.is_active and self._witness is None

    @property
    def has_changes(self) -> bool:
        """Whether the manifest lacks something."""
        return not self._is_saved

    def note_saved(self) -> None:
        """A manifest with the acceptances is published."""
        self._is_saved = True

    @property
    def acceptances(self) -> Mapping[str, Acceptance] | None:
        """For the manifest, by table; None without hiding rules."""
        return self._acceptances if self.is_active else None

    def find(self, table: str) -> Acceptance | None:
        return self._acceptances.get(table)

    def hides(self, table: str) -> bool:
        """Whether an entry hides columns of the table."""
        return table in self._hides

    def hiding(self) -> list[TableName]:
        """The tables of which entries hide columns."""
        return [TableName.parse(table) for table in self._hides]

    def entry(self, table: str) -> str:
        """The digest of the table's entry; empty: it has none."""
        return self._entries.get(table, "")

    def accept(self, table: str, acceptance: Acceptance) -> None:
        """Somebody has accepted the table, or it is proven to be nothing else."""
        before = self._acceptances.get(table)
        is_watched = before is not None and (table in self._hides or table in self._held)
        if before is not None and is_watched and former_partitions.may_be_accepted(before, acceptance):
            self._doubts_parts = True
        self._put(table, acceptance)

    def forget(self, tables: Collection[str]) -> None:
        """Tables that nobody captures."""
        for table in tables:
            if self._acceptances.pop(table, None) is not None:
                self._held.discard(table)
                self._is_saved = False

    def held(self) -> dict[str, Problem]:
        """The tables of which nothing passes until somebody accepts them."""
        return {
            table: explain(table, acceptance.why_held)
            for table, acceptance in self._acceptances.items()
            if acceptance.why_held not in (None, Held.GONE)
        }

    def waiting(self) -> set[str]:
        """The accepted tables of which rows pass from a later place on, or once the source has them again."""
        return {t for t, a in self._acceptances.items() if a.why_held is Held.GONE or (a.why_held is None and a.since)}

    def passes(self, table: str) -> bool:
        """Whether rows of the table may pass as far as is known."""
        if not self.is_active:
            return True
        acceptance = self._acceptances.get(table)
        return acceptance is not None and acceptance.why_held is None and not acceptance.since

    def waits(self, table: str) -> bool:
        """Whether the table is accepted, and the log not read up to where its rows pass."""
        acceptance = self._acceptances.get(table)
        return acceptance is not None and acceptance.why_held is None and bool(acceptance.since)

    def release(self, has_passed: Callable[[str], bool]) -> tuple[list[TableName], list[Hold]]:
        """The tables whose place the log has reached, as `has_passed` says of one: those that pass from here on, and
        those that show another shape than the accepted one."""
        reached = [t for t, a in self._acceptances.items() if a.why_held is None and a.since and has_passed(a.since)]
        released: list[TableName] = []
        holds: list[Hold] = []
        for table in reached:
            shape = self._acceptances[table].shape
            self._put(table, replace(self._acceptances[table], since=""))
            if table in self._hides and shape and self._shown.get(table, shape) != shape:
                holds += self._hold([table], Held.RESHAPED)
            else:
                released.append(TableName.parse(table))
        return released, holds

    # By the log -----------------------------------------------------------------------------------------------------

    def follow(self, signal: Signal, lies_before: Callable[[str], bool] = lambda place: False) -> list[Hold]:
        """The next signal of the log, at its place; `lies_before`: whether that is before another place."""
        if not self.is_active:
            return []
        if self._witness is not None:
            if isinstance(signal, SchemaSeen):
                self._note_oid(signal)
            return []
        match signal:
            case SchemaSeen():
                return self._check_shape(signal.schema, lies_before)
            case Created():
                self._accept_created(signal)
            case RowsMoved(left=None):
                known_tables = [name for name in self._acceptances if not self._is_past(name, lies_before)]
                return self._hold(known_tables, Held.UNKNOWN)
            case RowsMoved():
                moved = [
                    name for table in signal.left or () for name in self._find_meant(table, any_case=signal.any_case)
                ]
                return self._hold([name for name in moved if not self._is_past(name, lies_before)], Held.ARRIVED)
            case Altered() if not signal.anew and (why := _may_move_names(signal)) is not None:
                altered = self._find_meant(signal.table, any_case=signal.any_case)
                altered = [name for name in altered if not self._is_past(name, lies_before)]
                return self._hold([name for name in altered if name in self._hides], why)
        return []

    def _is_past(self, table: str, lies_before: Callable[[str], bool]) -> bool:
        """Whether the table was accepted as it is after this place, and no row passes before."""
        acceptance = self._acceptances.get(table)
        return acceptance is not None and bool(acceptance.since) and lies_before(acceptance.since)

    def _check_shape(self, schema: TableSchema, lies_before: Callable[[str], bool]) -> list[Hold]:
        name = str(schema.table)
        acceptance = self._acceptances.get(name)
        if acceptance is None:
            return self._hold([name], Held.UNWATCHED)
        if name in self._hides and acceptance.why_held is None:
            shape = digest_columns(schema)
            self._shown[name] = shape
            if self._is_past(name, lies_before):
                return []
            if not acceptance.shape:  # it was made in the log, and this is the first that it shows
                self._put(name, replace(acceptance, shape=shape))
            elif acceptance.shape != shape:
                return self._hold([name], Held.RESHAPED)
        return []

    def _accept_created(self, signal: Created) -> None:
        """It has no row of before. What is held stays so: under its name there may be more log than of this table."""
        for name in self._find_meant(signal.table, any_case=signal.any_case):
            if name not in self._acceptances:
                self._put(name, Acceptance(self.entry(name)))

    def _find_meant(self, table: TableName, *, any_case: bool) -> list[str]:
        """The known tables that a statement may be about, or else the name that it gives."""
        if not any_case:
            return [str(table)]
        known_tables = {*self._acceptances, *self._hides}
        alike = [name for name in known_tables if TableName.parse(name).in_lower_case == table.in_lower_case]
        return sorted(alike) or [str(table)]

    # By the catalogue -----------------------------------------------------------------------------------------------

    def judge(self, tables: Iterable[TableName], signals: Iterable[Signal] = ()) -> list[Hold]:
        """Before rows of these tables pass, of a batch with these signals, or of none. Raises what the source
        raises."""
        if self._witness is None or not self.is_active:
            return []
        shown_oids: dict[TableName, set[int]] = {}
        for signal in signals:
            if isinstance(signal, SchemaSeen) and signal.oid is not None:
                shown_oids.setdefault(signal.schema.table, set()).add(signal.oid)
        judged_tables = {table for table in tables if self._may_pass(table)}
        asked_tables = {table for table in judged_tables if table not in self._proven or table in shown_oids}
        if not asked_tables:
            return []
        watched = self._find_watched()
        origins = self._witness.origins(asked_tables | set(map(TableName.parse, watched)))
        seen = {name: origins.get(TableName.parse(name)) for name in watched}
        former = [name for name, before in watched.items() if former_partitions.may_be(before, seen[name])]
        holds = self._doubt_partitioned(is_new=bool(former))
        for name in self._held & watched.keys():
            self._put(name, former_partitions.look_again(watched[name], seen[name]))
        asked_tables = {table for table in asked_tables | set(map(TableName.parse, former)) if self._may_pass(table)}
        if not self._hides_parts and any(
            origin.parts and str(table) in self._hides for table, origin in origins.items()
        ):
            # Any table may have been a part of such a one for a while.
            self._hides_parts = True
            self._proven.clear()
            asked_tables |= {table for table in judged_tables if self._may_pass(table)}
            origins = self._witness.origins(asked_tables)
        for table in sorted(asked_tables):
            oids = self._oids.get(table, set()) | shown_oids.get(table, set())
            if (hold := self._judge(table, origins.get(table), oids)) is not None:
                holds.append(hold)
        return holds

    def _find_watched(self) -> dict[str, Acceptance]:
        """The tables that may have values to be hidden."""
        names = self._hides | self._held
        return {name: self._acceptances[name] for name in sorted(names) if name in self._acceptances}

    def _doubt_partitioned(self, *, is_new: bool) -> list[Hold]:
        """Where a watched table may have been a part of another (`is_new`: it shows so now), the rows of a partitioned
        table pass only from here on: a dump brings those of before."""
        assert self._witness is not None
        if not (is_new or self._doubts_parts):
            return []
        self._doubts_parts = False
        accepted = [TableName.parse(table) for table, a in self._acceptances.items() if a.why_held is None]
        origins = self._witness.origins(accepted)
        return [self._accept_from_here(table, now) for table, now in sorted(origins.items()) if now.parts]

    def _accept_from_here(self, table: TableName, now: Origin) -> Hold:
        name = str(table)
        hides = name in self._hides
        if (why := self._find_doubt(self._acceptances[name], now, hides=hides)) is not None:
            return self._hold([name], why)[0]
        return self.wait(table, accepted_as(now, self.entry(name), hides=hides))

    def _may_pass(self, table: TableName) -> bool:
        acceptance = self._acceptances.get(str(table))
        return acceptance is None or (acceptance.why_held in (None, Held.GONE) and not acceptance.since)

    def _judge(self, table: TableName, now: Origin | None, oids: set[int]) -> Hold | None:
        """`oids`: what the log says that the rows are of; none: it does not say."""
        name = str(table)
        hides = name in self._hides
        before = self._acceptances.get(name)
        if now is None:
            self._put(name, replace(before or Acceptance(self.entry(name)), why_held=Held.GONE))
            return Hold(table, None)
        why = self._find_doubt(before, now, hides=hides)
        if why is not None:
            (hold,) = self._hold([name], why)
            self._put(name, former_partitions.look_again(self._acceptances[name], now))
            return hold
        accepted = accepted_as(now, self.entry(name), hides=hides)
        if before == accepted and oids <= {now.oid}:
            if not hides and not now.parts and not now.is_partition and oids and not self._hides_parts:
                self._proven.add(table)  # made with this name: that is so whatever comes, until the log names another
            return None
        if before is None and oids == {now.oid} and (now.is_as_made or not hides) and not now.parts:
            self._put(name, accepted)  # of all that was ever logged of it
            return None
        return self.wait(table, accepted)

    def wait(self, table: TableName, accepted: Acceptance) -> Hold:
        """The table is accepted as it is now: what is logged from now on was written since."""
        assert self._witness is not None
        self._put(str(table), replace(accepted, since=self._witness.current_position()))
        return Hold(table, None)

    def _find_doubt(self, before: Acceptance | None, now: Origin, *, hides: bool) -> Held | None:
        """Why nothing proves that the table is what was accepted, or a new one; None where it is."""
        is_new = not now.brought
        arrived = Held.BESIDE if now.is_beside_hidden else Held.ARRIVED
        if before is not None and before.shape == now.describe(hides=hides):
            return None
        if before is not None and before.shape.partition(":")[0] == str(now.oid):  # the same one, described otherwise
            if not hides:
                return None if is_new else arrived
            return Held.RESHAPED if before.columns != now.columns or not now.attached else Held.ARRIVED
        if not is_new:
            return arrived
        return Held.RESHAPED if hides and before is not None and before.columns != now.columns else None

    def _note_oid(self, signal: SchemaSeen) -> None:
        if signal.oid is not None:
            if self._oids.get(signal.schema.table) != {signal.oid}:
                self._proven.discard(signal.schema.table)
            self._oids[signal.schema.table] = {signal.oid}

    # Both -----------------------------------------------------------------------------------------------------------

    def _hold(self, tables: Iterable[str], why: Held) -> list[Hold]:
        holds = []
        for name in tables:
            acceptance = self._acceptances.get(name) or Acceptance(self.entry(name))
            if acceptance.why_held in (None, Held.GONE):
                acceptance = replace(acceptance, why_held=why, since="")
            self._put(name, acceptance.with_next_version() if self.asks_log else acceptance)
            holds.append(Hold(TableName.parse(name), explain(name, why)))
        return holds

    def _put(self, table: str, acceptance: Acceptance) -> None:
        if self._acceptances.get(table) != acceptance:
            self._acceptances[table] = acceptance
            (self._held.discard if acceptance.why_held in (None, Held.GONE) else self._held.add)(table)
            self._proven.discard(TableName.parse(table))
            self._is_saved = False


def accepted_as(now: Origin, entry: str, *, hides: bool) -> Acceptance:
    """The acceptance of a table as its catalogue describes it."""
    if not hides:
        return Acceptance(entry, now.describe(hides=False))
    return Acceptance(entry, now.describe(hides=True), now.columns, now.version)


def is_still_as_accepted(accepted: Acceptance, now: Origin, *, hides: bool) -> bool:
    """Whether all that was read of the table since it was accepted is of what was accepted."""
    return accepted == accepted_as(now, accepted.entry, hides=hides)


def _may_move_names(signal: Altered) -> Held | None:
    """Why a column may have another's name after a statement; None where it is proven that none has."""
    if signal.step is None:
        return Held.ALTERED
    step = signal.step
    renames = any(old.lower() != new.lower() for old, new in step.renamed.items())
    return Held.RESHAPED if renames or step.added_columns or step.dropped else None
