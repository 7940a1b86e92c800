"""`[lake] keep` is what it says: every cut within it is read, and what only older ones need leaves the disk.

The clock is the real one. Files and commits get the times at which they would have been written.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from dblog_core.errors import LakeError
from spark_jobs.views import at_cut
from tests.spark.days import HOUR, ONE, Days
from tests.spark.spark_tables import make_checkpoint

DAY = 24 * HOUR


class Past:
    """Merges of a lake at times of the past."""

    def __init__(self, days: Days, keep: str) -> None:
        self.days = days
        lake = days.config.lake.model_copy(update={"keep": keep})
        days.config = days.config.model_copy(update={"lake": lake})
        self.now = time.time()
        self._seen: set[Path] = set()
        self.rows: dict[int, list[Any]] = {}

    def merge(self, ago: float, *rows: tuple[int, str]) -> int:
        """A merge of that many seconds ago; its cut."""
        self.days.now = self.now - ago
        for key, value in rows:
            self.days.lake.build.update(ONE, {"id": key, "v": value})
        cut = self.days.merge()
        self.date(ago)
        self.rows[cut] = self.read(cut)
        return cut

    def date(self, ago: float) -> None:
        """What was written since is that old."""
        root = self.days.lake.path
        for path in (path for path in root.rglob("*") if path.is_file() and path not in self._seen):
            os.utime(path, (self.now - ago, self.now - ago))
            self._seen.add(path)

    def maintain(self) -> Any:
        self.days.now = self.now
        (result,) = self.days.maintain()["tables"]
        return result

    def read(self, cut: int) -> list[Any]:
        """As a user reads it, in a session of their own."""
        spark = self.days.lake.spark.newSession()
        frame = at_cut(spark, str(self.days.lake.path), cut=cut).table(str(ONE.table), accept_incomplete=True)
        return sorted((row["id"], row["v"]) for row in frame.collect())


def test_thirty_days_keep_thirty(days: Days) -> None:
    past = Past(days, "30d")
    cuts = [past.merge(40 * DAY, *((n, "first") for n in range(20)))]
    cuts.append(past.merge(12 * DAY, (0, "changed")))
    cuts.append(past.merge(10 * DAY, *((n, "second") for n in range(20))))
    cuts.append(past.merge(HOUR, (1, "third")))
    past.maintain()
    past.date(0)
    days.lake.spark.newSession().sql(f"VACUUM delta.`{days.lake.table(ONE)}`").collect()
    assert {cut: past.read(cut) for cut in cuts} == past.rows


def test_an_hour_keeps_an_hour(days: Days) -> None:
    past = Past(days, "1h")
    past.merge(60 * HOUR, *((n, "first") for n in range(20)))
    past.merge(50 * HOUR, *((n, "second") for n in range(20)))
    old = {path.name for path in Path(days.lake.table(ONE).path).parent.rglob("*.parquet")}
    past.maintain()
    newest = past.merge(2 * HOUR, (0, "third"))
    past.maintain()
    root = days.lake.path / days.lake.table(ONE).path
    texts = [path.read_bytes() for path in root.glob("*.parquet")]
    assert texts and not any(b"first" in text for text in texts), old
    assert past.read(newest) == past.rows[newest]
    with pytest.raises(LakeError, match="there is no cut 1"):
        past.read(1)


def test_a_cut_of_an_hour_ago_names_a_version_of_any_age(days: Days) -> None:
    """With the settings as they are at first, and a table that had not changed for longer than Delta keeps versions."""
    past = Past(days, "7d")
    past.merge(90 * DAY, (1, "first"))
    cut = past.merge(HOUR)
    past.merge(60, (1, "second"))
    assert past.read(cut) == [(1, "first")]
    past.maintain()
    past.merge(30, (2, "more"))
    make_checkpoint(days.lake.spark, Path(str(days.lake.table(ONE))))
    past.merge(20, (3, "more"))
    assert past.read(cut) == [(1, "first")]
