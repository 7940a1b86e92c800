"""`dblog capture`: run the capture until stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dblog_core.commands.session import FAILED, JsonFlag, note, session_of, stopping
from dblog_core.commands.terminal.progress import progress
from dblog_core.config.secret_settings import CAPTURE
from dblog_core.model import position_spec
from dblog_core.model.position_spec import Form, Place

if TYPE_CHECKING:
    from dblog_core.capture.run_capture import CaptureStatus


_UntilCurrentOption = Annotated[
    bool, typer.Option("--until-current", help="End when all that was committed at the start is staged.")
]
_UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME|POSITION", help="End when all that is committed up to there is staged."),
]
_SecondsOption = Annotated[float | None, typer.Option("--for", min=0, metavar="SECONDS", help="End after so long.")]
_FreshStartOption = Annotated[
    bool,
    typer.Option(
        "--fresh-start",
        help="Continue at the log's present end although log in between is lost, and dump all tables.",
    ),
]


def capture(
    context: typer.Context,
    until_current: _UntilCurrentOption = False,
    until: _UntilOption = None,
    seconds: _SecondsOption = None,
    fresh_start: _FreshStartOption = False,
    json: JsonFlag = False,
) -> None:
    """Capture the source's log into staging, until stopped.

    The first capture of a source begins at the log's present end, and records that place at once. A second one waits
    as a standby, and takes over when the first ends or dies. Changes of `tables`, `columns` and `keys` in the
    configuration's file come into force meanwhile, and a table that is new by them is dumped.

    \b
    Examples:
      dblog --config shop.toml capture
      dblog --config shop.toml capture --for 3600
      dblog --config shop.toml capture --until-current
      dblog --config shop.toml capture --until 2026-11-20T10:00:00Z
      dblog --config shop.toml capture --until binlog.000012:4567
      dblog --config shop.toml capture --fresh-start     the server no longer has the log that comes next
    """
    from dblog_core.capture.config_reload import ConfigFile
    from dblog_core.capture.run_capture import CaptureOutcome, run_capture

    session = session_of(context, json)
    config = session.config(CAPTURE)
    place = _place(until, config.source.kind, until_current)
    assert session.file is not None  # the configuration was read from it
    file = ConfigFile(session.file, lambda _: session.config(CAPTURE))
    last: list[CaptureStatus] = []
    with stopping() as stop, progress() as display:

        def tell(status: CaptureStatus) -> None:
            last[:] = [status]
            display.show(_line(config.source.name, status), kind=_kind(status))

        outcome = run_capture(
            config,
            stop=stop,
            slice_seconds=seconds,
            until_current=until_current,
            until=place,
            fresh_start=fresh_start,
            file=file,
            on_status=tell,
        )
    note(f"{config.source.name}: the capture has ended: {outcome.value}")
    if session.json:
        session.result(_result(outcome.value, last[0] if last else None), "")
    if (until_current or place) and outcome not in (CaptureOutcome.CURRENT, CaptureOutcome.REACHED):
        raise typer.Exit(FAILED)


def _place(until: str | None, kind: str, until_current: bool) -> Place | None:
    if until is None:
        return None
    if until_current:
        raise typer.BadParameter("--until and --until-current exclude each other")
    try:
        place = position_spec.parse(until, kind)
    except ValueError as error:
        raise typer.BadParameter(f"--until {error}") from None
    if place.form is Form.EARLIEST:
        raise typer.BadParameter(f"--until {until} is where a log begins: give {position_spec.forms(kind)}")
    return place


def _kind(status: CaptureStatus) -> str:
    return "fault" if status.error else f"{status.leading} {status.leader} {status.epoch}"


def _line(source: str, status: CaptureStatus) -> str:
    if status.error:
        return f"{source}: waiting for the next attempt: {status.error}"
    if not status.leading:
        return f"{source}: standing by; leader {status.leader or 'unknown'}, epoch {status.epoch}"
    lag = "unknown" if status.lag_seconds is None else f"{status.lag_seconds:.1f} s"
    windows = f", {status.windows} window(s) open" if status.windows else ""
    return (
        f"{source}: leading, epoch {status.epoch}; segment {status.segment}, offset {status.offset:,}; "
        f"{status.rows_per_second:,.0f} rows/s, lag {lag}{windows}; {status.position}"
    )


def _result(outcome: str, status: CaptureStatus | None) -> dict[str, object]:
    names = ("segment", "offset", "position", "epoch")
    if status is None or status.error:
        return {"outcome": outcome, **dict.fromkeys(names)}
    return {"outcome": outcome, **{name: getattr(status, name) for name in names}}
