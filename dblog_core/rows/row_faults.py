"""Rows of a known table that cannot be decoded: the table stops alone, whatever is wrong with them.

Decoders name what they know of (a value without an exact form, a row in part). This module takes every other
fault of rows, so that no kind of damage, and no mistake in a decoder, ends the capture of all other tables.
"""

from __future__ import annotations

from typing import TypeAlias

from dblog_core.errors import DblogError, UnknownLogEvent, ValueOutOfRange
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import quote_for_toml

Refusal: TypeAlias = UnknownLogEvent | ValueOutOfRange
REFUSALS = (UnknownLogEvent, ValueOutOfRange)
"""What decoders raise for rows."""


class DamagedRows(ValueError):
    """Bytes that are no rows of their table; the text does not quote them."""


def is_of_rows(error: Exception) -> bool:
    """Whether the rows that were decoded are to blame; otherwise the source, storage or memory is."""
    return isinstance(error, REFUSALS) or not isinstance(error, DblogError | MemoryError | OSError)


def explain(error: Exception, table: TableName) -> Refusal:
    """The error for a fault of rows of the table. Raises any other one."""
    if not is_of_rows(error):
        raise error
    if isinstance(error, REFUSALS):
        return error
    # Without a foreign text, which may quote values.
    why = str(error) if isinstance(error, DamagedRows) else type(error).__name__
    return UnknownLogEvent(
        f"a row of the log cannot be decoded ({why})",
        where=str(table),
        fix="upgrade dblog, or report this; until then take the table out of tables in [source], or exclude its column"
        f" under [source.columns.{quote_for_toml(str(table))}]",
    )
