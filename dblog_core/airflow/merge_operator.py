"""The merge as a task: SparkSubmitOperator with the command that `dblog merge` runs too, or the merge itself.

A merge emits an event of the asset of each lake table that it has changed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dblog_core.airflow import run_notes
from dblog_core.airflow.connections import SPARK
from dblog_core.airflow.in_process import configuration, source_file
from dblog_core.airflow.links import SourcePage
from dblog_core.airflow.triggers import LAKE_TABLES, lake_table
from dblog_core.config.secret_settings import LAKE
from dblog_core.lake.merge_options import MergeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from dblog_core.airflow.openlineage import Lineage
    from dblog_core.config.settings import Config
    from dblog_core.interfaces import Json
    from dblog_core.lake.lake_status import LakeStatus

log = logging.getLogger(__name__)

GAUGE = 10.0  # seconds between two looks how far a merge is that goes on
LOOK = 1.0  # seconds between two looks at a lake that somebody else holds
REPORT = 60.0  # seconds between two lines that say so
STAND_BY = 3600  # seconds that a job waits for a lake that another one took while Spark started


class DblogMergeOperator(SparkSubmitOperator):
    """Applies all that is sealed to the lake. The command is made when the task runs: parsing needs no jar.

    The events of the asset of segments are only a bell, so a run that finds nothing to do starts no Spark. Where a
    replay, a repair or another merge holds the lake, the task waits for it, before it starts Spark.
    """

    operator_extra_links = (SourcePage(),)
    _killed = _submitted = False
    _merged: tuple[Config, LakeStatus, LakeStatus] | None = None  # the lake before and after
    _stop: threading.Event | None = None  # of a merge in this process

    def __init__(
        self, *, config_file: str | None = None, source: str | None = None, conn_id: str = SPARK, **kwargs: Any
    ) -> None:
        """`config_file`: the source's TOML file, or `source`: its name. `conn_id`: where Spark runs."""
        outlets = [*kwargs.pop("outlets", ()), LAKE_TABLES]
        super().__init__(application="", conn_id=conn_id, outlets=outlets, **kwargs)
        self.config_file = source_file(config_file, source)
        self._connection = conn_id

    def execute(self, context: Any) -> Json:  # type: ignore[override]  # Airflow's own returns nothing
        """Returns the lake's offset and, by name, the tables that were changed: `path`, Delta `version`, `offset`.

        Raises AirflowException when the merge fails, its log says why; AirflowFailException where the lake does not
        continue the staging."""
        config = self._begin()
        has_to_merge = self._has_to_merge(config)
        before = _status(config)
        if has_to_merge:
            self._run(context, config, MergeOptions(wait_seconds=STAND_BY))
        else:
            log.info("the lake of %s has all that is sealed", config.source.name)
        return self._report(context, config, before)

    def _begin(self) -> Config:
        """The configuration, once it is sure that the lake continues the staging."""
        config = configuration(self.config_file, LAKE)
        if config.lake.engine == "spark":
            Connection.get(self._connection)  # where it is missing, Spark would silently look for YARN
        _check_staging(config)
        return config

    def _run(self, context: Any, config: Config, options: MergeOptions) -> None:
        """The merge: by spark-submit, or in this task's process. Raises AirflowException when it fails."""
        from dblog_core.lake.spark_submit import job_environment, secret_settings

        if config.lake.engine == "local":
            self._run_here(config, options)
            return
        with secret_settings(config) as secrets:
            self._take(config, secrets, options.arguments())
            self._submitted = True
            with job_environment(config):
                SparkSubmitOperator.execute(self, context)

    def _run_here(self, config: Config, options: MergeOptions) -> None:
        from dblog_core.wiring import run_merge

        self._stop = threading.Event()
        if self._killed:
            self._stop.set()
        supervisor = os.getppid()
        code = run_merge(
            config, options, stop=self._stop, on_line=log.info, is_wanted=lambda: os.getppid() == supervisor
        )
        if code:
            raise AirflowException("the merge has failed: the lines above say why")

    def _report(self, context: Any, config: Config, before: LakeStatus) -> Json:
        after = _status(config)
        if after.merge > before.merge:
            self._merged = (config, before, after)
            run_notes.gauges(config.source.name, {"merged_offset": after.offset})
        changed = {}
        for name, table in after.tables_changed_since(before).items():
            asset = lake_table(config, name)
            changed[name] = {"path": asset.extra["path"], "version": table.version, "offset": table.offset}
            if (events := context.get("outlet_events")) is not None:
                events[LAKE_TABLES].add(asset, {"merge": after.merge, **changed[name]})
        return {"merge": after.merge, "offset": after.common_offset, "tables": changed}

    def on_kill(self) -> None:
        """Ends the Spark job, or the wait for the lake."""
        self._killed = True
        if self._stop is not None:
            self._stop.set()
        elif self._submitted:
            super().on_kill()

    def _has_to_merge(self, config: Config) -> bool:
        """Whether the lake lacks anything, once nobody else holds it. Raises AirflowException when it is asked to
        stop.
        """
        from dblog_core.wiring import open_state

        parent = os.getppid()
        reported_at = float("-inf")
        with closing(open_state(config)) as state:
            while not up_to_date(config):
                if (holder := state.leader("merge")) is None:
                    return True
                if time.monotonic() - reported_at >= REPORT:
                    log.info("waits for the lake: %s is at work on it%s", holder.holder, _tasks(config))
                    reported_at = time.monotonic()
                time.sleep(LOOK)
                if self._killed:
                    raise AirflowException(
                        "the merge was asked to stop while it waited for the lake; the next merge takes all"
                    )
                if os.getppid() != parent:
                    os._exit(1)  # the supervisor is gone: another attempt may already run
        return False

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Lineage | None:
        """Which tables the run has written; None where it had nothing to do."""
        from dblog_core.airflow import openlineage

        if self._merged is None:
            return None
        config, before, after = self._merged
        return openlineage.of_merge(config, after, before.merge)

    def _take(self, config: Config, secrets: Path | None, arguments: list[str]) -> None:
        from dblog_core.lake.spark_submit import job_command

        command = job_command("merge", config, config_path=self.config_file, arguments=arguments, secrets=secrets)
        self.application = command.application
        self.application_args = list(command.application_args)
        self.conf = dict(command.conf)
        self.name = f"dblog merge {config.source.name}"
        self._driver_memory = command.driver_memory
        self.env_vars = dict(command.env)
        self.properties_file = str(secrets) if secrets else None


class MergeSlice(DblogMergeOperator):
    """Merges for `slice_seconds` in one warm Spark: what is sealed is in the lake a moment later.

    Where another slice holds the lake, the job stands by without Spark. It starts Spark when that slice is over, and
    takes the lake when Spark has started: merging does not pause.
    """

    def __init__(self, *, config_file: str, slice_seconds: float, **kwargs: Any) -> None:
        super().__init__(config_file=config_file, **kwargs)
        self.slice_seconds = slice_seconds

    def execute(self, context: Any) -> Json:  # type: ignore[override]  # Airflow's own returns nothing
        """Raises AirflowException when the merge fails, AirflowFailException where a table is stopped at its end, or
        the lake does not continue the staging."""
        config = self._begin()
        before = _status(config)
        try:
            with _gauge_of_progress(config):
                self._run(context, config, MergeOptions("continuous", slice_seconds=self.slice_seconds))
        except AirflowException as error:
            if not self._killed and (stopped := _stopped_tables(config)):
                raise AirflowFailException("; ".join(stopped)) from error  # another attempt would find the same
            raise
        return self._report(context, config, before)


@contextmanager
def _gauge_of_progress(config: Config) -> Iterator[None]:
    """Tells Airflow's metrics how far the lake is, for as long as the block takes."""
    from dblog_core.errors import DblogError

    over = threading.Event()

    def tell() -> None:
        while not over.wait(GAUGE):
            try:
                run_notes.gauges(config.source.name, {"merged_offset": _status(config).offset})
            except DblogError as error:
                log.warning("how far the lake is cannot be read: %s", error)

    thread = threading.Thread(target=tell, name="merged offset", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stopped_tables(config: Config) -> list[str]:
    from dblog_core.lake.lake_status import State

    tables = _status(config).tables
    return [f"{name} is stopped: {table.error}" for name, table in tables.items() if table.state is State.STOPPED]


def _status(config: Config) -> LakeStatus:
    from dblog_core.lake.lake_status import LakeStatus, read_status
    from dblog_core.wiring import open_lake

    return read_status(open_lake(config)) or LakeStatus()


def _check_staging(config: Config) -> None:
    """Raises AirflowFailException where the lake does not continue the staging: another attempt would find the same."""
    from dblog_core.lake.continuity import judge_lake
    from dblog_core.wiring import open_lake, open_staging

    _, verdict = judge_lake(open_staging(config), open_lake(config))
    if not verdict.may_merge:
        raise AirflowFailException(str(verdict.to_error()))


def _tasks(config: Config) -> str:
    """What it has been asked to do beside merging, for a person."""
    from dblog_core.lake import lake_tasks
    from dblog_core.wiring import open_lake

    kinds = dict.fromkeys(task.kind for task in lake_tasks.waiting_tasks(open_lake(config)))
    return f" ({', '.join(kinds)})" if kinds else ""


def up_to_date(config: Config) -> bool:
    """Whether a merge would have nothing to do: no table waits, no row is sealed that the lake lacks, no lake task is
    filed, and no merge was begun that has no outcome. Raises LakeError where the lake does not continue the staging."""
    from dblog_core.lake.continuity import judge, read_unfinished_merge
    from dblog_core.lake.lake_status import State, read_status
    from dblog_core.lake.lake_tasks import waiting_tasks
    from dblog_core.wiring import open_lake, open_staging

    place = open_lake(config)
    staging = open_staging(config)
    lake = read_status(place)
    unfinished = read_unfinished_merge(place, lake)
    judge(staging, lake, unfinished).check()
    if unfinished is not None or waiting_tasks(place):
        return False
    head = staging.head()
    if head is None or lake is None:
        return head is None
    return lake.common_offset >= head.last_offset and all(
        t.state is not State.STOPPED and not t.waits for t in lake.tables.values()
    )
