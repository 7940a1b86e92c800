"""Sensors for people's own DAGs: until a lake table is as new as a time, or was proven equal to its source.

Each takes a source by its TOML file (`config_file`) or by its name (`source`: NAME.toml in $DBLOG_CONFIG_DIR). With
`mode="reschedule"` a sensor takes no slot between two looks, with `deferrable=True` the triggerer waits for it.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowException

from dblog_core.airflow.in_process import ONLY_TRANSIENT, InProcess, source_file
from dblog_core.airflow.triggers import TableFresh, TableProven, proven_result
from dblog_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dblog_core.airflow.triggers import Wait
    from dblog_core.config.settings import Config
    from dblog_core.interfaces import Json

log = logging.getLogger(__name__)


class _LakeSensor(InProcess, BaseSensorOperator):
    """Looks at one lake table. A wrong argument fails the task at once; what may pass is looked at again."""

    template_fields: Sequence[str] = ("table",)

    def __init__(
        self,
        *,
        table: str,
        config_file: str | None = None,
        source: str | None = None,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retry_policy", ONLY_TRANSIENT)
        super().__init__(**kwargs)
        self.table = table
        self.config_file = source_file(config_file, source)
        self.deferrable = deferrable

    @abstractmethod
    def look(self, config: Config, stop: threading.Event) -> Json | None:
        """The sensor's result; None: not yet."""

    @abstractmethod
    def wait(self, config: Config) -> Wait | Json:
        """The trigger that waits for it, or the result where it is there already."""

    def poke(self, context: Any) -> PokeReturnValue:
        result = self.run_engine(self.look)
        return PokeReturnValue(result is not None, result)

    def execute(self, context: Any) -> Any:
        """Returns the result. Raises RequestError for a wrong argument, AirflowSensorTimeout after `timeout`."""
        if not self.deferrable:
            return super().execute(context)
        wait = self.run_engine(lambda config, _: self.wait(config))
        if isinstance(wait, dict):
            return wait
        timeout = dt.timedelta(seconds=self.timeout)
        return self.defer(trigger=wait, method_name="end_wait", timeout=timeout)

    def end_wait(self, context: Any, event: Json) -> Any:
        """Continues after the trigger's event."""
        if "error" in event:
            raise AirflowException(event["error"])
        return event["result"] if "result" in event else self.execute(context)


class DblogFreshnessSensor(_LakeSensor):
    """Waits until the table in the lake holds every change that was committed at or before `as_new_as`.

    That is a time or a template of one, such as `{{ data_interval_end }}`; without a zone it is in UTC.

    The log's place counts, not the table's last change, so that a quiet table gets as new as a busy one. A table that
    is stopped, incomplete or owed a dump is never new enough. Returns the table and the lake's `offset`.
    """

    template_fields = ("table", "as_new_as")

    def __init__(self, *, as_new_as: str | dt.datetime, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.as_new_as = as_new_as

    def look(self, config: Config, stop: threading.Event) -> Json | None:
        from dblog_core.monitoring import freshness

        seen = freshness.look(config, self.table, self._time_us(), stop=stop)
        log.info("%s, as new as %s: %s", seen.table, self.as_new_as, seen.reason)
        return seen.to_json() if seen.fresh else None

    def wait(self, config: Config) -> Wait | Json:
        from dblog_core.monitoring import freshness
        from dblog_core.wiring import open_source

        time_us = self._time_us()
        seen = freshness.judge(config, self.table, time_us)
        log.info("%s, as new as %s: %s", seen.table, self.as_new_as, seen.reason)
        if seen.fresh:
            return seen.to_json()
        # Here, since the triggerer has no access to the source.
        end = freshness.find_log_end(open_source(config.source), time_us)
        return TableFresh(
            table=self.table,
            time_us=time_us,
            end=end.position,
            ask_at=time.time() + end.wait_seconds,
            config_file=self.config_file,
            interval=self.poke_interval,
        )

    def _time_us(self) -> int:
        try:
            given = self.as_new_as
            moment = given if isinstance(given, dt.datetime) else dt.datetime.fromisoformat(given)
        except ValueError as error:
            fix = "give a datetime or an ISO 8601 text, such as '{{ data_interval_end }}'"
            raise RequestError(f"{self.as_new_as!r} is no time", where="as_new_as", fix=fix) from error
        return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)).timestamp() * 1_000_000)


class DblogProvenSensor(_LakeSensor):
    """Waits until a verification of all rows has found the table equal to its source in the time `within` before now.

    Samples and slices are no such proof, and one that finds a difference ends an earlier one. Returns the table, when
    it was proven, and the number of columns that were not compared.
    """

    def __init__(self, *, within: dt.timedelta | float, **kwargs: Any) -> None:
        """`within`: a timedelta, or seconds."""
        super().__init__(**kwargs)
        self.within = within.total_seconds() if isinstance(within, dt.timedelta) else float(within)

    def look(self, config: Config, stop: threading.Event) -> Json | None:
        result = proven_result(config, self.table, self.within)
        if result is None:
            log.info("%s was not proven equal in the last %.0f s", self.table, self.within)
        return result

    def wait(self, config: Config) -> Wait | Json:
        result = self.look(config, threading.Event())
        if result is not None:
            return result
        return TableProven(
            table=self.table, within=self.within, config_file=self.config_file, interval=self.poke_interval
        )
