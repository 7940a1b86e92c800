"""`dblog merge`: apply staged segments to the lake, in a Spark application of its own process."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import orjson
import typer

from dblog_core.commands.session import FAILED, JsonFlag, note, session_of, stopping


def merge(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Apply all that is sealed now, and end (the default).")] = False,
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until stopped, in one warm session.")] = False,
    json: JsonFlag = False,
) -> None:
    """Apply staged segments to the lake.

    Each change is applied to its Delta table exactly once. A merge that was interrupted is finished by the next
    one; two at a time exclude each other.

    \b
    Examples:
      dblog --config shop.toml merge
      dblog --config shop.toml merge --continuous
    """
    from dblog_core import spark

    session = session_of(context, json)
    if once and continuous:
        raise typer.BadParameter("give one of --once and --continuous")
    config = session.config()
    merges: list[Any] = []

    def take(text: str) -> None:
        if continuous:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        else:
            merges.append(orjson.loads(text))

    note(f"{config.source.name}: starting Spark")
    with stopping() as stop:
        results = take if session.json else None
        code = spark.run_job(
            "merge",
            config,
            arguments=["--continuous" if continuous else "--once"],
            stop=stop,
            on_line=note,
            on_result=results,
        )
    if session.json and not continuous:
        session.result({"source": config.source.name, "ok": not code, "merges": merges}, "")
    if code:
        raise typer.Exit(FAILED)
    note(f"{config.source.name}: " + ("the merge has ended" if continuous else "the lake holds all that was sealed"))
