"""What a statement in the log means for us: the least that must be understood of SQL, and a refusal for the rest.

Rows travel as row events; statements are transaction control, DDL, and changes that somebody logged in statement form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.ddl.statement_text import is_read
from dblog_core.sources.mysql.ddl.statement_tokens import StatementTokens


class Means(Enum):
    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    ROLLBACK_TO = auto()
    SAVEPOINT = auto()
    XA_START = auto()
    XA_COMMIT = auto()
    """The second phase, like the next: a prepared transaction's rows count from here on."""
    XA_ROLLBACK = auto()
    EMPTIES = auto()
    """All rows of `tables` are gone: TRUNCATE, DROP, CREATE OR REPLACE."""
    REWRITES = auto()
    """Rows of `tables` come without row events: CREATE … SELECT in statement form."""
    SWAPS = auto()
    """Rows of `tables` change places without row events: RENAME, swapped partitions and files. What had the name of one
    in `renamed_away` has another one now, and nothing else has taken it."""
    DROPS_PARTITIONS = auto()
    """Some rows of `tables` are gone, or may be: DROP PARTITION, TRUNCATE PARTITION, REPAIR TABLE."""
    DROPS_SCHEMA = auto()
    CHANGES_ROWS = auto()
    """A change of rows in statement form. `row_statements` reads the tables that it names."""
    HARMLESS = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Statement:
    means: Means
    tables: tuple[TableName, ...] = ()
    schema: str = ""
    renamed_away: tuple[TableName, ...] = ()
    alters: bool = False
    """Whether it may have given the rows that `tables` have other values."""
    savepoint: str = ""
    """The one that it sets, or rolls back to."""
    shapes: bool = False
    """Whether it gives `tables` their columns, and they are there after it."""
    versions: bool | None = None
    """Whether MariaDB keeps every version of a row of `tables` from here on; None: as before."""
    creates: bool = False
    """Whether it is a CREATE TABLE: a table that was there, and that it does not replace, stays as it is."""
    makes: bool = False
    """Whether `tables` are made by it, without rows."""
    if_missing: bool = False
    """Whether it does nothing where they are there: it stands in the log then too."""
    truncates: bool = False
    """Whether it is a TRUNCATE TABLE: `tables` stay as they are, without rows."""

    def with_tables_of(self, is_admitted: Callable[[str], bool]) -> Statement:
        """The statement as far as it is about tables whose name is admitted."""
        if all(is_admitted(str(table)) for table in self.tables):
            return self
        tables = tuple(table for table in self.tables if is_admitted(str(table)))
        return replace(self, tables=tables, renamed_away=tuple(t for t in self.renamed_away if t in tables))


_ROW_CHANGES = {
    "INSERT",
    "REPLACE",
    "UPDATE",
    "DELETE",
    "LOAD",
    "WITH",
    "CALL",
    "DO",
    "SELECT",
    "MERGE",
    "HANDLER",
    "IMPORT",
}
_HARMLESS = {
    "RELEASE": "of a savepoint",
    "CREATE": "of anything but a table",
    "ALTER": "of anything but a table",
    "DROP": "of anything but a table or a schema",
    "GRANT": "accounts",
    "REVOKE": "accounts",
    "SET": "passwords, roles",
    "FLUSH": "caches and logs",
    "ANALYZE": "statistics",
    "OPTIMIZE": "same rows, new files",
    "INSTALL": "plugins",
    "UNINSTALL": "plugins",
    "RENAME": "of a user",
}
_SYSTEM = {"mysql", "sys", "performance_schema", "information_schema"}


def classify(sql: str, schema: str, *, any_case: bool = False) -> Statement:
    """What the statement means. `schema`: the default database that it was run in; `any_case`: its names in lower
    case, for a server that does not tell the two apart (lower_case_table_names)."""
    tokens = StatementTokens(sql, schema, any_case=any_case)
    tokens.skip_settings()
    verb = tokens.peek()
    if not tokens.words():  # comments alone: what a server puts in place of an event that a replica cannot read
        return Statement(Means.HARMLESS)
    if verb.word in _CONTROL:
        return _read_control(tokens)
    if verb.word in _DDL:
        statement = _read_table_ddl(tokens)
        if statement is not None:
            return statement
    if verb.word in _ROW_CHANGES:
        return Statement(_judge_row_change(tokens), schema=schema)
    return Statement(Means.HARMLESS if verb.word in _HARMLESS else Means.UNKNOWN)


_MOST_NAMED = 5
_CONTROL = ("BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "XA")
_DDL = ("TRUNCATE", "DROP", "CREATE", "ALTER", "RENAME", "REPAIR")


def describe(statement: Statement, sql: str) -> str:
    """The statement for errors: its verb and its tables. Its text holds values of rows."""
    tokens = StatementTokens(sql, "", any_case=False)
    tokens.skip_settings()
    verb = tokens.peek().word
    # A word that is no verb may be anything.
    named_verb = verb if verb in (*_CONTROL, *_DDL, *_ROW_CHANGES, *_HARMLESS) else "with an unknown verb"
    names = [str(table) for table in statement.tables if is_read(str(table))]
    shown = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    return f"statement {named_verb}{f' of {shown}' if shown else ''}"


def changes_definitions(sql: str) -> bool:
    """Whether the statement may make, change or drop a table, a view, a trigger or a function."""
    tokens = StatementTokens(sql, "", any_case=False)
    tokens.skip_settings()
    words = tokens.words()
    verb = words[0] if words else ""
    if verb in _DDL:
        what = [word for word in words[1:4] if word not in ("OR", "REPLACE")][:1]
        # A word in an executable comment may be none for this server.
        is_other = what in (["TEMPORARY"], ["USER"], ["ROLE"]) and "/*!" not in sql and "/*M!" not in sql
        return verb != "TRUNCATE" and not is_other
    return verb == "IMPORT" or (bool(words) and verb not in (*_CONTROL, *_ROW_CHANGES, *_HARMLESS))


_PHASES = {
    "START": Means.XA_START,
    "BEGIN": Means.XA_START,
    "COMMIT": Means.XA_COMMIT,
    "ROLLBACK": Means.XA_ROLLBACK,
}


def _read_control(tokens: StatementTokens) -> Statement:
    if tokens.take("XA"):
        return Statement(_PHASES.get(tokens.peek().word, Means.HARMLESS))
    if tokens.take("ROLLBACK"):
        tokens.take("WORK")
        if not tokens.take("TO"):
            return Statement(Means.ROLLBACK)
        tokens.take("SAVEPOINT")
        return Statement(Means.ROLLBACK_TO, savepoint=tokens.take_name())
    if tokens.take("SAVEPOINT"):
        return Statement(Means.SAVEPOINT, savepoint=tokens.take_name())
    return Statement(Means.COMMIT if tokens.take("COMMIT") else Means.BEGIN)


def _read_table_ddl(tokens: StatementTokens) -> Statement | None:
    """DDL on tables and schemas; None for that on anything else."""
    if tokens.take("TRUNCATE"):
        tokens.take("TABLE")
        table = tokens.take_table()
        return Statement(Means.EMPTIES, (table,), truncates=True) if table else Statement(Means.UNKNOWN)
    if tokens.take("DROP"):
        return _read_drop(tokens)
    if tokens.take("CREATE"):
        return _read_create(tokens)
    if tokens.take("RENAME"):
        return _read_rename(tokens)
    if tokens.take("REPAIR"):
        return _read_repair(tokens)
    tokens.take("ALTER")
    tokens.take("ONLINE")
    tokens.take("IGNORE")
    if not tokens.take("TABLE"):
        return None
    tokens.take("IF", "EXISTS")
    table = tokens.take_table()
    if table is None:
        return Statement(Means.UNKNOWN)
    words = tokens.words()
    if _moves_rows(words):
        return _read_swap(tokens, table)
    if _switches_sequence(words):
        return _read_sequence(table, replaces=True)
    # Found anywhere in the statement: a wrong guess costs a dump, an overlooked one leaves rows that are gone.
    drops = {("DROP", "PARTITION"), ("TRUNCATE", "PARTITION")} & set(itertools.pairwise(words))
    means = Means.DROPS_PARTITIONS if drops else Means.HARMLESS
    return Statement(means, (table,), alters=True, shapes=True, versions=_switches_versioning(words))


def _switches_versioning(words: list[str]) -> bool | None:
    """What a definition, or a change of it, says of system versioning."""
    threes = zip(words, words[1:], words[2:], strict=False)
    verbs = [before for before, *of in threes if of == ["SYSTEM", "VERSIONING"] and before != "WITHOUT"]
    return verbs[-1] != "DROP" if verbs else None  # WITHOUT: a single column is left out of it


def _read_drop(tokens: StatementTokens) -> Statement | None:
    # A temporary table belongs to one session, and may have the name of a captured table, which keeps its rows.
    if tokens.take("TEMPORARY"):
        return Statement(Means.HARMLESS)
    if tokens.take("TABLE") or tokens.take("TABLES"):
        tokens.take("IF", "EXISTS")
        tables = tokens.take_tables()
        return Statement(Means.EMPTIES, tables) if tables else Statement(Means.UNKNOWN)
    if tokens.take("DATABASE") or tokens.take("SCHEMA"):
        tokens.take("IF", "EXISTS")
        return Statement(Means.DROPS_SCHEMA, schema=tokens.fold_name(tokens.peek().name))
    return None


def _read_create(tokens: StatementTokens) -> Statement | None:
    replaces = tokens.take("OR", "REPLACE")
    if tokens.take("TEMPORARY"):
        return Statement(Means.HARMLESS)
    if tokens.take("SEQUENCE"):  # MariaDB's, which takes the place of a table too
        return _read_sequence(tokens.take_table(), replaces=replaces)
    if not tokens.take("TABLE"):
        return None
    if_missing = tokens.take("IF", "NOT", "EXISTS")
    table = tokens.take_table()
    if table is None:
        return Statement(Means.UNKNOWN)
    words = tokens.words()
    if _has_query(words):  # the row form of CREATE … SELECT has its rows in row events, and no SELECT
        return Statement(Means.REWRITES, (table,))
    if _switches_sequence(words):
        return _read_sequence(table, replaces=replaces)
    means = Means.EMPTIES if replaces else Means.HARMLESS
    makes = _OF_OTHERS.isdisjoint(words)
    if ("START", "TRANSACTION") in itertools.pairwise(words):  # of a CREATE … SELECT, logged only where it was done
        if_missing = False
    versions = _switches_versioning(words)
    return Statement(
        means,
        (table,),
        shapes=True,
        versions=versions if if_missing else bool(versions),
        creates=True,
        makes=makes,
        if_missing=if_missing,
    )


def _read_sequence(name: TableName | None, *, replaces: bool) -> Statement:
    """What follows from a new sequence: it has no rows for us, and a table that it replaces has lost its own."""
    return Statement(Means.EMPTIES, (name,)) if replaces and name else Statement(Means.HARMLESS)


def _switches_sequence(words: list[str]) -> bool | None:
    """Whether a definition, or a change of it, has MariaDB's option SEQUENCE, and what it says."""
    depth = 0
    options = []
    for word in words:
        depth += (word == "(") - (word == ")")
        if depth == 0 and word != "=":
            options.append(word)
    values = [value for name, value in itertools.pairwise(options) if name == "SEQUENCE" and value.isdigit()]
    return int(values[-1]) != 0 if values else None  # of a column with that name no number comes next


_OF_OTHERS = {"MERGE", "MRG_MYISAM", "FEDERATED", "CONNECT", "SPIDER", "S3", "CSV", "SEQUENCE"}
"""Engines whose tables may show rows of others from the first moment on."""


def _has_query(words: list[str]) -> bool:
    """Whether what follows a CREATE TABLE's name fills the table: SELECT, TABLE t, VALUES (…), VALUES ROW(…)."""
    values = (("VALUES", "("), ("VALUES", "ROW"))  # VALUES LESS THAN and VALUES IN are of partitions
    return "SELECT" in words or "TABLE" in words or any(pair in values for pair in itertools.pairwise(words))


def _read_rename(tokens: StatementTokens) -> Statement | None:
    """RENAME TABLE a TO b, …: pair after pair, as a swap of two tables by a third name needs it."""
    if not (tokens.take("TABLE") or tokens.take("TABLES")):
        return None
    tokens.take("IF", "EXISTS")
    exists: dict[TableName, bool] = {}
    while (old := tokens.take_table()) is not None:
        tokens.skip_waiting()
        new = tokens.take_table() if tokens.take("TO") else None
        if new is None:
            return Statement(Means.UNKNOWN)
        exists |= {old: False, new: True}
        if not tokens.take(","):
            break
    return _swap_statement(exists) if exists else Statement(Means.UNKNOWN)


def _swap_statement(exists: dict[TableName, bool]) -> Statement:
    """`exists`: whether a table has that name in the end."""
    return Statement(
        Means.SWAPS, tuple(exists), renamed_away=tuple(table for table, is_there in exists.items() if not is_there)
    )


def _read_repair(tokens: StatementTokens) -> Statement:
    """REPAIR TABLE a, b: rows that cannot be repaired are gone."""
    tokens.take("LOCAL")
    if not (tokens.take("TABLE") or tokens.take("TABLES")):
        return Statement(Means.HARMLESS)  # of a view
    tables = tokens.take_tables()
    return Statement(Means.DROPS_PARTITIONS, tables) if tables else Statement(Means.UNKNOWN)


_RENAMED_PARTS = {"COLUMN", "INDEX", "KEY", "CONSTRAINT"}


def _moves_rows(words: list[str]) -> bool:
    """Whether an ALTER TABLE renames the table, or swaps partitions or files."""
    pairs = set(itertools.pairwise(words))
    if any(first == "RENAME" and second not in _RENAMED_PARTS for first, second in pairs):
        return True
    partition = {(verb, "PARTITION") for verb in ("EXCHANGE", "DISCARD", "IMPORT", "CONVERT")}
    return bool(pairs & (partition | {("DISCARD", "TABLESPACE"), ("IMPORT", "TABLESPACE"), ("CONVERT", "TABLE")}))


def _read_swap(tokens: StatementTokens, table: TableName) -> Statement:
    """What an ALTER TABLE that moves rows does to the tables that it names."""
    exists = {table: True}
    after_name = tokens.place()
    while tokens.find("RENAME"):
        if tokens.peek().word in _RENAMED_PARTS:
            continue
        _ = tokens.take("TO") or tokens.take("AS") or tokens.take("=")
        if (new := tokens.take_table()) is None:
            return Statement(Means.UNKNOWN)
        exists |= {table: False, new: True}
    for words, stays in (
        (("WITH", "TABLE"), True),  # EXCHANGE PARTITION p WITH TABLE u
        (("TO", "TABLE"), True),  # CONVERT PARTITION p TO TABLE u
        (("CONVERT", "TABLE"), False),  # CONVERT TABLE u TO PARTITION p
    ):
        # Each of these forms is looked for from behind the table's own name.
        tokens.return_to(after_name)
        if tokens.find(*words):
            if (other := tokens.take_table()) is None:
                return Statement(Means.UNKNOWN)
            exists[other] = stays
    return _swap_statement(exists)


def _judge_row_change(tokens: StatementTokens) -> Means:
    """A write to the server's own schemas is harmless. Any other may reach captured tables by triggers and cascades,
    also from a table that nobody captures."""
    verbs = {"INSERT": ("INTO",), "REPLACE": ("INTO",), "DELETE": ("FROM",), "UPDATE": ()}
    verb = tokens.peek().word
    if verb not in verbs:
        return Means.CHANGES_ROWS
    tokens.take(verb)
    while tokens.peek().word in ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE"):
        tokens.take(tokens.peek().word)
    for word in verbs[verb]:
        tokens.take(word)
    table = tokens.take_table()
    single = tokens.peek().word not in (",", "JOIN")
    return Means.HARMLESS if table and single and table.schema.lower() in _SYSTEM else Means.CHANGES_ROWS
