"""The capture as a sensor of a continuous DAG: it leads for a slice, or stands by until it can, and hands over."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException

from dblog_core.airflow import run_notes
from dblog_core.airflow.in_process import InProcess, configuration
from dblog_core.airflow.notifiers import receivers

if TYPE_CHECKING:
    from dblog_core.capture.run_capture import CaptureStatus
    from dblog_core.config.settings import Config
    from dblog_core.notifications.channels import Receiver

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between two looks at a capture that runs elsewhere
REPORT = 10.0  # seconds between two status lines, unless something has changed


class CaptureSensor(InProcess, BaseSensorOperator):
    """Runs the capture of one source in the task's process for `slice_seconds`.

    `execute` replaces the sensor's own loop: there is no condition to poke for, and its timeout does not apply.
    """

    def __init__(self, *, config_file: str, slice_seconds: float = 1800.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config_file = config_file
        self.slice_seconds = slice_seconds

    def execute(self, context: Any) -> str:
        """Returns why the slice ended. Raises what stops a capture for good; faults that may pass are waited out."""
        return self.run_engine(partial(self._capture, context))

    def _capture(self, context: Any, config: Config, stop: threading.Event) -> str:
        from dblog_core.capture.config_reload import ConfigFile
        from dblog_core.capture.run_capture import run_capture

        log.info("capture of %s, for %.0f s", config.source.name, self.slice_seconds)
        file = ConfigFile(Path(self.config_file), lambda path: configuration(str(path)))
        status_lines = StatusLines(config.source.name)
        outcome = run_capture(
            config,
            stop=stop,
            slice_seconds=self.slice_seconds,
            file=file,
            on_status=status_lines,
            receivers=receivers(config, context),
        )
        log.info("the capture ends: %s", outcome.value)
        return outcome.value


class CaptureWatch(InProcess, BaseSensorOperator):
    """Watches a capture that runs outside of Airflow (systemd, Kubernetes): tells its status, and fails once nobody has
    led for `patience` seconds, so that Airflow tells somebody."""

    def __init__(
        self, *, config_file: str, slice_seconds: float = 1800.0, patience: float = 60.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config_file = config_file
        self.slice_seconds = slice_seconds
        self.patience = patience

    def execute(self, context: Any) -> str:
        """Returns why the slice ended. Raises AirflowException where no capture leads."""
        return self.run_engine(partial(self._watch_and_tell, context))

    def _watch_and_tell(self, context: Any, config: Config, stop: threading.Event) -> str:
        """The capture that is watched cannot call Airflow's notifiers: so the watch reports dumps."""
        over = threading.Event()
        threads = []
        for receiver in receivers(config, context):
            threads.append(
                threading.Thread(target=_tell, args=(receiver, config, over), name=f"notices-{receiver.name}")
            )
            threads[-1].start()
        try:
            return self._watch(config, stop)
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _watch(self, config: Config, stop: threading.Event) -> str:
        from dblog_core.capture.term import CaptureOutcome
        from dblog_core.clock import SystemClock

        clock = SystemClock()
        tell = StatusLines(config.source.name)
        began = led = clock.monotonic()
        while not stop.is_set():
            status = _read_status(config)
            tell(status)
            now = clock.monotonic()
            led = now if status.leader is not None else led
            if now - led >= self.patience:
                raise AirflowException(
                    f"no capture of {config.source.name} has led for {self.patience:.0f} s: start it where it runs, or "
                    f'let Airflow run it ([airflow] capture = "run"). {status.error or ""}'.rstrip()
                )
            if now - began >= self.slice_seconds:
                return CaptureOutcome.SLICE_OVER.value
            clock.wait(stop, LOOK)
        return CaptureOutcome.STOPPED.value


def _tell(receiver: Receiver, config: Config, stop: threading.Event) -> None:
    """Reports dumps until `stop` is set; while the state store is away it waits for it."""
    from dblog_core import wiring
    from dblog_core.clock import SystemClock
    from dblog_core.errors import StateUnavailable
    from dblog_core.notifications.delivery import tell_until_stopped

    while not stop.is_set():
        try:
            with closing(wiring.open_state(config)) as state:
                tell_until_stopped(receiver, config.source.name, state, SystemClock(), stop)
        except StateUnavailable as error:
            log.warning("notify %s: %s", receiver.name, error)
            stop.wait(LOOK)


def _read_status(config: Config) -> CaptureStatus:
    """What staging and state store say of a capture that runs elsewhere; if one of them is away, that is reported, not
    raised.
    """
    from dblog_core.errors import DblogError
    from dblog_core.monitoring.status import read_capture_status
    from dblog_core.state.capture_status import CaptureStatus

    try:
        status = read_capture_status(config)
    except DblogError as error:
        if not error.transient:
            raise
        return CaptureStatus(False, None, 0, 0, "", None, 0.0, 0, None, str(error))
    return status


class StatusLines:
    """Writes what the capture tells once a second as log lines: every ten seconds, and at every change of role; and its
    figures among Airflow's metrics every second."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._role: tuple[Any, ...] = ()
        self._next = 0.0

    def __call__(self, status: CaptureStatus) -> None:
        if status.leading:
            run_notes.gauges(self._source, _figures(status))
        role = (status.leading, status.epoch, status.leader, status.error)
        if role == self._role and time.monotonic() < self._next:
            return
        self._role = role
        self._next = time.monotonic() + REPORT
        log.info("%s", describe(status))


def _figures(status: CaptureStatus) -> dict[str, float | None]:
    return {
        "leader_epoch": status.epoch,
        "lag_seconds": status.lag_seconds,
        "rows_per_second": status.rows_per_second,
        "staged_offset": status.offset,
        "windows": status.windows,
    }


def describe(status: CaptureStatus) -> str:
    """One line for a person."""
    if status.error:
        return f"waiting: {status.error}"
    if not status.leading:
        return f"standing by; leader {status.leader or 'unknown'}, segment {status.segment}, offset {status.offset}"
    lag = "unknown" if status.lag_seconds is None else f"{status.lag_seconds:.1f} s"
    return (
        f"leading, epoch {status.epoch}: segment {status.segment}, offset {status.offset}, lag {lag}, "
        f"{status.rows_per_second:.0f} rows/s, {status.windows} open windows, position {status.position}"
    )
