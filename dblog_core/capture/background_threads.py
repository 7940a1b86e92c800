"""What runs beside a leader's loop, each in a thread of its own: dumps without a worker, compaction, signals, notices.

They never hold up the log, and their faults end no term: a fault is reported, and the work is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial

from dblog_core.capture import dump_process
from dblog_core.capture.healing.watermark_table import WatermarkTableKeeper
from dblog_core.capture.term_parts import HOUSEKEEPING_SECONDS, Parts
from dblog_core.errors import DblogError
from dblog_core.installed_packages import require
from dblog_core.interfaces import Running
from dblog_core.maintenance import ended_dumps
from dblog_core.model import durations
from dblog_core.notifications import channels
from dblog_core.notifications.delivery import tell_until_stopped
from dblog_core.signals.file import SignalFile
from dblog_core.signals.processor import SignalProcessor
from dblog_core.staging import compaction
from dblog_core.staging.compaction import Compactor
from dblog_core.state import recent_errors

log = logging.getLogger(__name__)


class BackgroundThreads:
    """The threads of one term, until `quit_` is set."""

    def __init__(self, parts: Parts, quit_: threading.Event, keeper: WatermarkTableKeeper | None = None) -> None:
        self._keeper = keeper
        self._parts = parts
        self._quit = quit_
        self._config = parts.config
        self._state = parts.state
        self._clock = parts.clock

    def start(self) -> list[Running]:
        return [self._parts.spawn(name, work) for name, work in self._works()]

    def _works(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "system-dumps", self._work_on_dumps
        yield "ended-dumps", self._remove_dumps
        if self._keeper is not None:
            yield "watermark-table", partial(self._keeper.keep, self._quit)
        if self._config.staging.compact:
            yield "compaction", self._compact
        if self._config.signals.any:
            yield "signals", self._carry_out_signals
        for receiver in (*map(channels.receiver, self._config.notify), *self._parts.receivers):
            source = self._config.source.name
            yield (
                f"notices-{receiver.name}",
                partial(tell_until_stopped, receiver, source, self._state, self._clock, self._quit),
            )

    def _work_on_dumps(self) -> None:
        """Has dumps worked on that the system or a signal asked for, and that no command works on."""
        on_fault = partial(self._trouble, "dumps")
        dump_process.work(self._config, self._state, self._clock, self._quit, on_fault=on_fault)

    def _remove_dumps(self) -> None:
        ended_dumps.remove(self._state, self._clock, self._quit, keep=durations.parse(self._config.dump.keep))

    def _compact(self) -> None:
        Compactor(self._parts.staging.handle(), self._clock, grace=compaction.GRACE).run(self._quit)

    def _carry_out_signals(self) -> None:
        """Takes in what others have appended to a file, and carries out what lies in the inbox."""
        # The inbox comes last: what file and topic have brought is carried out in the same look.
        looks = [SignalProcessor(self._config, self._state, self._clock).carry_out_waiting]
        if (file := self._config.signals.file) is not None:
            looks.insert(0, SignalFile(file, self._state, self._clock).read_new_lines)
        with contextlib.ExitStack() as opened:
            if (topic := self._config.signals.kafka) is not None:
                # Imported here: only who reads signals from Kafka needs the client.
                require("kafka")
                from dblog_core.signals.kafka import SignalTopic

                reader = SignalTopic(topic, self._config.source.name, self._state, self._clock)
                opened.callback(reader.close)
                looks.insert(0, reader.read_new_messages)
            while not self._clock.wait(self._quit, HOUSEKEEPING_SECONDS):
                self._look(looks)

    def _look(self, looks: list[Callable[[], None]]) -> None:
        # Each for itself: a topic that does not answer must not keep the inbox waiting.
        for look in looks:
            try:
                look()
            except DblogError as error:
                self._trouble("signals", error)

    def _trouble(self, part: str, error: DblogError) -> None:
        """Logs the fault, and shows it by `status`."""
        log.warning("%s: %s", part, error)
        recent_errors.record(self._state, part, error, self._clock.time())
