"""What others may do to a table while a change of ours is under way."""

from __future__ import annotations

from collections.abc import Callable

from deltalake import DeltaTable, write_deltalake

from tests.unit.delta_writer.tables import (
    Table,
    row,
)

RIVALS: dict[str, Callable[[Table], None]] = {}


def rival(work: Callable[[Table], None]) -> Callable[[Table], None]:
    RIVALS[work.__name__] = work
    return work


def open_delta(table: Table) -> DeltaTable:
    return DeltaTable(str(table.path))


@rival
def optimizes(table: Table) -> None:
    open_delta(table).optimize.compact()


@rival
def deletes(table: Table) -> None:
    open_delta(table).delete("id % 7 = 3")
    table.rows = {key: row_values for key, row_values in table.rows.items() if key[0] % 7 != 3}


@rival
def updates(table: Table) -> None:
    open_delta(table).update({"note": "'updated'"}, predicate="id % 11 = 5")
    for key, row_values in table.rows.items():
        if key[0] % 11 == 5:
            row_values["note"] = "updated"


@rival
def appends(table: Table) -> None:
    """A key that the change under way has too."""
    write_deltalake(str(table.path), table.arrow([row(10_000, "foreign")]), mode="append")
    table.expect([row(10_000, "foreign")])


@rival
def checkpoints(table: Table) -> None:
    open_delta(table).create_checkpoint()


@rival
def vacuums(table: Table) -> None:
    open_delta(table).optimize.compact()
    open_delta(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@rival
def widens(table: Table) -> None:
    """A property of the table changes."""
    open_delta(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})


@rival
def truncates(table: Table) -> None:
    open_delta(table).delete()
    table.rows.clear()
