"""`dblog relay`: send the super-changelog to an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dblog_core.commands.session import FAILED, JsonFlag, note, session_of, stopping
from dblog_core.config.secret_settings import READER

if TYPE_CHECKING:
    from dblog_core.outputs.relay import RelayStatus


def relay(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The output: [output.NAME] of the configuration.")],
    once: Annotated[bool, typer.Option("--once", help="Send all that is sealed now, and end.")] = False,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Forget how far it was: begin at its start, or at the place that its target tells."
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Send the super-changelog to an output, until stopped.

    It continues where the output stands. A second one waits as a standby, and continues when the first ends or dies.

    \b
    Examples:
      dblog --config shop.toml relay search
      dblog --config shop.toml relay search --once
    """
    from dblog_core.outputs.relay import run_relay

    session = session_of(context, json)
    config = session.config(READER | {f"output.{name}"})

    def tell(status: RelayStatus) -> None:
        line = _status_line(status)
        if [line] != last_line:
            note(f"{config.source.name}, output {name}: {session.redact(line)}")
            last_line[:] = [line]

    last_line: list[str] = []
    with stopping() as stop:
        done = run_relay(config, name, stop=stop, once=once, restart=restart, on_status=tell)
    if session.json:
        session.result({"source": config.source.name, "output": name, "outcome": "current" if done else "stopped"}, "")
    note(f"{config.source.name}, output {name}: " + ("has all that was sealed" if done else "stopped"))
    if once and not done:
        raise typer.Exit(FAILED)


def _status_line(status: RelayStatus) -> str:
    if status.error:
        return f"waiting for the next attempt: {status.error}"
    return f"standing by; {status.holder} passes lines on" if status.holder else "passing lines on"
