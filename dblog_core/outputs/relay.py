"""The relay of one output: the lease that makes it the only one, term after term, and what becomes of errors.

may pass            the next term, after a wait that grows unless lines were delivered meanwhile
we are replaced     the lease is given back, and waited for as a standby; an output that keeps its place has let nothing
from us through since
a line is poison    the lines around it go one by one until it is found; then the output stops, or notes it
anything else       ends the relay
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from dblog_core import wiring
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.errors import (
    DblogError,
    LeaseLost,
    OutputRefused,
    OutputTaken,
    PoisonLine,
    RequestError,
    StateError,
    VersionConflict,
)
from dblog_core.interfaces import Clock, Lease, Output
from dblog_core.model import durations
from dblog_core.outputs import positions
from dblog_core.outputs.dead_letters import DeadLetters
from dblog_core.outputs.relay_term import RelayContext, Term
from dblog_core.retry import retrying
from dblog_core.state import recent_errors
from dblog_core.state.lease_holder import give_back, holder_name

log = logging.getLogger(__name__)

_STANDBY_SECONDS = 1.0  # between two words of a standby


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """What a relay reports about itself: `holder` is another that passes lines on; `error` is waited out."""

    holder: str | None = None
    error: str | None = None


OnStatus = Callable[[RelayStatus], None]


def run_relay(
    config: Config,
    name: str,
    *,
    stop: threading.Event,
    once: bool = False,
    restart: bool = False,
    on_status: OnStatus | None = None,
    output: Output | None = None,
    clock: Clock | None = None,
) -> bool:
    """Sends the super-changelog to the output NAME until `stop` is set; `once`: all that is sealed now.

    `restart`: forget how far it was, and begin at its start, or at the place that its target tells. Whether all was
    sent. Raises RequestError for a name that is not configured, StateError where another relay is at work and `once` is
    given, and what stops an output for good.
    """
    if (settings := config.output.get(name)) is None:
        configured = ", ".join(sorted(config.output)) or "none"
        raise RequestError(f"there is no output {name}", fix=f"add [output.{name}]; configured are: {configured}")
    state = wiring.open_state(config)
    clock = clock or SystemClock()
    letters = DeadLetters(settings.dead_letter, source=config.source.name, output=name)
    target = output or wiring.open_output(config, name)
    context = RelayContext(name, settings, target, wiring.open_staging(config), state, letters, clock, stop)
    try:
        return Relay(context, ttl=config.state.ttl, once=once, restart=restart, on_status=on_status).run()
    except DblogError as error:
        recent_errors.record(state, f"relay {name}", error, clock.time())
        raise
    finally:
        state.close()


class Relay:
    """Standby and holder of the lease in turn."""

    def __init__(
        self,
        context: RelayContext,
        *,
        ttl: float,
        once: bool = False,
        restart: bool = False,
        on_status: OnStatus | None = None,
    ) -> None:
        self._context = context
        self._ttl = ttl
        self._once = once
        self._restart = restart
        self._on_status = on_status or (lambda _: None)
        self._singly_upto = 0

    def run(self) -> bool:
        """Whether all was sent that `once` asks for; False: stopped."""
        while not self._context.stop.is_set():
            try:
                if self._retry(self._run_under_lease):
                    return True
            except (OutputTaken, LeaseLost, VersionConflict) as error:
                log.warning("output %s: no longer the one that passes lines on: %s", self._context.name, error)
                # The other relay has the lease, or the state store is about to say so.
                self._context.clock.wait(self._context.stop, _STANDBY_SECONDS / 5)
            except DblogError as error:
                # An error that may pass is none for a relay that is asked to end.
                if not (error.transient and self._context.stop.is_set()):
                    raise
        return False

    def _run_under_lease(self) -> bool:
        """Terms under one lease. False: it is another's, or there is more to do."""
        context = self._context
        lease = context.state.acquire(
            positions.lease_name(context.name),
            holder_name(),
            ttl=self._ttl,
            wait=0.0 if self._once else _STANDBY_SECONDS,
        )
        if lease is None:
            return self._stand_by()
        try:
            if self._restart:
                positions.forget_place(context.state, context.name)
                self._restart = False
            self._on_status(RelayStatus())
            return self._run_terms(lease)
        except OutputTaken as error:
            # The target has seen a higher epoch than the state store, which was restored: the next lease must exceed
            # it.
            context.state.raise_epoch(positions.lease_name(context.name), error.epoch)
            raise
        finally:
            give_back(lease)

    def _stand_by(self) -> bool:
        leader = self._context.state.leader(positions.lease_name(self._context.name))
        holder = leader.holder if leader else "another"
        if self._once:
            raise StateError(
                f"another relay ({holder}) already runs for this output",
                where=f"output {self._context.name}",
                fix="stop it first, if this one is to send the lines",
            )
        self._on_status(RelayStatus(holder=holder))
        return False

    def _run_terms(self, lease: Lease) -> bool:
        """Whether all is done. False after an error that may pass, if the target had all before: it is a first one."""
        while not self._context.stop.is_set():
            term = Term(self._context, lease, singly_upto=self._singly_upto)
            try:
                term.run(once=self._once)
                return self._once and not self._context.stop.is_set()
            except PoisonLine as error:
                self._handle_poison(error, term)
            except DblogError as error:
                # Progress means that this is a new fault: the waits between tries begin again.
                if not (error.transient and term.has_progressed):
                    raise
                self._report_retry(error, 0.0)
                return False
            finally:
                self._context.output.close()
        return False

    def _handle_poison(self, error: PoisonLine, term: Term) -> None:
        """Finds the line, notes it or stops. Raises OutputRefused."""
        line = term.find_poison_line(error)
        # Some line of the batch is at fault: go through it line by line.
        if line is None and term.tried_upto > self._singly_upto:
            self._singly_upto = term.tried_upto
            return
        if line is None:
            raise OutputRefused(
                f"the target refuses lines, and not one by one: {error.message}",
                where=f"output {self._context.name}",
                fix="repair the target",
            ) from error
        where = f"output {self._context.name}, offset {line['offset']}, {line['table']}"
        if self._context.settings.poison == "stop":
            raise OutputRefused(
                f"the target refuses the line: {error.message}",
                where=where,
                fix='repair the target; or set poison = "dead_letter", and a dead_letter file that takes such lines',
            ) from error
        self._context.letters.note_line(line, error.message)
        log.warning("%s: noted as a dead letter: %s", where, error.message)
        term.count_dead_letter()

    def _retry(self, step: Callable[[], bool]) -> bool:
        settings = self._context.settings
        policy = retrying(
            give_up_after=durations.parse(settings.give_up_after),
            longest_wait=settings.longest_wait,
            stop=self._context.stop,
            clock=self._context.clock,
            on_retry=self._report_retry,
        )
        return bool(policy(step))

    def _report_retry(self, error: DblogError, seconds: float) -> None:
        log.warning("output %s: trying again in %.1f s: %s", self._context.name, seconds, error)
        # For `status` on other machines, which do not see this log.
        recent_errors.record(self._context.state, f"relay {self._context.name}", error, self._context.clock.time())
        self._on_status(RelayStatus(error=str(error)))
