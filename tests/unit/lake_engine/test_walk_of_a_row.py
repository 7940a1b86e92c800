"""ARCHITECTURE's walk of a row, from the plan of a merge on: a traced merge goes through the modules named there."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import table

ROOT = Path(__file__).parents[3]
ITEMS = table("items", id=pa.int64(), v=pa.string())


def _walk() -> list[Path]:
    """The files of the modules in the walk, from the plan of the merge on."""
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## The walk of a row")[1].split("\n## ")[0]
    names = re.findall(r"^\| `([\w/]+)` \|", text, flags=re.MULTILINE)
    of_merge = names[names.index("lake/merge_plan") :]
    return [ROOT / (f"{name}.py" if name.startswith("spark_jobs/") else f"dblog_core/{name}.py") for name in of_merge]


class _Trace:
    """The files whose functions were called, in the order of the calls."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and self.files[-1:] != [frame.f_code.co_filename]:
            self.files.append(frame.f_code.co_filename)

    def __enter__(self) -> _Trace:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def test_an_updated_row_goes_through_the_modules_of_the_walk(tmp_path: Path) -> None:
    lake = TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    lake.build.create(ITEMS, {"id": 1, "v": "first"})
    lake.build.create(ITEMS, {"id": 2, "v": "other"})
    lake.build.seal()
    lake.merge_well()
    lake.build.update(ITEMS, {"id": 1, "v": "second"})
    lake.build.seal()
    merger = lake.merger()
    with _Trace() as trace:
        merged = merger.run_round(retry_stopped=False)
    assert merged is not None and merged.tables[0].error is None
    assert [(row["id"], row["v"]) for row in lake.rust_rows(ITEMS)] == [(1, "second"), (2, "other")]
    walk = _walk()
    assert len(walk) > 5 and all(file.exists() for file in walk)
    calls = iter(trace.files)
    for file in walk:  # each behind the ones before it
        assert str(file) in calls, f"the row does not go to {file} next"
