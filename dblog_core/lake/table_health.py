"""Why a table's lake copy is not well, and what repairs it: `cause` and `fix` of a table in `status`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dblog_core.dumps.dump_records import OVER, SYSTEM
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
    cause, fix = _explain_missing_rows(name, table, dumps, owed)
    return (cause if table.damage is None else f"{table.damage}; {cause}"), fix


def _explain_missing_rows(
    name: str, table: TableStatus, dumps: Iterable[DumpStatus], owed: Mapping[str, OwedDump]
) -> tuple[str, str]:
    dumps_by_id = {dump.id: dump for dump in dumps}
    entry = owed.get(name)
    if entry is not None and entry.asked is None and (table.awaits or table.lacks is not None):
        fix = _fix_of(dumps_by_id.get(entry.dump), name)
        return (
            f"its dump {entry.dump} has failed: {entry.why}" if entry.dump else entry.why,
            f"{fix}, and start the capture again: it is dumped again then; or run `{_command(name)}`",
        )
    # Not only the awaited one: any full dump of the table brings its rows.
    running = [dump for dump in dumps_by_id.values() if dump.state not in OVER and dump.reads_whole(name)]
    if running and (table.awaits or table.lacks is not None):
        return _explain_running_dump(running[-1])
    if table.awaits is not None:
        return _explain_awaited_dump(name, table.awaits, dumps_by_id.get(table.awaits))
    if table.damage is not None:
        return "no full dump that began later is merged", f"`{_command(name)}`"
    if table.lacks is not None:
        return (
            "rows of before its first change here may be missing: no full dump of it is merged",
            f"`{_command(name)}`",
        )
    return _explain_withheld(name, table.withheld, list(dumps_by_id.values()))


def _explain_running_dump(dump: DumpStatus) -> tuple[str, str]:
    if dump.deferred is not None:
        return f"dump {dump.id} is requested, and no process has planned it yet", "start the capture, or `dblog work`"
    return f"dump {dump.id} is not merged yet", _BY_ITSELF


def _explain_awaited_dump(name: str, awaited: str, dump: DumpStatus | None) -> tuple[str, str]:
    command = f"`{_command(name)}`"
    if dump is None:
        return f"it waits for dump {awaited}, which is no longer known", command
    if dump.state == "done":
        return f"dump {awaited} is not merged yet", "`dblog merge`"
    if dump.state == "cancelled":
        return f"it waits for dump {awaited}, which was cancelled", command
    return f"it waits for dump {awaited}, which failed: {dump.error}", f"{_fix_of(dump, name)}, then {command}"


def _explain_withheld(name: str, rows: int, dumps: Sequence[DumpStatus]) -> tuple[str, str]:
    """Why rows are withheld: their keys wait for a dump that the merge requests."""
    waiting = f"{rows:,} rows wait" if rows else "rows wait"
    requested = [dump for dump in dumps if dump.requested_by == SYSTEM and name in dump.tables]
    newest = max(requested, key=lambda dump: (dump.requested_at, dump.id), default=None)
    if newest is not None and newest.deferred is not None and newest.state not in OVER:
        cause, fix = _explain_running_dump(newest)
        return f"{waiting} for a dump of their keys: {cause}", fix
    if newest is not None and newest.state == "failed":
        fix = f"{_fix_of(newest, name)}; a later merge requests the dump again"
        return f"{waiting} for a dump of their keys: dump {newest.id} failed: {newest.error}", fix
    return f"{waiting} for a dump of their keys, which is requested automatically", _BY_ITSELF


def _fix_of(dump: DumpStatus | None, name: str) -> str:
    """What repairs a failed dump of the table; None: it is removed."""
    refused = dump.refused if dump is not None else ()
    fixes = [refusal.fix for refusal in refused if refusal.table == name and refusal.fix]
    return fixes[0] if fixes else "repair that"


def _command(name: str) -> str:
    return f"dblog dump --table {quote_for_shell(name)}"
