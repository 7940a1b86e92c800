"""The SQL of the scenarios, where databases differ."""

from __future__ import annotations

ADD_NOW = {
    "mysql": "ALTER TABLE {t} ADD COLUMN {c} DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    "mariadb": "ALTER TABLE {t} ADD COLUMN {c} DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    "postgres": "ALTER TABLE {t} ADD COLUMN {c} DOUBLE PRECISION NOT NULL DEFAULT random()",
}
"""Adds a column whose value in old rows is not in the log."""

TEXT_TO_INTEGER = {
    "mysql": "ALTER TABLE {t} MODIFY {c} INTEGER",
    "mariadb": "ALTER TABLE {t} MODIFY {c} INTEGER",
    "postgres": "ALTER TABLE {t} ALTER {c} TYPE INTEGER USING {c}::INTEGER",
}
"""A change of type that stops a table until `dblog schema accept`."""


def create(table: str, columns: str, rows: int = 0, values: str = "") -> list[str]:
    """A table with `id` as its key and rows 1 to `rows`; `{i}` in the values of a row is its id."""
    listed = ", ".join(f"({i}, {values.format(i=i)})" for i in range(1, rows + 1))
    fill = [f"INSERT INTO {table} VALUES {listed}"] if rows else []
    return [f"CREATE TABLE {table} (id INTEGER NOT NULL PRIMARY KEY, {columns})", *fill]


def documents(kind: str) -> list[str]:
    """PostgreSQL: a table with a text that updates of other columns leave out of the log. No other database has one."""
    if kind != "postgres":
        return []
    return [
        "CREATE TABLE documents (id INTEGER NOT NULL PRIMARY KEY, title TEXT, body TEXT)",
        "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO documents SELECT i, 'title ' || i, repeat(md5(i::text), 640) FROM generate_series(1, 20) AS i",
    ]
