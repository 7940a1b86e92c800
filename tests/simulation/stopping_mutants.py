"""Mistakes with hidden columns, and with what is known of tables: worlds in which tables stop must find each."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any
from unittest import mock

import orjson

from dblog_core.capture.healing.owed_dump_requests import OwedDumps
from dblog_core.dumps.reading.accepted_reads import AcceptedReads
from dblog_core.rows import table_guard
from dblog_core.rows.table_guard import TableGuard
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.table_records import NODES, TableRecords
from tests.simulation.mutants import Mutant


@contextlib.contextmanager
def an_unknown_shape_passes() -> Iterator[None]:
    """A guard that fails open: a shape that nobody has accepted is as good as the accepted one."""
    with (
        mock.patch.object(TableGuard, "_check_shape", return_value=[]),
        mock.patch.object(TableGuard, "_find_doubt", return_value=None),
    ):
        yield


def statements_move_no_names() -> contextlib.AbstractContextManager[object]:
    """A guard that goes by shapes alone: two columns that change names and places look as before."""
    return mock.patch.object(table_guard, "_may_move_names", return_value=None)


@contextlib.contextmanager
def chunks_pass_unproven() -> Iterator[None]:
    """What a SELECT has read counts as accepted, since it was when the attempt began."""
    with mock.patch.object(AcceptedReads, "require"), mock.patch.object(AcceptedReads, "confirm"):
        yield


def a_record_that_follows_its_manifest() -> contextlib.AbstractContextManager[object]:
    """The manifest names what was known before it: who dies behind it forgets a table."""
    real = TableRecords.write

    def write(self: TableRecords, *values: Any, **options: Any) -> dict[str, str]:
        before = self._index
        carried = real(self, *values, **options)
        return {**carried, "index": before} if before else carried

    return mock.patch.object(TableRecords, "write", write)


@contextlib.contextmanager
def a_record_beside_the_manifest() -> Iterator[None]:
    """A file of its own, replaced before the manifest is published: a leader that is overtaken there changes it."""
    real_write = TableRecords.write
    real_load = TableRecords.load.__func__  # type: ignore[attr-defined]

    def write(self: TableRecords, storage: Any, **options: Any) -> dict[str, str]:
        carried = real_write(self, storage, **options)
        storage.replace("beside.json", orjson.dumps({path: e.data.decode() for path, e in self._entries.items()}))
        return carried

    def load(cls: Any, staging: Staging, manifest: Manifest, only: Collection[str] = NODES) -> TableRecords:
        carried: TableRecords = real_load(cls, staging, manifest, only)
        if (data := staging.storage.read("beside.json")) is None:
            return carried
        records = TableRecords({path: text.encode() for path, text in orjson.loads(data).items()})
        records._parts = carried._parts
        records._index = carried._index
        return records

    with mock.patch.object(TableRecords, "write", write), mock.patch.object(TableRecords, "load", classmethod(load)):
        yield


def dumps_that_fail_are_forgotten() -> contextlib.AbstractContextManager[object]:
    """Nothing is owed to a table whose dump has failed for good."""
    return mock.patch.object(OwedDumps, "_take_failed")


STOPPING_MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        an_unknown_shape_passes,
        statements_move_no_names,
        chunks_pass_unproven,
        a_record_that_follows_its_manifest,
        a_record_beside_the_manifest,
        dumps_that_fail_are_forgotten,
    )
}
