"""`dblog cut`: the Delta version of every table for one consistent view of the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog_core.commands.session import JsonFlag, session_of
from dblog_core.commands.terminal.text_tables import moment
from dblog_core.config.secret_settings import READER

if TYPE_CHECKING:
    from dblog_core.lake.cuts import At, Cut, CutAndNext


def cut(
    context: typer.Context,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME|OFFSET", help="The newest cut at or before it; default: the newest."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the tables' Delta versions for one consistent view.

    A cut is what one merge has left: every table with all changes up to the cut's offset, and none after it. --at takes
    an offset of the super-changelog, or a commit time (ISO 8601; UTC where it has no zone), and finds the newest cut
    whose offset, or whose last commit, is not after it.

    \b
    Examples:
      dblog --config shop.toml cut
      dblog --config shop.toml cut --at 2026-11-21T14:30:00Z
      dblog --config shop.toml cut --at 17500 --json | jq .tables
    """
    from dblog_core.lake import cuts
    from dblog_core.wiring import open_lake

    session = session_of(context, json)
    moment_asked = None if at is None else cuts.parse_at(at)
    lake = open_lake(session.config(READER))
    cut_and_next = cuts.find_cut(lake, moment_asked)
    cuts.check_readable(lake, cut_and_next.cut)
    session.result(as_json(cut_and_next), text(cut_and_next, moment_asked))


def as_json(cut_and_next: CutAndNext) -> dict[str, Any]:
    """The object of `cut --json`."""
    cut = cut_and_next.cut
    after = cut_and_next.next_cut
    return {
        "cut": cut.number,
        "offset": cut.offset,
        "position": cut.position,
        "commit_time": moment(cut.commit_time),
        "merged_at": moment(cut.merged_at),
        "tables": dict(sorted(cut.tables.items())),
        "behind": dict(sorted(cut.behind.items())),
        "incomplete": dict(sorted(cut.incomplete.items())),
        "next": None
        if after is None
        else {"cut": after.number, "offset": after.offset, "commit_time": moment(after.commit_time)},
    }


def text(cut_and_next: CutAndNext, at: At | None) -> str:
    """The cut for people."""
    cut = cut_and_next.cut
    after = cut_and_next.next_cut
    lines = [
        f"cut       {cut.number}, merged at {moment(cut.merged_at)}",
        f"offset    {cut.offset:,}: every change up to it is in, none after it",
        f"position  {cut.position}",
        f"commit    {moment(cut.commit_time) or 'unknown'}",
    ]
    for name, version in sorted(cut.tables.items()):
        lines.append(f"table     {name}: version {version}{_behind(cut_and_next, name)}{_incomplete(cut, name)}")
    if after is None:
        lines.append("next      none: what came later is not merged yet" if at is not None else "next      none yet")
    else:
        lines.append(f"next      cut {after.number}: offset {after.offset:,}, commit {moment(after.commit_time)}")
    return "\n".join(lines)


def _incomplete(cut: Cut, name: str) -> str:
    return f"; incomplete: {cut.incomplete[name]}" if name in cut.incomplete else ""


def _behind(cut_and_next: CutAndNext, name: str) -> str:
    offset = cut_and_next.cut.behind.get(name)
    return "" if offset is None else f"; it had stopped, and holds changes up to offset {offset:,} only"
