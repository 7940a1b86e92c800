"""Every change of a table's shape at every moment of a dump, under writes: the lake ends as the source, or says why
not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records
from dblog_core.lake import merge_plan
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution import compatibility
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.schema_matrix import UNKNOWN, Matrix, Moment, Row

Rows = dict[tuple[Any, ...], Row]


@dataclass
class Copy:
    """What a lake without Spark makes of a table's lines: `known_shape` is the shape that it had before the changes."""

    known_shape: TableSchema | None = None
    shape: TableSchema | None = None
    rows: Rows = field(default_factory=dict)
    seen: dict[tuple[Any, ...], int] = field(default_factory=dict)
    left: dict[tuple[Any, ...], dict[str, Any] | None] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def apply(self, line: dict[str, Any]) -> None:
        match line["op"]:
            case "s":
                self._reshape(line)
            case "t":
                self.rows.clear()
            case "f":
                self.rows = {k: r for k, r in self.rows.items() if self.seen[k] > line["since"]}
            case "c" | "u" | "d" | "r" if line["key"] is None:
                pass  # a table without a key has no copy
            case "d":
                key = tuple(line["key"].values())
                self.seen[key] = line["offset"]
                self.left = {key: self.rows.pop(key, None)}
            case _:
                self._put(line)

    def _put(self, line: dict[str, Any]) -> None:
        key = tuple(line["key"].values())
        moved = line.get("moved_from")
        self.seen[key] = line["offset"]
        old = self.left.get(tuple(moved.values())) if moved else self.rows.get(key)
        kept_values = {name: (old or {}).get(name, UNKNOWN) for name in line["unchanged"]}
        self.rows[key] = {**kept_values, **line["after"]}

    def _reshape(self, line: dict[str, Any]) -> None:
        schema = TableSchema.from_json(
            {"table": line["table"].split("."), "columns": line["schema"], "key": line["key_columns"]}
        )
        self.shape = schema
        renamed = line.get("renamed") or {}
        filled = line.get("filled") or {}
        for key, row in self.rows.items():
            self.rows[key] = {
                c.name: row.get(renamed.get(c.name, c.name), filled.get(c.name, UNKNOWN)) for c in schema.columns
            }

    def stop_reasons(self) -> list[str]:
        """Why a lake that had the shape `known_shape` does not follow; nothing where it does."""
        return (
            compatibility.compare_schemas(self.known_shape, self.shape).faults
            if self.known_shape and self.shape
            else []
        )


def fold_copies(config: Config, shapes: dict[str, TableSchema]) -> dict[str, Copy]:
    copies: dict[str, Copy] = {}
    for line in lines(wiring.open_staging(config)):
        copies.setdefault(line["table"], Copy(shapes.get(line["table"]))).apply(line)
    return copies


class PlainLake:
    """Stands where the merge stands, without Spark: what it asks for, and what its tables hold in the end."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.staging = wiring.open_staging(matrix.config)
        self.known: dict[str, TableSchema] = {}
        self.segment = 0

    def merge(self) -> None:
        """What is staged by now is in the lake."""
        head = self.staging.head()
        assert head is not None
        self.segment = head.segment
        self.known = {name: self.staging.schema(shape) for name, shape in head.schemas.items()}

    def lacking(self) -> list[str]:
        """Tables that a merge of all the rest requests a dump of."""
        works = merge_plan.plan_works(self.staging.manifests(after=self.segment), lambda _: self.segment)
        return [name for name, work in works.items() if self._lacks(name, work)]

    def _lacks(self, name: str, work: merge_plan.Work) -> bool:
        def columns(fingerprint: str) -> list[str]:
            return [c.name for c in self.staging.schema(fingerprint).columns]

        shape = self.known.get(name)
        return merge_plan.lacks_before(work, shape.fingerprint if shape else None, columns) is not None


@pytest.mark.in_turn
@pytest.mark.one_of(2)
@pytest.mark.parametrize("moment", list(Moment), ids=lambda m: m.value)
def test_the_super_changelog_leads_to_the_source(
    database: Database, moment: Moment, pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = Matrix(database, tmp_path, moment, pytestconfig.option.soak_first)
    lake = PlainLake(matrix)
    faults = matrix.faults
    for _ in matrix.run(monkeypatch, lake.merge):
        for name in lake.lacking():
            if matrix.has_key(name):
                matrix.dump(name, by=dump_records.SYSTEM)
        matrix.wait_until_dumped()
        matrix.wait_until_staged()
        copies = fold_copies(matrix.config, lake.known)
        for name, change in matrix.changes.items():
            stopped = copies[name].stop_reasons()
            if change.stops or stopped:
                if not any(change.stops and change.stops in fault for fault in stopped):
                    faults.append(f"{name}: stops with {stopped}, expected {change.stops!r}")
            else:
                faults += matrix.differences(name, copies[name].rows.values())
    assert not faults, "\n".join(faults)
