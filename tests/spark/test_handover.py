"""Two merges of Spark's own processes: the second has started when the first leaves the lake."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.config.settings import Config
from dblog_core.lake import spark_submit
from dblog_core.lake.lake_status import LakeStatus, read_status
from dblog_core.staging import Staging
from dblog_core.wiring import open_lake
from tests.spark.segments import SegmentBuilder, table
from tests.waiting import wait_until

T = table("t", id=pa.int64(), v=pa.string())


@pytest.mark.one_of(6)
def test_the_next_merge_starts_its_spark_before_a_slice_ends(tmp_path: Path) -> None:
    sections = {
        "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.t"]},
        "staging": {"path": str(tmp_path / "staging")},
        "state": {"url": f"sqlite://{tmp_path / 'state.db'}"},
        "lake": {"path": str(tmp_path / "lake")},
    }
    config = Config.model_validate(sections)
    build = SegmentBuilder(Staging(str(tmp_path / "staging"), source="shop"))
    lines: list[str] = []
    exit_codes: dict[str, int] = {}
    stop = threading.Event()

    def merge(name: str) -> None:
        arguments = ["--continuous", "--slice", "1"]
        exit_codes[name] = spark_submit.run_job(
            "merge", config, arguments=arguments, stop=stop, on_line=lambda line: lines.append(f"{name} {line}")
        )

    def write_row(number: int) -> None:
        build.create(T, {"id": number, "v": "v"})
        build.seal()

    def wait_for_row(number: int) -> None:
        wait_until(
            lambda: (read_status(open_lake(config)) or LakeStatus()).offset == number,
            f"row {number} is merged",
            describe=lambda: lines,
        )

    threads = {name: threading.Thread(target=merge, args=(name,)) for name in ("first", "second")}
    try:
        write_row(1)
        threads["first"].start()
        wait_for_row(1)
        write_row(2)
        wait_for_row(2)  # its slice is over, and nobody is next: it goes on
        threads["second"].start()
        wait_until(lambda: "first" in exit_codes, "the first one ends", describe=lambda: lines)
        write_row(3)
        wait_for_row(3)
    finally:
        stop.set()
        for thread in threads.values():
            if thread.ident is not None:
                thread.join()
    assert exit_codes == {"first": 0, "second": 0}
    milestones = [line for line in lines if "Spark has started" in line or "slice is over" in line]
    assert [line.split()[0] for line in milestones] == ["first", "second", "first"], lines
