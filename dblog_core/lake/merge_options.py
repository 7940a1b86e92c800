"""The options of a merge job, as commands, tasks of Airflow and spark-submit give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["once", "continuous", "tasks"]
"""`once`: all that is sealed when it begins. `continuous`: until it is stopped. `tasks`: only lake tasks that wait."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """`wait_seconds`: for another merge of the same lake to end. `slice_seconds`: a continuous merge then ends, once
    the next merge is ready to take the lake.
    """

    mode: Mode = "once"
    wait_seconds: float = 0.0
    slice_seconds: float | None = None

    def arguments(self) -> list[str]:
        """The arguments of `spark_jobs/merge.py`."""
        arguments = [f"--{self.mode}"]
        if self.wait_seconds:
            arguments += ["--wait", str(self.wait_seconds)]
        if self.slice_seconds is not None:
            arguments += ["--slice", str(self.slice_seconds)]
        return arguments
