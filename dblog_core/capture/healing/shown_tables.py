"""Tables that the source's log shows since a moment ago: they are taken in while a term runs, by the same log.

Of PostgreSQL, whose publication names its tables. `Newcomers` looks for them in a thread of its own, and has the
publication show them. The capture's loop requests a dump of each, and the manifest with that has them in `shown`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dblog_core.capture.healing import new_tables
from dblog_core.capture.sequencer import Sequencer
from dblog_core.capture.term_parts import Parts
from dblog_core.model import table_names
from dblog_core.model.schema import TableName
from dblog_core.state import settings_in_force

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewTables:
    """Tables of which the log has not shown all rows so far: `dumpable` ones, and those without a key. `shown`: all
    that the log shows now (`Source.identities`); `before`: those that were known when it was asked."""

    before: frozenset[str]
    shown: frozenset[str]
    dumpable: tuple[TableName, ...] = ()
    keyless: tuple[TableName, ...] = ()


class ShownTables:
    """Of one term; the capture's loop owns it."""

    def __init__(self, parts: Parts, sequencer: Sequencer) -> None:
        self._parts = parts
        self._sequencer = sequencer

    def take_in(self, found: NewTables) -> None:
        """Has them dumped by the next manifest. Raises what source and state store raise."""
        if set(found.before) != settings_in_force.read_shown(self._parts.records):
            return  # taken in already; or found by a look that began before this term did: the next one tells
        start = self._parts.source.horizon()  # after the publication has them
        self._sequencer.judge([*found.dumpable, *found.keyless])
        for table in found.dumpable:
            self._sequencer.show_table(table, start)
        for table in found.keyless:
            self._sequencer.tables.distrust_rows(table)
        if found.dumpable:
            names = table_names.some(list(map(str, found.dumpable)))
            log.warning("captured from here on, and dumped: %s", names)
        if found.keyless and not self._parts.source.shows_whole_logs():
            new_tables.tell_of_keyless(self._parts, list(map(str, found.keyless)))
        settings_in_force.put_shown(self._parts.records, found.shown)
