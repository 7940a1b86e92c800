"""`dblog merge`: apply staged segments to the lake, in this process or by spark-submit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from dblog_core import early_signals
from dblog_core.commands.session import FAILED, JsonFlag, Session, note, session_of, stopping
from dblog_core.commands.terminal.text_tables import align
from dblog_core.config.secret_settings import LAKE, READER
from dblog_core.model import sizes

if TYPE_CHECKING:
    from dblog_core.interfaces import Json
    from dblog_core.lake.merge_dry_run import MergePlan, TablePlan


def merge(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Apply all that is sealed now, and end (the default).")] = False,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Continue until stopped, in one warm session.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what a merge would do now, without Spark, and change nothing.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Apply staged segments to the lake.

    Each change is applied to its Delta table exactly once. A merge that was interrupted is finished by the next
    one; two at a time exclude each other.

    \b
    Examples:
      dblog --config shop.toml merge
      dblog --config shop.toml merge --continuous
      dblog --config shop.toml merge --dry-run
    """
    session = session_of(context, json)
    if continuous and (once or dry_run):
        raise typer.BadParameter(f"give one of {'--once' if once else '--dry-run'} and --continuous")
    if dry_run:
        early_signals.release()
        _show_plan(session)
    else:
        _run(session, continuous=continuous)


def _show_plan(session: Session) -> None:
    from dblog_core.lake.merge_dry_run import merge_plan

    plan = merge_plan(session.config(READER))
    session.result(plan.to_json(), text(plan))


def _run(session: Session, *, continuous: bool) -> None:
    from dblog_core.lake.merge_options import MergeOptions
    from dblog_core.wiring import run_merge

    config = session.config(LAKE)
    merges: list[Json] = []

    def take(merge: Json) -> None:
        if continuous:
            sys.stdout.write(orjson.dumps(merge).decode() + "\n")
            sys.stdout.flush()
        else:
            merges.append(merge)

    if config.lake.engine == "spark":
        note(f"{config.source.name}: starting Spark")
    with stopping() as stop:
        options = MergeOptions("continuous" if continuous else "once")
        results = take if session.json else None
        code = run_merge(config, options, stop=stop, on_line=note, on_result=results)
    if session.json and not continuous:
        session.result({"source": config.source.name, "ok": not code, "merges": merges}, "")
    if code:
        raise typer.Exit(FAILED)
    note(f"{config.source.name}: " + ("the merge has ended" if continuous else "the lake holds all that was sealed"))


def text(plan: MergePlan) -> str:
    """A plan for people."""
    parts = ["nothing whole is sealed that the lake does not have"]
    if plan.segments is not None:
        first, last = plan.segments
        offsets = f"offset {plan.offset_from:,} to {plan.offset_to:,}"
        parts = [f"segments {first} to {last}, {offsets}, merges: {plan.merges}"]
    if plan.unfinished is not None:
        parts.append(f"merge {plan.unfinished} was begun and not ended: it is finished first")
    if plan.open_segments:
        parts.append(f"segments left for later, since their transaction continues: {plan.open_segments}")
    parts += [f"stopped   {t.table}, at offset {t.offset:,}: {t.error}" for t in plan.stopped]
    if plan.tables:
        header = ("TABLE", "DOES", "ROWS", "FILES", "CHUNKS", "BYTES", "BESIDE")
        parts.append(align(header, [_line(table) for table in plan.tables]))
    return "\n".join(parts)


def _line(table: TablePlan) -> tuple[str, ...]:
    counts = (f"{table.rows:,}", f"{table.files:,}", f"{table.chunks:,}", sizes.text(table.bytes))
    return (table.table, table.does, *counts, "; ".join(_beside(table)))


def _beside(table: TablePlan) -> Iterator[str]:
    """What happens to a table beside its rows."""
    change = table.change
    columns = {"added": change.added, "gone": change.gone, "widened": change.widened, "retyped": change.retyped}
    yield from (f"columns {how}: {', '.join(names)}" for how, names in columns.items() if names)
    if change.rekeyed:
        yield "another key"
    if table.truncates:
        yield f"TRUNCATE: {len(table.truncates)}"
    for ghost in table.ghosts:
        ends = [f"{name} {end}" for name, end in (("from", ghost.key_from), ("to", ghost.key_to)) if end is not None]
        yield " ".join([f"ghosts of dump {ghost.dump}", *ends])
    if table.history:
        yield "history"
