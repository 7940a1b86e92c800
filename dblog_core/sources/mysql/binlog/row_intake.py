"""Row events, and the table maps before them, become rows and signals of a batch.

Rows of an XA transaction that is being prepared are set aside (`Group.undecided`). A table is described by its last
table map; a row event of a table that no map describes is an error.
"""

from __future__ import annotations

from collections.abc import Callable

from dblog_core.model import watermark
from dblog_core.model.events import (
    CREATE,
    DELETE,
    UPDATE,
    Crashed,
    Rewritten,
    SchemaSeen,
    SignalSeen,
    Transaction,
    WatermarkSeen,
)
from dblog_core.model.schema import TableName
from dblog_core.rows import row_faults
from dblog_core.sources.mysql.binlog import events, unread_tables
from dblog_core.sources.mysql.binlog.event_groups import EventGroups, Group
from dblog_core.sources.mysql.binlog.events import Event, Type
from dblog_core.sources.mysql.binlog.framing import Events
from dblog_core.sources.mysql.binlog.unread_tables import UnreadTables
from dblog_core.sources.mysql.ddl.known_forms import KnownForms
from dblog_core.sources.mysql.row_events import row_event_header
from dblog_core.sources.mysql.row_events.change_batch import BatchBuilder
from dblog_core.sources.mysql.row_events.row_decoder import Buffer, EventFault
from dblog_core.sources.mysql.row_events.row_event_header import DUMMY_TABLES, KINDS
from dblog_core.sources.mysql.row_events.table_ids import TableNumbers
from dblog_core.sources.mysql.row_events.table_map import TableVersion, Unread
from dblog_core.sources.mysql.sql.catalogue import TableFilter


class RowIntake:
    """Fills `batch` with the rows of captured tables, and with what the log shows of their shapes.

    `numbers`: what the numbers of tables mean; `unread`: the tables that the log does not hold as a capture needs them.
    """

    def __init__(
        self,
        tables: TableFilter,
        numbers: TableNumbers,
        groups: EventGroups,
        forms: KnownForms,
        *,
        zero_dates: str,
        any_case: bool,
    ) -> None:
        self.numbers = numbers
        self.unread = UnreadTables()
        self.batch = BatchBuilder(zero_dates)
        self._tables = tables
        self._groups = groups
        self._forms = forms
        self._zero_dates = zero_dates
        self._any_case = any_case
        self._shown_shapes: dict[TableName, str] = {}
        self._last_versions: dict[TableName, TableVersion] = {}  # since the last statement about the table
        self.handlers: dict[int, Callable[[Event], None]] = {
            Type.TABLE_MAP: self._take_table_map,
            Type.PARTIAL_UPDATE_ROWS: self._take_json_parts,
            **dict.fromkeys(KINDS, self._take_rows),
        }

    def start_batch(self) -> None:
        self._forms.ask_missing()
        self.batch = BatchBuilder(self._zero_dates)

    def report_crash(self) -> None:
        """The server crashed at the end of the file before this place."""
        self._forms.ask_again()  # the log may lack a statement that a table has had
        groups = self._groups
        newest = groups.position.newest
        transaction = Transaction("", f"{groups.file}:{groups.offset}", newest.time if newest else 0)
        self.batch.signal(Crashed(self.batch.next_sequence, self.batch.transaction(transaction)))

    # -- the short way

    def take_brief(
        self, stretch: Events, number: int, op: str, table_id: int, at: int, stop: int, column_count: int
    ) -> None:
        """Takes row event `number` of the stretch, whose rows lie from `at` to `stop`; a table that has not been looked
        at since its last map, and rows that are undecided, go the long way."""
        if table_id in self.numbers.unwanted:
            return
        version = self.numbers.usual.get(table_id)
        group = self._groups.group
        if version is None or group is None or group.undecided is not None or column_count != len(version.columns):
            self._take_rows(stretch.event(number))
            return
        try:
            self._add_changes(version, group, op, stretch.raw, at, stop)
        except EventFault:
            self._take_rows(stretch.event(number))  # which tells of it

    # -- the long way

    def _take_table_map(self, event: Event) -> None:
        # Of a table that nobody wants nothing is read but its name: its columns may be of any type.
        is_wanted = self.numbers.take(event.body)
        group = self._groups.group
        if is_wanted and group and group.undecided:
            group.undecided.add(event)

    def _take_rows(self, event: Event) -> None:
        op = KINDS[Type(event.type)][0]
        table_id, version = self._described_table(event)
        if version is None:
            return
        group = self._groups.current(event)
        if isinstance(version, Unread):
            self._shown_shapes.pop(version.table, None)  # its next one is news
            self.unread.stop(version, group.transaction, self.batch)
            return
        table = version.schema.table
        try:
            self._take_images(table_id, version, group, op, event)
        except row_event_header.ColumnsMissing as missing:
            key = version.schema.key
            names = () if self._tables.ours(table) else missing.names
            generated = self.numbers.mariadb and not any(name in key for name in names)
            self._stop_in_part(version, op, group, *unread_tables.without_columns(table, names, generated=generated))
        except Exception as error:  # noqa: BLE001 - `row_faults` says which errors are of the rows
            fault = row_faults.explain(error, table)
            self._stop_in_part(version, op, group, fault.message, fault.fix)

    def _take_images(self, table_id: int, version: TableVersion, group: Group, op: str, event: Event) -> None:
        """The rows of an event. Raises ColumnsMissing, and what their bytes make decoders raise."""
        body, at, key_only = row_event_header.images(event, version)
        if version.schema.table == self._tables.watermarks:
            self._add_watermarks(version, group, op, body, at)
            return
        if version.schema.table == self._tables.signals:
            self._add_signals(version, group, op, body, at)
            return
        self._show_shape(version, group)
        self._add_changes(version, group, op, body, at, len(body), key_only=key_only)
        # From here on its rows take the short way, until any shape changes.
        self.numbers.usual[table_id] = version

    def _take_json_parts(self, event: Event) -> None:
        """Updates with parts of JSON documents (binlog_row_value_options = PARTIAL_JSON)."""
        _, version = self._described_table(event)
        if version is None:
            return
        group = self._groups.current(event)
        if isinstance(version, TableVersion):
            self._stop_in_part(version, UPDATE, group, unread_tables.IN_PARTS, unread_tables.WHOLE_DOCUMENTS)
        else:
            self.unread.stop(version, group.transaction, self.batch)

    def _described_table(self, event: Event) -> tuple[int, TableVersion | Unread | None]:
        """The number of the table that a row event is about, and how the log describes it; None where nobody wants its
        rows, or not yet. Raises UnknownLogEvent."""
        table_id = int.from_bytes(event.body[:6], "little")
        if table_id in DUMMY_TABLES:
            return table_id, None
        version = self.numbers.get(table_id)
        if version is None:
            raise self._groups.unknown_error(
                f"rows of table number {table_id}, which the log has not described", fix=events.FRESH_START
            )
        if isinstance(version, TableName):
            self.numbers.unwanted.add(table_id)
            return table_id, None
        # Rows of an XA transaction count from its XA COMMIT: they are remembered, not delivered.
        if undecided := self._groups.current(event).undecided:
            undecided.add(event)
            return table_id, None
        if isinstance(version, Unread) or self._tables.ours(table := version.schema.table):
            return table_id, version
        return table_id, self.unread.why_unread(table, self.statement_name(table)) or version

    def _add_changes(
        self,
        version: TableVersion,
        group: Group,
        op: str,
        body: Buffer,
        at: int,
        end: int,
        *,
        key_only: bool = False,
    ) -> None:
        """Row changes of a captured table whose shape was shown."""
        if at < end:
            group.has_changes = True
            group.changed.add(version.schema.table)
            groups = self._groups
            # After a restart inside a transaction the first of its rows are staged already, and left out here.
            skipped = self.batch.rows_event(
                version, op, group.transaction, body, at, groups.rows_to_skip, end, key_only=key_only
            )
            groups.rows_to_skip -= skipped
            group.rows += skipped

    def _stop_in_part(self, version: TableVersion, op: str, group: Group, what: str, fix: str) -> None:
        """The log has a row in part. Of our own tables it is one of its kind that is passed over, with a warning."""
        table = version.schema.table
        number = self.batch.next_sequence
        index = self.batch.transaction(group.transaction)
        if table == self._tables.watermarks and op != DELETE:
            self.batch.signal(WatermarkSeen(number, index, watermark.describe_unread(f"{what}: {fix}")))
        elif table == self._tables.signals and op == CREATE:
            self.batch.signal(SignalSeen(number, index, "", "", None))
        elif not self._tables.ours(table):
            self._show_shape(version, group)
            self.unread.stop_in_part(table, what, fix, group.transaction, self.batch)

    def _add_watermarks(self, version: TableVersion, group: Group, op: str, body: bytes, at: int) -> None:
        if op != DELETE and all(
            column.name != "payload" for column in version.schema.columns
        ):  # whoever alters the table ends dumps alone
            payloads = [watermark.describe_unread("it has no payload")]
        else:
            payloads = row_event_header.read_watermark_payloads(version, op, body, at, self._zero_dates)
        for payload in payloads:
            index = self.batch.transaction(group.transaction)
            self.batch.signal(WatermarkSeen(self.batch.next_sequence, index, payload))

    def _add_signals(self, version: TableVersion, group: Group, op: str, body: bytes, at: int) -> None:
        for row in row_event_header.read_inserted_rows(version, op, body, at):
            index = self.batch.transaction(group.transaction)
            self.batch.signal(SignalSeen.of(self.batch.next_sequence, index, row))

    # -- shapes

    def _show_shape(self, version: TableVersion, group: Group) -> None:
        """Adds a signal where the table has another shape than it had last, and one where no statement has said so."""
        schema = version.schema
        if self._shown_shapes.get(schema.table) != schema.fingerprint:
            self._shown_shapes[schema.table] = schema.fingerprint
            self.unread.resume(schema.table)
            self._forms.note_rows(schema.table)
            self.numbers.usual.clear()
            index = self.batch.transaction(group.transaction)
            self.batch.signal(SchemaSeen(self.batch.next_sequence, index, schema))
        last = self._last_versions.get(schema.table)
        self._last_versions[schema.table] = version
        # A session that logs nothing (sql_log_bin = 0) has altered the table, and with it the values that it had.
        if last is not None and last is not version and _storage(last) != _storage(version):
            self._forms.put(self.statement_name(schema.table), None)
            index = self.batch.transaction(group.transaction)
            self.batch.signal(Rewritten(self.batch.next_sequence, index, schema.table))

    def statement_name(self, table: TableName) -> TableName:
        """The name as statements have it here (`classify`)."""
        return table.in_lower_case if self._any_case else table

    def expect_other_types(self, table: TableName) -> None:
        """A statement names the table: its next rows may be stored otherwise."""
        for named in [named for named in self._last_versions if self.statement_name(named) == table]:
            del self._last_versions[named]

    def forget_shape(self, table: TableName) -> None:
        """Has the next rows of a table that a statement names show its shape."""
        self.expect_other_types(table)
        self.numbers.usual.clear()
        for named in [named for named in self._shown_shapes if self.statement_name(named) == table]:
            del self._shown_shapes[named]

    def forget_shapes_of_schema(self, schema: str) -> None:
        """Has the next rows of each table of a dropped schema show their shape."""
        self.numbers.usual.clear()
        for named in [named for named in self._shown_shapes if self.statement_name(named).schema == schema]:
            del self._shown_shapes[named]
            self._last_versions.pop(named, None)


def _storage(version: TableVersion) -> list[tuple[object, ...]]:
    """How the log describes the columns, names left out."""
    return [(c.kind, c.text, c.width, c.prefix, c.precision, c.scale, c.labels) for c in version.columns]
