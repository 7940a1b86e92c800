"""Why a table's lake copy is not well, and what repairs it: `cause` and `fix` of a table in `status`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.status import DumpStatus
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.model.table_names import quote_for_shell
from dblog_core.state.owed_dumps import OwedDump

_FIX = "\n  fix: "
_BY_ITSELF = "none while capture, worker and merge run: `dblog dumps` shows how far it is"


def of_stopped(error: str | None) -> tuple[str | None, str | None]:
    """Cause and fix in the text of an error."""
    cause, _, fix = (error or "").partition(_FIX)
    return cause or None, fix or None


def of_table(
    name: str, table: TableStatus, dumps: Iterable[DumpStatus], owed: Mapping[str, OwedDump]
) -> tuple[str | None, str | None]:
    """Cause and fix; None where nothing is wrong. `owed`: dumps that are requested again (`state.owed_dumps`)."""
    if table.state is State.STOPPED:
        return of_stopped(table.error)
    if table.state is State.OK:
        return None, None
    dumps_by_id = {dump.id: dump for dump in dumps}
    entry = owed.get(name)
    if entry is not None and entry.asked is None and (table.awaits or table.lacks is not None):
        return (
            f"its dump {entry.dump} has failed: {entry.why}" if entry.dump else entry.why,
            f"repair that, and start the capture again: it is dumped again then; or run `{_command(name)}`",
        )
    # Not only the awaited one: any full dump of the table brings its rows.
    running = [d.id for d in dumps_by_id.values() if d.state not in OVER and _dumps_whole_table(d, name)]
    if running and (table.awaits or table.lacks is not None):
        return f"dump {running[-1]} is not merged yet", _BY_ITSELF
    if table.awaits is not None:
        return _explain_awaited_dump(name, table.awaits, dumps_by_id.get(table.awaits))
    if table.lacks is not None:
        return (
            "rows of before its first change here may be missing: no full dump of it is merged",
            f"`{_command(name)}`",
        )
    rows = f"{table.withheld:,} rows wait" if table.withheld else "rows wait"
    return f"{rows} for a dump of their keys, which is requested automatically", _BY_ITSELF


def _dumps_whole_table(dump: DumpStatus, name: str) -> bool:
    return any(task.table == name and task.is_whole for task in dump.tasks)


def _explain_awaited_dump(name: str, awaited: str, dump: DumpStatus | None) -> tuple[str, str]:
    if dump is not None and dump.state == "done":
        return f"dump {awaited} is not merged yet", "`dblog merge`"
    ended = "is no longer known" if dump is None else f"was {dump.state}" if dump.state == "cancelled" else "failed"
    return f"it waits for dump {awaited}, which {ended}", f"`{_command(name)}`"


def _command(name: str) -> str:
    return f"dblog dump --table {quote_for_shell(name)}"
