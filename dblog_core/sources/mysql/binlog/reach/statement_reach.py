"""Which tables a change of rows in statement form may have changed: those that it names, and those that they reach.

The server's catalogue tells that, as it is when it is asked; the statement ran before. So the log between the two is
read ahead: if nothing in it defines a table, a trigger or a function, the answer holds for all of that stretch, and a
later statement in it needs no other look. Where the answer is not certain, a statement may have changed any table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog.event_groups import EventGroups
from dblog_core.sources.mysql.binlog.reach.reached_tables import Catalogue
from dblog_core.sources.mysql.ddl import row_statements
from dblog_core.sources.mysql.position import file_number

Place = tuple[str, int]
"""A file of the log, and an offset in it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A catalogue that holds from the place of its question up to the place `until`."""

    catalogue: Catalogue
    until: Place


LookAhead = Callable[[Place], Sight | None]
"""The catalogue as it is at a place of the log; None: nobody can say. Raises SourceUnavailable."""


class StatementReach:
    """Asks `look` only where no earlier answer holds."""

    def __init__(self, look: LookAhead, groups: EventGroups, *, any_case: bool) -> None:
        self._look = look
        self._groups = groups
        self._any_case = any_case
        self._sight: Sight | None = None

    def find(self, sql: str, schema: str) -> frozenset[TableName] | None:
        """The tables that a change of rows may have changed, named as `classify` names them; None: any table."""
        targets = row_statements.find_targets(sql, schema, any_case=self._any_case)
        return None if targets is None else self.extend(targets, sql)

    def extend(self, targets: frozenset[TableName], sql: str) -> frozenset[TableName] | None:
        """The same where the tables that the statement itself changes are known."""
        # Prepared rows were logged at another place than the one at which they are read.
        if self._groups.read_again is not None:
            return None
        place = (self._groups.file, self._groups.offset)
        if self._sight is None or not _is_before(place, self._sight.until):
            self._sight = self._look(place)
        return None if self._sight is None else self._sight.catalogue.find_reached(targets, sql)


def _is_before(place: Place, until: Place) -> bool:
    return (file_number(place[0]), place[1]) <= (file_number(until[0]), until[1])
