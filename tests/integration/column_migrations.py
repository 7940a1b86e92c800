"""Random migrations of tables with hidden columns: what moves names, columns, tables and partitions, in the ways that
people and tools write it, over several steps and transactions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.integration.test_column_rules import MARK

RULED = ("people", "staff")
"""Tables whose column `w` is hidden; it holds the mark."""
NAMES = (*RULED, "archive", "kept", "clients", "holders")
COLUMNS = ("v", "w", "w_old", "x")
COMMENTS = ("", "/* ticket 7 */ ", "/* für später */ ")


@dataclass(slots=True)
class Column:
    name: str
    secret: bool = False


@dataclass(slots=True)
class Table:
    columns: list[Column]
    rows: int = 0
    partition_of: str = ""

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


@dataclass
class Migrations:
    """Statements of a seed, and what the tables are by then. `elsewhere`: a schema that nobody captures;
    `partitions`: whether there is a partitioned table that others may become a part of."""

    kind: str
    schema: str
    elsewhere: str
    seed: int
    partitions: bool = False
    tables: dict[str, Table] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._keys = 0

    def begin(self) -> list[str]:
        """The tables before any capture."""
        statements = []
        for name in RULED:
            statements += self._create(name, secret=True)
        if self.partitions:
            statements.append("CREATE TABLE roots (id int, v varchar(40), w varchar(40)) PARTITION BY LIST (id)")
            statements.append("ALTER TABLE roots ADD PRIMARY KEY (id)")
        return [*statements, *self.write()]

    def write(self) -> list[str]:
        """Rows of all tables, in each column what it is to hold."""
        statements = []
        for name, table in self.tables.items():
            if table.partition_of:
                continue  # its one key
            self._keys += 1
            statements.append(self._insert(name, table, self._keys))
            table.rows += 1
        return statements

    def step(self) -> list[str]:
        """A few statements, as one transaction where the server has such."""
        statements = []
        for _ in range(self._random.randint(1, 4)):
            changes = (self._rename_column, self._add, self._drop, self._swap, self._move, self._make)
            change = self._random.choice(changes)
            if self.partitions and self._random.random() < 0.15:
                change = self._attach
            statements += change()
            if self._random.random() < 0.5:
                statements += self.write()
        self.done += statements
        if self.kind == "postgres" and self._random.random() < 0.6:
            return ["; ".join(["BEGIN", *statements, "COMMIT"])]
        return statements

    def chance(self, part: float) -> bool:
        return self._random.random() < part

    # Statements -----------------------------------------------------------------------------------------------------

    def _alter(self, name: str, *clauses: str) -> list[str]:
        comment = self._random.choice(COMMENTS)
        words = "ALTER TABLE"
        if self.kind == "mariadb" and self._random.random() < 0.3:
            words = self._random.choice(("ALTER ONLINE TABLE", "ALTER TABLE IF EXISTS", "alter table"))
        if self.kind == "postgres":
            return [f"{comment}{words} {name} {clause}" for clause in clauses]
        return [f"{comment}{words} {name} {', '.join(clauses)}"]

    def _type(self, *, secret: bool = False) -> str:
        if self.kind == "postgres" or self._random.random() < 0.5:
            return "varchar(40)"
        return self._random.choice(("varchar(40) COMMENT 'für'", "varchar(40) DEFAULT NULL", "VARCHAR(40) NULL"))

    def _pick(self) -> tuple[str, Table] | None:
        names = [name for name, table in self.tables.items() if not table.partition_of]
        if not names:
            return None
        name = self._random.choice(names)
        return name, self.tables[name]

    def _create(self, name: str, *, secret: bool = False) -> list[str]:
        self.tables[name] = Table([Column("v"), Column("w", secret)])
        return [f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(40), w varchar(40))"]

    def _insert(self, name: str, table: Table, key: int) -> str:
        values = [f"'{MARK} {key}'" if c.secret else f"'open {key}'" for c in table.columns]
        names = ", ".join(["id", *(c.name for c in table.columns)])
        return f"INSERT INTO {name} ({names}) VALUES ({', '.join([str(key), *values])})"

    def _rename_column(self) -> list[str]:
        if (picked := self._pick()) is None or not picked[1].columns:
            return []
        name, table = picked
        column = self._random.choice(table.columns)
        free = [c for c in COLUMNS if table.column(c) is None]
        if not free:
            return []
        old, column.name = column.name, self._random.choice(free)
        if self.kind != "postgres" and self._random.random() < 0.4:
            return self._alter(name, f"CHANGE {old} {column.name} {self._type()}")
        return self._alter(name, f"RENAME COLUMN {old} TO {column.name}")

    def _swap(self) -> list[str]:
        """Two columns take each other's name."""
        if (picked := self._pick()) is None or len(picked[1].columns) < 2:
            return []
        name, table = picked
        one, other = self._random.sample(table.columns, 2)
        a, b = one.name, other.name
        one.name, other.name = b, a
        if self.kind != "postgres" and self._random.random() < 0.5:
            return self._alter(name, f"RENAME COLUMN {a} TO {b}", f"RENAME COLUMN {b} TO {a}")
        return [
            statement
            for old, new in ((a, "tmp_c"), (b, a), ("tmp_c", b))
            for statement in self._alter(name, f"RENAME COLUMN {old} TO {new}")
        ]

    def _add(self) -> list[str]:
        if (picked := self._pick()) is None:
            return []
        name, table = picked
        free = [c for c in COLUMNS if table.column(c) is None]
        if not free:
            return []
        new = Column(self._random.choice(free))
        clause = f"ADD COLUMN {new.name} {self._type()}"
        if self.kind != "postgres" and table.columns and self._random.random() < 0.5:
            before = self._random.randrange(len(table.columns))
            clause += f" AFTER {table.columns[before].name}"
            table.columns.insert(before + 1, new)
        else:
            table.columns.append(new)
        return self._alter(name, clause)

    def _drop(self) -> list[str]:
        if (picked := self._pick()) is None or len(picked[1].columns) < 2:
            return []
        name, table = picked
        column = self._random.choice(table.columns)
        table.columns.remove(column)
        return self._alter(name, f"DROP COLUMN {column.name}")

    def _move(self) -> list[str]:
        """A table takes another name, also by way of a schema that nobody captures."""
        if (picked := self._pick()) is None:
            return []
        name, table = picked
        free = [n for n in NAMES if n not in self.tables]
        if not free:
            return []
        new = self._random.choice(free)
        del self.tables[name]
        self.tables[new] = table
        way = self._random.randrange(3)
        if self.kind == "postgres":
            if way == 0:
                return [f"ALTER TABLE {name} RENAME TO {new}"]
            if way == 1:
                return [f"ALTER TABLE {name} RENAME TO tmp_t", f"ALTER TABLE tmp_t RENAME TO {new}"]
            return [
                f"ALTER TABLE {name} SET SCHEMA {self.elsewhere}",
                f"ALTER TABLE {self.elsewhere}.{name} RENAME TO {new}",
                f"ALTER TABLE {self.elsewhere}.{new} SET SCHEMA {self.schema}",
            ]
        comment = self._random.choice(COMMENTS)
        if way == 0:
            words = self._random.choice((f"RENAME TABLE {name} TO", f"ALTER TABLE {name} RENAME TO"))
            return [f"{comment}{words} {new}"]
        if way == 1:
            return [f"RENAME TABLE {name} TO tmp_t", f"{comment}RENAME TABLE tmp_t TO {new}"]
        return [
            f"{comment}RENAME TABLE {name} TO {self.elsewhere}.{new}",
            f"RENAME TABLE {self.elsewhere}.{new} TO {self.schema}.{new}",
        ]

    def _make(self) -> list[str]:
        """A new table under a free name, or one that goes."""
        free = [n for n in NAMES if n not in self.tables]
        if free and self._random.random() < 0.6:
            return self._create(self._random.choice(free))
        if (picked := self._pick()) is None or picked[0] in RULED:
            return []
        del self.tables[picked[0]]
        return [f"DROP TABLE {picked[0]}"]

    def _attach(self) -> list[str]:
        """PostgreSQL: a table becomes a partition, or comes back."""
        attached = [name for name, table in self.tables.items() if table.partition_of]
        if attached and self._random.random() < 0.5:
            name = self._random.choice(attached)
            self.tables[name].partition_of = ""
            return [f"ALTER TABLE roots DETACH PARTITION {name}"]
        fitting = [
            n for n, t in self.tables.items() if not t.partition_of and {c.name for c in t.columns} == {"v", "w"}
        ]
        if not fitting:
            return []
        name = self._random.choice(fitting)
        table = self.tables[name]
        self._keys += 1
        key = self._keys
        table.partition_of = "roots"
        secret = {c.name: f"'{MARK} {key}'" if c.secret else "'open'" for c in table.columns}
        return [
            f"DELETE FROM {name}",
            f"ALTER TABLE roots ATTACH PARTITION {name} FOR VALUES IN ({key})",
            f"INSERT INTO roots (id, v, w) VALUES ({key}, {secret['v']}, {secret['w']})",
        ]
