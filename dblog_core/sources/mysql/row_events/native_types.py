"""MariaDB's uuid, inet4 and inet6, which its log calls binary: the catalogue tells which columns have which.

Its answer may be of after a statement that the log has yet to show. What the bytes of a row become then is what that
statement makes of them; and since no change of such a type is proven to keep values, it has the table dumped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.ddl.known_forms import KnownForms
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values.types import NATIVE, UnsupportedType

_DUMPED = "its next row then has it dumped, as a new start of the capture does"


class NativeTypes:
    """Of the columns that the log calls binary those of MariaDB's own types."""

    def __init__(
        self, forms: KnownForms, is_table: Callable[[TableName], bool], is_captured: Callable[[TableName], bool]
    ) -> None:
        """`is_table`: as in `Lookups`; `is_captured`: whether `forms` knows of the table."""
        self._forms = forms
        self._is_table = is_table
        self._is_captured = is_captured

    def find(self, version: TableVersion) -> dict[str, str]:
        """Types of columns, by name. None of a table that is gone: nothing tells what its bytes are.

        Raises UnsupportedType where the table is there, and the catalogue does not say.
        """
        table = version.schema.table
        if not self._is_captured(table):  # our own, which has no such column
            return {}
        form = self._forms.newest(table, [name.lower() for name in version.unnamed])
        if form is None:
            if self._is_table(table):
                raise UnsupportedType(
                    f"{_say(version.unnamed)}, and the catalogue shows nothing of the table: its definition is locked",
                    f"end the statement that keeps it locked: {_DUMPED}",
                    catalogued=False,
                    passes=True,
                )
            return {}
        kinds = {name: None if column is None else column.type.lower() for name, column in form.columns.items()}
        kinds_of_unnamed = {name: kinds.get(name.lower()) for name in version.unnamed}
        if unknown := [name for name, kind in kinds_of_unnamed.items() if kind is None]:
            raise UnsupportedType(
                f"{_say(unknown)}, and the table has no column of that name now",
                f"let the capture read on to the statement that changed it: {_DUMPED}",
                catalogued=False,
                passes=True,
            )
        return {name: kind for name, kind in kinds_of_unnamed.items() if kind in NATIVE}


def _say(names: Iterable[str]) -> str:
    return f"the log calls {', '.join(names)} binary, as it does columns of uuid, inet4 and inet6"
