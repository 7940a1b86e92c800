"""Dumps that a capture requests for tables of which it knows, in one look at the catalogue however many they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError, SourceError, TableLocked
from dblog_core.interfaces import StateStore
from dblog_core.model.table_names import some

LOCK_SECONDS = 1.0
"""How long a capture waits for a table that somebody has locked: the log of all others waits with it."""


@dataclass(slots=True)
class RequestedDumps:
    """`dumps`: the id of each table's dump; `gone`: tables that no longer exist; `keyless`: those without a key,
    of which neither dump nor lake has anything; `refused`: others that cannot be dumped, and why; `locked`: those of
    them that somebody has locked, which may do a moment later."""

    dumps: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    keyless: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    locked: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> list[str]:
        """Tables that have no dump."""
        return [*self.gone, *self.keyless, *self.refused]

    @property
    def reasons(self) -> str:
        """Why, in one line."""
        groups = [("no longer there", self.gone), ("without a key", self.keyless)]
        parts = [f"{len(names)} {what} ({some(names)})" for what, names in groups if names]
        return "; ".join([*parts, *(f"{table}: {why}" for table, why in self.refused.items())])


def request_dumps(
    config: Config,
    request: DumpRequest,
    tables: Sequence[str],
    *,
    state: StateStore,
) -> RequestedDumps:
    """Requests one dump of those among the tables that can be dumped. Raises what the state store raises, and faults of
    the source that may pass."""
    if not tables:
        return RequestedDumps()
    try:
        return _request_dumps(config, request, tables, state)
    except SourceError as error:
        is_locked = isinstance(error, TableLocked)  # the catalogue has no word of a table, which may be none of these
        if error.transient and not is_locked:
            raise
        # The log continues without these dumps, which stay owed.
        why = " ".join(str(error).split())
        return RequestedDumps(refused=dict.fromkeys(tables, why), locked=list(tables) if is_locked else [])


def _request_dumps(config: Config, request: DumpRequest, tables: Sequence[str], state: StateStore) -> RequestedDumps:
    requested = RequestedDumps()
    source = wiring.open_source(config.source)
    # One look for all: the catalogue of 10,000 tables is not read again for each of them.
    schemas = {str(schema.table): schema for schema in source.tables()}
    if absent := [table for table in tables if table not in schemas]:
        why = {problem.table: problem.what for problem in source.list_refusals()}
        requested.refused = {table: why[table] for table in absent if table in why}
        requested.gone = [table for table in absent if table not in why]
    requested.keyless = [table for table in tables if table in schemas and not schemas[table].key]
    dumpable = [table for table in tables if table in schemas and schemas[table].key]
    _submit(config, request, dumpable, requested, state)
    return requested


def _submit(
    config: Config, request: DumpRequest, tables: list[str], requested: RequestedDumps, state: StateStore
) -> None:
    """Where the source has lost some of the tables since, one dump of the others; where it refuses one, dumps of those
    around it."""
    if not tables:
        return
    try:
        request = replace(request, tables=tuple(tables))
        dump = filing.submit(config, request, requested_by=dump_records.SYSTEM, state=state, lock_seconds=LOCK_SECONDS)
    except RequestError as error:
        names = {str(schema.table) for schema in wiring.open_source(config.source).tables()}
        if lost := [table for table in tables if table not in names]:
            requested.gone += lost
            _submit(config, request, [table for table in tables if table in names], requested, state)
        elif len(tables) == 1:
            requested.refused[tables[0]] = " ".join(str(error).split())
            requested.locked += tables if isinstance(error.__cause__, TableLocked) else ()
        else:
            # One table that the source refuses must not keep the others from being dumped. It is looked for by halves:
            # each request reads the catalogue of all tables.
            half = len(tables) // 2
            for part in (tables[:half], tables[half:]):
                _submit(config, request, part, requested, state)
    else:
        requested.dumps |= dict.fromkeys(tables, dump)
