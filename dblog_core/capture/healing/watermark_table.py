"""The watermark table while a capture leads: if it is dropped, altered or no longer logged, dumps end at most.

it is missing            it is made again; where the account may not do so, an error tells what does, and dumps wait
the log may have missed  attempts that write into it are broken: a chunk whose watermarks nobody reads would be
some of its rows         waited for without end. Node `watermark_table` of the state store has the identity of the
                         table of which all rows were shown
"""

from __future__ import annotations

import logging
import threading

from dblog_core.capture.term_parts import Parts
from dblog_core.errors import DblogError, SourceRefused, VersionConflict
from dblog_core.interfaces import Problem
from dblog_core.state import recent_errors

log = logging.getLogger(__name__)

KEEP_SECONDS = 2.0
"""Between two looks at the table."""
_NODE = "watermark_table"


class WatermarkTableKeeper:
    """Of one term. `look` is called by a thread of its own, the rest by the capture's loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._told: tuple[Problem, ...] = ()
        self._fault = ""
        self._latest: str | None = None
        self._settled = self._read_settled()

    def keep(self, stop: threading.Event) -> None:
        """Looks again and again until `stop` is set."""
        while True:
            self.look()
            if self._parts.clock.wait(stop, KEEP_SECONDS):
                return

    def look(self) -> None:
        """Makes the table where it is missing, and tells once what keeps watermarks from the log."""
        try:
            table = self._parts.source.keep_watermark_table()
        except DblogError as error:
            if not error.transient and str(error) != self._fault:
                log.warning("looking at the watermark table: %s", error)
            self._fault = str(error)
            return
        self._fault = ""
        if table.problems and table.problems != self._told:
            self._tell(table.problems)
        elif self._told and not table.problems:
            log.warning("the watermark table is as it should be: dumps continue")
        self._told = table.problems
        if table.identity is not None and not table.problems:
            self._latest = table.identity
            self._write_witness()

    def _write_witness(self) -> None:
        """Where it is due. What keeps it from being written keeps dumps from it as well, and they say so."""
        if self._parts.witness is not None:
            try:
                self._parts.witness.write_when_due()
            except DblogError as error:
                log.debug("no witness is written: %s", error)

    def find_other(self) -> str | None:
        """The table's identity, where it is another one than all attempts that are not broken go by."""
        latest = self._latest
        if self._settled is None and latest is not None:
            self.settle(latest)  # the first capture of this source: it has read the log of all attempts
        return latest if latest != self._settled else None

    def settle(self, identity: str) -> None:
        """The manifest is published by which all older attempts are broken."""
        self._settled = identity
        state = self._parts.state
        entry = state.get(_NODE)
        try:
            if entry is None:
                state.create(_NODE, identity.encode())
            else:
                state.update(_NODE, identity.encode(), entry.version)
        except VersionConflict:
            log.debug("another capture leads, and looks at the table itself")

    def _read_settled(self) -> str | None:
        entry = self._parts.state.get(_NODE)
        return None if entry is None else entry.data.decode()

    def _tell(self, problems: tuple[Problem, ...]) -> None:
        error = SourceRefused(
            f"no table can be dumped: {'; '.join(problem.what for problem in problems)}",
            where=self._parts.config.source.watermark_table,
            fix="; ".join(problem.fix for problem in problems),
        )
        log.warning("%s", error)
        recent_errors.record(self._parts.state, "capture", error, self._parts.clock.time())
