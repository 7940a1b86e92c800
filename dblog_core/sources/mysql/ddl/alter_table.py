"""What an ALTER TABLE does to columns, where that is certain: which are renamed, added, dropped or converted.

A wrong reading would be wrong rows. So a statement is read to its last token by a grammar that knows little, and
whatever it does not know, comments and names beyond ASCII included, makes the whole statement one that says nothing.
Values of a column that gets another type (CHANGE, MODIFY, CONVERT TO) stay what they are only where its form before is
known and `column_forms` proves it; otherwise the column is `revalued`.
"""

from __future__ import annotations

import re

from dblog_core.model.schema_changes import Step
from dblog_core.sources.mysql.ddl import column_forms
from dblog_core.sources.mysql.ddl.alter_tokens import AlterTokens, BeyondGrammar
from dblog_core.sources.mysql.ddl.altered_columns import AlteredColumns, Reading
from dblog_core.sources.mysql.ddl.column_definitions import (
    NULLABLE,
    SAME_VALUES,
    Definition,
    skip_place,
    take_added_column,
    take_charset,
    take_definition,
)
from dblog_core.sources.mysql.ddl.column_forms import TableForm

_STRICT = (1 << 21) | (1 << 22)
"""STRICT_TRANS_TABLES and STRICT_ALL_TABLES in a session's sql_mode, as QUERY events have it."""
_OTHER_TYPES = 0b11111 << 8
"""MariaDB's modes of other databases, in which words stand for other types: a DATE of ORACLE is a DATETIME."""

_OPTIONS = frozenset(["AUTO_INCREMENT", "COMMENT", "STATS_PERSISTENT", "STATS_AUTO_RECALC"])
_REBUILDS = frozenset(["ENGINE", "ROW_FORMAT", "KEY_BLOCK_SIZE"])
"""Options by which the server writes each row again."""
_ENGINES = frozenset(["INNODB", "MYISAM", "ARIA"])
"""They keep each row as it is. Of others rows are gone (BLACKHOLE), or the table shows those of other tables."""
_NO_ROWS_LOST = ("ADD", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK")
"""What is done to partitions so that each row finds one again, or it fails."""
NOTHING = Step()
"""What a statement does that leaves all columns as they are: one about indexes or partitions alone."""
_INDEXES = frozenset(["INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK"])


_RETYPES = re.compile(r"\b(MODIFY|CHANGE)\b", re.IGNORECASE)


def may_retype(sql: str) -> bool:
    """Whether an ALTER TABLE may give a column another type, also one in which every value is the same (`step`)."""
    return _RETYPES.search(sql) is not None


def read(sql: str, mode: int | None, before: TableForm | None, *, plain: bool = True) -> Reading | None:
    """What an ALTER TABLE does; None: that is not certain.

    `mode`: its session's sql_mode; `before`: how the table was stored, None where nobody knows; `plain`: whether its
    columns are staged as they are, under no rules.
    """
    # Without its session's sql_mode nobody knows whether double quotes are a name, nor whether it was strict.
    if mode is None or mode & _OTHER_TYPES:
        return None
    try:
        return _read_alter(AlterTokens(sql, mode), AlteredColumns(before, strict=bool(mode & _STRICT), plain=plain))
    except BeyondGrammar:
        return None


def step(sql: str, mode: int | None, before: TableForm | None = None) -> Step | None:
    """What an ALTER TABLE does to the table's columns; None: that is not certain. As `read`."""
    reading = read(sql, mode, before)
    return None if reading is None else reading.step


def _read_alter(tokens: AlterTokens, columns: AlteredColumns) -> Reading:
    tokens.expect("ALTER")
    tokens.take("ONLINE")
    tokens.expect("TABLE")
    tokens.take("IF", "EXISTS")
    tokens.take_name()
    if tokens.take("."):
        tokens.take_name()
    _skip_waiting(tokens)
    if _is_about_partitions(tokens):
        return Reading(Step(), keeps_values=True, after=columns.before)
    _take_part(tokens, columns)
    while not tokens.is_at_end:
        tokens.expect(",")
        _take_part(tokens, columns)
    return columns.conclude()


def _skip_waiting(tokens: AlterTokens) -> None:
    """Steps over MariaDB's `WAIT n` and `NOWAIT`."""
    if not tokens.take("NOWAIT") and tokens.take("WAIT"):
        tokens.take_one_of("number")


def _take_part(tokens: AlterTokens, columns: AlteredColumns) -> None:
    """One of the parts that commas stand between."""
    if tokens.take("RENAME", "COLUMN"):
        columns.rename(*_take_renaming(tokens))
    elif tokens.take("CHANGE"):
        tokens.take("COLUMN")
        _take_change(tokens, columns)
    elif tokens.take("MODIFY"):
        tokens.take("COLUMN")
        name = tokens.take_name()
        if not columns.redefine(name, name, _take_new_definition(tokens)):
            columns.revalued.append(name)
    elif tokens.take("ADD"):
        at = tokens.at
        if _skip_index(tokens):
            # Columns of a primary key are NOT NULL from then on, and NULL becomes a value in such a session.
            columns.is_unsure |= not columns.strict and tokens.has_word(at, "PRIMARY")
        else:
            tokens.take("COLUMN")
            columns.add(tokens.take_name(), take_added_column(tokens))
    elif tokens.take("RENAME", "INDEX") or tokens.take("RENAME", "KEY"):
        _take_renaming(tokens)
    elif tokens.take("DROP"):
        _take_drop(tokens, columns)
    elif not _touches_no_value(tokens, columns):
        raise BeyondGrammar


def _take_change(tokens: AlterTokens, columns: AlteredColumns) -> None:
    old = tokens.take_name()
    new = tokens.take_name()
    definition = _take_new_definition(tokens)
    if columns.redefine(old, new, definition):
        columns.rename(old, new)
    elif old.lower() == new.lower():
        columns.rename(old, new)
        columns.revalued.append(new)
    # Of these the Arrow types alone tell (`prove_changes`): where they are the same, a strict session has kept values.
    elif columns.strict and definition.type in SAME_VALUES and not definition.is_long and not definition.is_numbered:
        columns.rename(old, new)
    else:  # as if it were another column
        columns.dropped.append(old)
        columns.unknown.append(new)


def _take_drop(tokens: AlterTokens, columns: AlteredColumns) -> None:
    if tokens.take("PRIMARY", "KEY"):
        return
    if tokens.take("FOREIGN", "KEY") or any(tokens.take(word) for word in ("INDEX", "KEY", "CONSTRAINT", "CHECK")):
        tokens.take_name()
        return
    tokens.take("COLUMN")
    columns.dropped.append(tokens.take_name())


def _touches_no_value(tokens: AlterTokens, columns: AlteredColumns) -> bool:
    """Steps over a part that defines no column; False where none stands here."""
    if tokens.take("ALGORITHM"):
        tokens.take("=")
        if tokens.take_one_of("word") == "COPY":
            columns.recompute()
    elif tokens.take("LOCK"):
        tokens.take("=")
        tokens.take_one_of("word")
    elif tokens.take("FORCE"):
        columns.recompute()
    elif tokens.take("ALTER"):
        _take_alter_part(tokens, columns)
    elif tokens.take("CONVERT", "TO", "CHARACTER", "SET") or tokens.take("CONVERT", "TO", "CHARSET"):
        columns.convert(take_charset(tokens))
        if tokens.take("COLLATE"):
            tokens.take_one_of("word")
    else:
        return _skip_options(tokens, columns)
    return True


def _take_alter_part(tokens: AlterTokens, columns: AlteredColumns) -> None:
    """Steps over what is done to a default, or to whether an index is used."""
    if tokens.take("INDEX"):
        tokens.take_name()
        if not any(tokens.take(word) for word in ("VISIBLE", "INVISIBLE", "IGNORED")):
            tokens.expect("NOT", "IGNORED")
        return
    tokens.take("COLUMN")
    # SET DEFAULT is about later rows. For a column that this statement adds, it decides what older rows get.
    if tokens.take_name().lower() in {name.lower() for name in columns.constants}:
        raise BeyondGrammar
    if not tokens.take("DROP", "DEFAULT"):
        tokens.expect("SET", "DEFAULT")
        tokens.take_one_of("number", "text", "word")


def _skip_options(tokens: AlterTokens, columns: AlteredColumns) -> bool:
    """Steps over options of the table; False where none stands here."""
    start = tokens.at
    while not tokens.is_at_end and tokens.peek() != ("sign", ","):
        if (option := tokens.peek()[1]) in _OPTIONS | _REBUILDS:
            tokens.take_one_of("word")
            tokens.take("=")
            value = tokens.take_one_of("word", "number", "text")
            if option in _REBUILDS:
                columns.recompute()
            if option == "ENGINE" and value not in _ENGINES:
                raise BeyondGrammar
        elif not _take_default_charset(tokens, columns):
            return False
    return tokens.at > start


def _take_default_charset(tokens: AlterTokens, columns: AlteredColumns) -> bool:
    """Steps over the character set or collation of later columns; False where none stands here."""
    tokens.take("DEFAULT")
    if tokens.take("COLLATE"):
        tokens.take("=")
        columns.charset = column_forms.charset_of(tokens.take_one_of("word"))
    elif tokens.take("CHARACTER", "SET") or tokens.take("CHARSET"):
        tokens.take("=")
        columns.charset = take_charset(tokens)
    else:
        return False
    return True


def _take_new_definition(tokens: AlterTokens) -> Definition:
    """Steps over the new definition of a column that is there, and its new place."""
    definition = take_definition(tokens, NULLABLE | {"TIMESTAMP"})
    skip_place(tokens)
    return definition


def _is_about_partitions(tokens: AlterTokens) -> bool:
    """Whether all of it is about partitions: `statements` looks for those that go or are emptied."""
    if any(tokens.take(verb, "PARTITION") for verb in _NO_ROWS_LOST) or tokens.take("REMOVE", "PARTITIONING"):
        tokens.skip_rest()
    elif tokens.take("REORGANIZE", "PARTITION"):
        # Rows whose value stands in no new list are gone without an error. A range may only become longer.
        if tokens.has_word(tokens.at, "IN") or tokens.has_word(tokens.at, "DEFAULT"):
            raise BeyondGrammar
        tokens.skip_rest()
    elif tokens.take("DROP", "PARTITION") or tokens.take("TRUNCATE", "PARTITION"):
        tokens.take_name()
        while tokens.take(","):
            tokens.take_name()
    else:
        return False
    if not tokens.is_at_end:
        raise BeyondGrammar
    return True


def _take_renaming(tokens: AlterTokens) -> tuple[str, str]:
    old = tokens.take_name()
    tokens.expect("TO")
    return old, tokens.take_name()


def _skip_index(tokens: AlterTokens) -> bool:
    """Steps over an index or a constraint; whether one stands here."""
    if tokens.peek()[0] != "word" or tokens.peek()[1] not in _INDEXES:
        return False
    tokens.skip_part()
    return True
