"""What the log says of tables beside their rows: new shapes, statements about them, and what cannot be read of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest

from dblog_core.algorithm.chunk_placement import Chunks
from dblog_core.capture.draft_segment import DraftSegment
from dblog_core.capture.follow_ups import FollowUps
from dblog_core.capture.passed_over import PassedOver
from dblog_core.capture.table_shapes import TableShapes
from dblog_core.model.events import (
    Altered,
    ChangedByStatement,
    Crashed,
    Created,
    DatabaseDropped,
    LogBatch,
    Rewritten,
    RowsMoved,
    SchemaSeen,
    Signal,
    Transaction,
    Truncated,
    Unreadable,
)
from dblog_core.model.schema import TableName, TableSchema, to_lower_case
from dblog_core.model.schema_changes import Layout, Step
from dblog_core.rows import column_rule_faults
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import Hold, Places, TableGuard
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest

log = logging.getLogger(__name__)


def _name_tables(signal: ChangedByStatement, all_tables: Iterable[TableName]) -> Iterator[Altered | Rewritten]:
    """What the signal says of each table. `all_tables`: those that it may be about where it names no table."""
    at = (signal.sequence, signal.transaction)
    for table in all_tables if signal.tables is None else sorted(signal.tables):
        schema = to_lower_case(table.schema) if signal.any_case else table.schema
        if signal.tables is None and signal.schemas is not None and schema not in signal.schemas:
            continue
        if signal.reshapes:
            yield Altered(*at, table, None)
        yield Rewritten(*at, table, signal.tables is not None and signal.any_case)


def _says_the_same(signal: Signal | None, of: ChangedByStatement) -> bool:
    """Whether the signal is about the same tables."""
    if not isinstance(signal, ChangedByStatement):
        return False
    return replace(signal, sequence=0, transaction=0, what="", fix="") == replace(
        of, sequence=0, transaction=0, what="", fix=""
    )


Statement = Truncated | DatabaseDropped | Altered | Rewritten


class TableEvents:
    """The state of all tables at the log's place. `shapes`: the newest of each; `follow_ups`: requests to make.

    It voids the windows of `dumps` wherever chunks that are being read may hold what is no longer so.
    """

    def __init__(
        self,
        staging: Staging,
        head: Manifest,
        dumps: Chunks,
        rules: Rules,
        guard: TableGuard,
        places: Places,
        stopped: Iterable[str],
    ) -> None:
        """`stopped`: tables that are passed over."""
        self._dumps = dumps
        self._rules = rules
        self._guard = guard
        self._places = places
        self._passed_over = PassedOver(stopped)
        for table in guard.waiting():
            self._passed_over.wait(table)
        self.follow_ups = FollowUps(self._passed_over)
        self.shapes = TableShapes(staging, head)

    @property
    def any_waits(self) -> bool:
        """Whether the capture must request or record something before the log's place moves past it."""
        return self.follow_ups.any_waits or self._passed_over.has_reasons

    def name_changed(self, batch: LogBatch) -> LogBatch:
        """The batch with a `Rewritten` of each table in place of a `ChangedByStatement`."""
        if not any(isinstance(signal, ChangedByStatement) for signal in batch.signals):
            return batch
        tables_in_batch = {change.schema.table for change in batch.changes}
        tables_in_batch |= {signal.schema.table for signal in batch.signals if isinstance(signal, SchemaSeen)}
        all_tables = sorted({*self._list_tables(), *self.shapes.empty_tables, *tables_in_batch})
        signals: list[Signal] = []
        for signal, following in zip_longest(batch.signals, batch.signals[1:]):
            if not isinstance(signal, ChangedByStatement):
                signals.append(signal)
                continue
            named = list(_name_tables(signal, all_tables))
            place = batch.transactions[signal.transaction].position
            self.follow_ups.add_unlogged(signal, place, {str(each.table) for each in named})
            if signal.reshapes:  # of whatever table: at its own place, before any row that may have moved
                signals.append(RowsMoved(signal.sequence, signal.transaction, None))
            if not _says_the_same(following, signal):  # of many in a row the last one counts
                signals += named
        return replace(batch, signals=tuple(signals))

    def store_shapes(self, signals: Iterable[Signal]) -> None:
        """Makes all shapes durable that a batch shows, at the same time: one after the other they wait for storage."""
        shapes = [s.schema for s in signals if isinstance(s, SchemaSeen) and self._follows_shape_of(s.schema.table)]
        self.shapes.store(self._rules.schema(shape) for shape in shapes if self._rules.misfit(shape) is None)

    def take(self, signal: Signal, transaction: Transaction, draft: DraftSegment) -> None:
        """The next signal of the log; its lines go to the draft. Raises StagingUnavailable."""
        shapes = [signal.schema] if isinstance(signal, SchemaSeen) else []
        for hold in self._guard.follow(signal, lambda place: self._places.lies_before(transaction, place)):
            self.hold(hold, shapes)
        if isinstance(signal, SchemaSeen) and (misfit := self._rules.misfit(signal.schema)) is not None:
            table = signal.schema.table
            signal = Unreadable(signal.sequence, signal.transaction, table, misfit.what, misfit.fix, refused=True)
        if isinstance(signal, SchemaSeen) and self._passed_over.is_unreadable(str(signal.schema.table)):
            self._read_again(signal.schema.table, transaction)
        match signal:
            # Once: each batch may hold such a value.
            case Unreadable() if not self.leaves_out(signal.table):
                self.distrust_rows(signal.table)
                self._passed_over.add_unreadable(signal)
            case SchemaSeen() if self._follows_shape_of(signal.schema.table):
                self.set_shape(self._rules.schema(signal.schema), transaction, draft, signal.layout)
            case Truncated() | DatabaseDropped() | Altered() | Rewritten():
                self._take_statement(signal, transaction, draft)
            case Created():
                self._note_empty(signal.table)
            case Crashed():
                log.warning("the source crashed before %s: all tables are dumped", transaction.position)
                for table in self._list_tables():
                    self._rewrite(table, transaction)

    def set_shape(
        self, schema: TableSchema, transaction: Transaction, draft: DraftSegment, layout: Layout | None = None
    ) -> None:
        """From here on the table has this shape."""
        table = schema.table
        self.follow_ups.drop_reshaped(table)
        change = self.shapes.put(schema, layout, by_place=not self._rules.concern(table))
        if change is None:
            return
        facts = {"renamed": change.facts.renamed or None, "filled": change.facts.filled or None} if change.facts else {}
        # Until that dump a column of a doubtful name holds the values of the one before.
        whole = True if change.was_empty else False if change.needs_dump else None
        draft.add_mark("s", table, transaction, schema=schema.fingerprint, whole=whole, **facts)
        if change.before is None:
            if whole is None and schema.key:
                self.follow_ups.add_unproven(table, transaction)
            return
        self._dumps.void_windows_of(table)
        self.follow_ups.add_altered(table)
        if change.needs_dump or (schema.key and not self.shapes.has_key(change.before)):
            # Nothing tells a column's values, or no key led to the rows so far: a dump brings them.
            self.follow_ups.add_rewritten(table, transaction)

    def record_rewrite(self, table: TableName, since: Transaction) -> None:
        """The table has other rows than those that were read, and no event says so."""
        self.distrust_rows(table)
        self.follow_ups.add_rewritten(table, since)

    def distrust_rows(self, table: TableName) -> None:
        """What is known of the table's rows does not count from here on: chunks that are being read may hold others."""
        # Chunks that are being read may have been SELECTed in the shape of before.
        self._dumps.void_windows_of(table)
        self.shapes.forget_empty(table)

    def record_reshape(self, table: TableName) -> None:
        """The table may now have another shape, and no row may come to show it."""
        if table in self.shapes:
            self.follow_ups.add_reshaped(table)

    def stop(self, tables: Iterable[str]) -> set[str]:
        """Passes these tables over from here on; returns those that were not before (`PassedOver.stop`)."""
        new = self._passed_over.stop(tables)
        for table in new:
            self.distrust_rows(TableName.parse(table))
        return new

    def hold(self, hold: Hold, shapes: Iterable[TableSchema] = ()) -> None:
        """From here on nothing of the table passes that nobody has accepted. `shapes`: that are shown here, to which
        its rules may not fit either."""
        table = str(hold.table)
        if hold.problem is None:
            self._passed_over.wait(table)
        else:
            misfits = [self._rules.misfit(shape) for shape in shapes if shape.table == hold.table]
            problem = column_rule_faults.join_problems([*filter(None, misfits[-1:]), hold.problem])
            if problem is None or not self._passed_over.add_held(table, problem):
                return
        self.distrust_rows(hold.table)

    def release(self, table: TableName, at: Transaction) -> None:
        """The log is read up to where the table was accepted: a dump brings what was left out."""
        if self._passed_over.release(str(table)):
            self._count_again(table, at)

    def _count_again(self, table: TableName, at: Transaction) -> None:
        """Rows of the table count from here on. Those that were passed over are remembered nowhere: each chunk must
        have seen them all, and a dump brings them."""
        self._dumps.show_table(table, self._places.horizon)
        self._rewrite(table, at)

    def leaves_out(self, table: TableName | str) -> bool:
        """Whether rows of the table are left out now."""
        return str(table) in self._passed_over

    def waits(self, table: TableName | str) -> bool:
        """Whether rows of the table are left out for a while."""
        return self._passed_over.is_waiting(str(table))

    def _follows_shape_of(self, table: TableName) -> bool:
        return self.waits(table) or not self.leaves_out(table)

    def take_unreadable(self) -> Mapping[str, Unreadable]:
        """Tables whose rows are passed over since the last call, and why, as the log says."""
        return self._passed_over.take_reasons()

    def _take_statement(self, signal: Statement, transaction: Transaction, draft: DraftSegment) -> None:
        if isinstance(signal, DatabaseDropped):
            tables = self._find_tables_of(signal)
        else:
            tables = self._find_tables_meant(signal)
        unsure = len(tables) > 1 and isinstance(signal, Truncated)  # one of them is empty: dumps tell which
        for table in tables:
            if isinstance(signal, Rewritten) or unsure:
                self._rewrite(table, transaction)
            elif isinstance(signal, Altered):
                self._alter(table, signal.step, transaction)
                if signal.shows:
                    self.record_reshape(table)
            else:
                self._empty(table, transaction, draft)

    def _list_tables(self) -> list[TableName]:
        """Tables that we have a copy of, or are dumping."""
        return sorted({*self.shapes, *self._dumps.tables})

    def _find_tables_of(self, dropped: DatabaseDropped) -> list[TableName]:
        if dropped.any_case:
            return [
                table for table in self._list_tables() if to_lower_case(table.schema) == to_lower_case(dropped.schema)
            ]
        return [table for table in self._list_tables() if table.schema == dropped.schema]

    def _find_tables_meant(self, signal: Truncated | Altered | Rewritten) -> list[TableName]:
        """The tables that a statement may be about: more than one only where names differ in case alone, of which the
        server now has one.
        """
        if not signal.any_case:
            return [signal.table]
        return [table for table in self._list_tables() if table.in_lower_case == signal.table.in_lower_case] or [
            signal.table
        ]

    def _rewrite(self, table: TableName, transaction: Transaction) -> None:
        """Only the table itself can tell which rows it has from here on."""
        if not self.leaves_out(table):
            self.distrust_rows(table)
            self.follow_ups.add_rewritten(table, transaction)

    def _alter(self, table: TableName, step: Step | None, transaction: Transaction) -> None:
        self._dumps.void_windows_of(table)  # its shape may be the same as before, its columns others
        self.follow_ups.add_altered(table)
        if self.shapes.alter(table, step):
            self.follow_ups.add_rewritten(table, transaction)

    def _empty(self, table: TableName, transaction: Transaction, draft: DraftSegment) -> None:
        """All rows of the table are gone."""
        if self.leaves_out(table):
            # A table that is dropped while its rows are passed over would keep them in the lake for good. What comes
            # after this is passed over too, so that it counts neither as empty nor as whole.
            if table in self.shapes:
                draft.add_mark("t", table, transaction, transaction=transaction.id)
            return
        # For the windows a TRUNCATE is an event of every key: no row of an open chunk survives it.
        offset = draft.add_mark("t", table, transaction, transaction=transaction.id)
        self._dumps.record_rows(table, (offset, offset), transaction.xid, None)
        self._note_empty(table)

    def _note_empty(self, table: TableName) -> None:
        if not self.leaves_out(table):
            self.shapes.note_empty(table)

    def _read_again(self, table: TableName, transaction: Transaction) -> None:
        """The log can be read again: what was passed over is for a dump to bring."""
        if self._passed_over.read_again(str(table)):
            self._count_again(table, transaction)
