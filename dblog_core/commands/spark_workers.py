"""Work on dumps by the executors of [spark] master, for `dblog dump --spark` and `dblog work --spark`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dblog_core.config.settings import Config

SparkFlag = Annotated[bool, typer.Option("--spark", help="Work on the executors of [spark] master.")]


def work(config: Config, *, stop: threading.Event, dump_id: str | None, on_line: Callable[[str], None]) -> int:
    """Until the dump, or without an id all that are unfinished, is over; the job's exit code."""
    from dblog_core.lake import spark_submit

    on_line(f"{config.source.name}: starting Spark on {config.spark.master}")
    named = [] if dump_id is None else ["--dump", dump_id]
    return spark_submit.run_job("dump", config, arguments=named, stop=stop, on_line=on_line)
