"""Dumps that a capture requests for tables of which it knows, in one look at the catalogue however many they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.interfaces import StateStore
from dblog_core.model.table_names import some


@dataclass(slots=True)
class Asked:
    """`dumps`: the id of each table's dump; `gone`: tables that are not there by now; `keyless`: those without a key,
    of which neither dump nor lake has anything; `refused`: others that cannot be dumped, and why."""

    dumps: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    keyless: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def left_out(self) -> list[str]:
        """Tables that have no dump."""
        return [*self.gone, *self.keyless, *self.refused]

    @property
    def told(self) -> str:
        """Why, in one line."""
        groups = [("not there any more", self.gone), ("without a key", self.keyless)]
        parts = [f"{len(names)} {what} ({some(names)})" for what, names in groups if names]
        return "; ".join([*parts, *(f"{table}: {why}" for table, why in self.refused.items())])


def request(config: Config, wanted: DumpRequest, tables: Sequence[str], *, state: StateStore) -> Asked:
    """Requests one dump of those among the tables that can be dumped. Raises what source and state store raise."""
    asked = Asked()
    if not tables:
        return asked
    source = wiring.open_source(config.source)
    known = {str(schema.table): schema for schema in source.tables()}
    if absent := [table for table in tables if table not in known]:
        why = {problem.table: problem.what for problem in source.refused()}
        asked.refused = {table: why[table] for table in absent if table in why}
        asked.gone = [table for table in absent if table not in why]
    asked.keyless = [table for table in tables if table in known and not known[table].key]
    _submit(config, wanted, [table for table in tables if table in known and known[table].key], asked, state)
    return asked


def _submit(config: Config, wanted: DumpRequest, tables: list[str], asked: Asked, state: StateStore) -> None:
    """Where the source has lost some of the tables since, one dump of the others; where it refuses one, each has a dump
    of its own."""
    if not tables:
        return
    try:
        wanted = replace(wanted, tables=tuple(tables))
        dump = filing.submit(config, wanted, requested_by=dump_records.SYSTEM, state=state)
    except RequestError as error:
        there = {str(schema.table) for schema in wiring.open_source(config.source).tables()}
        if lost := [table for table in tables if table not in there]:
            asked.gone += lost
            _submit(config, wanted, [table for table in tables if table in there], asked, state)
        elif len(tables) == 1:
            asked.refused[tables[0]] = " ".join(str(error).split())
        else:
            for table in tables:
                _submit(config, wanted, [table], asked, state)
    else:
        asked.dumps |= dict.fromkeys(tables, dump)
