"""Operators for people's own DAGs: dump, merge, verify and repair; and lake tables as assets to schedule DAGs on.

Each takes a source by its TOML file (`config_file`) or by its name (`source`: NAME.toml in $DBLOG_CONFIG_DIR).
Parameters are those of the forms of our own DAGs, checked by the same schema when the task runs. A template may make
text of a list or a number: it is read as JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowException

from dblog_core.airflow import dump_operators
from dblog_core.airflow.dump_operators import DumpResult, ProgressLines
from dblog_core.airflow.in_process import ONLY_TRANSIENT, source_file
from dblog_core.airflow.lake_operators import RepairSlice, VerifyTables
from dblog_core.airflow.merge_operator import DblogMergeOperator
from dblog_core.airflow.params import ALL, check_arguments, form, request, verify_form, verify_request
from dblog_core.airflow.triggers import DumpOver, lake_table
from dblog_core.errors import RequestError

if TYPE_CHECKING:
    from dblog_core.config.settings import Config
    from dblog_core.dumps.status import DumpStatus
    from dblog_core.interfaces import Json, StateStore
    from dblog_core.verify.verification import VerifyRequest

__all__ = ["DblogDumpOperator", "DblogMergeOperator", "DblogRepairOperator", "DblogVerifyOperator", "lake_table_asset"]

log = logging.getLogger(__name__)

_DUMP = (
    *("tables", "pks", "key_from", "key_to", "filters", "ranges", "chunk_size", "workers", "delay_seconds"),
    *("rows_per_second", "adaptive", "max_retained"),
)
_VERIFY = ("tables", "repair", "pass_over_refused", "sample_rows", "rows_per_second")


def lake_table_asset(config_file: str | None = None, table: str = "", *, source: str | None = None) -> Asset:
    """The asset of a lake table, such as `shop.orders`: each merge task that has changed the table emits an event of
    it. `extra["path"]` is where the table is. Raises ConfigError."""
    from dblog_core.config.loader import load

    return lake_table(load(source_file(config_file, source), secrets=False), table)


def signature(context: Any) -> str:
    """How a task of somebody's DAG signs what it files: the same for each of its attempts."""
    ti = context["ti"]
    index = "" if getattr(ti, "map_index", -1) < 0 else f"[{ti.map_index}]"
    return f"airflow:{ti.dag_id}/{ti.run_id}/{ti.task_id}{index}"


class DblogDumpOperator(DumpResult, BaseOperator):
    """Dumps tables, keys or a range of keys into the super-changelog, and ends when every chunk is placed there.

    `work`: whether the task reads the rows; otherwise other processes do (`dblog work`), and the task waits, with
    `deferrable` in the triggerer. `cancel_on_kill`: whether to cancel the dump when the task is ended or cleared.

    A further attempt continues an unfinished dump of the same request, and cancels one of another request. So a task
    never has two dumps.
    """

    part = "dump"
    template_fields = _DUMP
    _dump_id: str | None = None
    _canceller: threading.Thread | None = None

    def __init__(
        self,
        *,
        config_file: str | None = None,
        source: str | None = None,
        tables: Any = None,
        pks: Any = None,
        key_from: Any = None,
        key_to: Any = None,
        filters: Any = None,
        ranges: Any = None,
        chunk_size: Any = None,
        workers: Any = None,
        delay_seconds: Any = None,
        rows_per_second: Any = None,
        adaptive: Any = None,
        max_retained: str | None = None,
        work: bool = True,
        deferrable: bool = False,
        cancel_on_kill: bool = True,
        poll_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        """`tables` None: all captured tables that have a key. `poll_interval`: seconds between two looks of the
        triggerer. Raises ValueError for `deferrable` where the task itself works."""
        if work and deferrable:
            raise ValueError("a dump that the task works on cannot be deferred: give work=False, and run `dblog work`")
        kwargs.setdefault("retry_policy", ONLY_TRANSIENT)
        super().__init__(**kwargs)
        self.config_file = source_file(config_file, source)
        self.tables = [ALL] if tables is None else tables
        self.pks = pks
        self.key_from = key_from
        self.key_to = key_to
        self.filters = filters
        self.ranges = ranges
        self.chunk_size = chunk_size
        self.workers = workers
        self.delay_seconds = delay_seconds
        self.rows_per_second = rows_per_second
        self.adaptive = adaptive
        self.max_retained = max_retained
        self.work = work
        self.deferrable = deferrable
        self.cancel_on_kill = cancel_on_kill
        self.poll_interval = poll_interval

    def execute(self, context: Any) -> Json:
        """Returns id, state, tables, rows, chunks and evicted rows. Raises RequestError for wrong arguments,
        AirflowFailException where the dump failed or was cancelled."""
        name = signature(context)
        try:
            self._dump_id = self.run_engine(lambda config, _: self._file(config, name))
            if self.deferrable and not self.stopped:
                self._defer(self._dump_id)
            status = self.run_engine(self._carry_out)
        finally:
            if self._canceller is not None:
                self._canceller.join()
        return self.result_of(status)

    def on_kill(self) -> None:
        """Five seconds are left, and a SELECT may take longer: another thread cancels the dump."""
        super().on_kill()
        if self.cancel_on_kill and self._dump_id is not None:
            self._canceller = threading.Thread(target=self._cancel, name="cancels the dump")
            self._canceller.start()

    def end_wait(self, context: Any, event: Json) -> Json:
        """Continues after the trigger's event."""
        if "error" in event:
            raise AirflowException(event["error"])
        self._dump_id = event["dump_id"]
        return self.result_of(self.run_engine(self._wait))

    def _defer(self, dump_id: str) -> None:
        trigger = DumpOver(
            dump_id=dump_id,
            cancel_on_kill=self.cancel_on_kill,
            config_file=self.config_file,
            interval=self.poll_interval,
        )
        self.defer(trigger=trigger, method_name="end_wait", timeout=self.execution_timeout)

    def _file(self, config: Config, name: str) -> str:
        """The dump of this task: one that an earlier attempt has filed, or a new one."""
        from dblog_core import wiring

        self.config = config
        arguments = check_arguments(form(config), {field: getattr(self, field) for field in _DUMP})
        digest = hashlib.sha256(json.dumps(arguments, sort_keys=True, default=str).encode()).hexdigest()[:8]
        signed = f"{name}#{digest}"
        with closing(wiring.open_state(config)) as state:
            for dump in _unfinished_dumps(state, name):
                if dump.requested_by == signed:
                    log.info("continues with dump %s, which an earlier attempt has filed", dump.id)
                    return dump.id
                dump_operators.try_cancel(state, dump.id)
            return dump_operators.file_dump(config, state, request(arguments), signed).id

    def _carry_out(self, config: Config, stop: threading.Event) -> DumpStatus:
        from dblog_core.dumps import work_loop

        if self.stopped and self.cancel_on_kill:  # before there was a dump to cancel
            self._cancel()
        elif self.work:
            work_loop.work(config, stop=stop, once=True, dump_id=self._dump_id, on_progress=ProgressLines())
        return self._wait(config, stop)

    def _wait(self, config: Config, stop: threading.Event) -> DumpStatus:
        from dblog_core.dumps import work_loop

        self.config = config
        return work_loop.wait(config, str(self._dump_id), stop=stop, on_progress=ProgressLines())

    def _cancel(self) -> None:
        from dblog_core import wiring

        assert self.config is not None and self._dump_id is not None
        with closing(wiring.open_state(self.config)) as state:
            dump_operators.try_cancel(state, self._dump_id)


def _unfinished_dumps(state: StateStore, name: str) -> list[DumpStatus]:
    from dblog_core.dumps import dump_store

    return [d for d in dump_store.list_unfinished_dumps(state) if d.requested_by.rpartition("#")[0] == name]


class DblogVerifyOperator(VerifyTables):
    """Compares tables of source and lake under live writes; with `repair` it repairs what differs, and compares again.

    It fails where something differs at its end, or could not be compared. `tables` None: all captured tables.
    """

    template_fields = _VERIFY

    def __init__(
        self,
        *,
        config_file: str | None = None,
        source: str | None = None,
        tables: Any = None,
        repair: Any = False,
        pass_over_refused: Any = False,
        sample_rows: Any = None,
        rows_per_second: Any = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("retry_policy", ONLY_TRANSIENT)
        super().__init__(config_file=source_file(config_file, source), **kwargs)
        self.tables = [ALL] if tables is None else tables
        self.repair = repair
        self.pass_over_refused = pass_over_refused
        self.sample_rows = sample_rows
        self.rows_per_second = rows_per_second

    def parameters(self, context: Any, config: Config) -> Mapping[str, Any]:
        return check_arguments(verify_form(config), {field: getattr(self, field) for field in _VERIFY})


class DblogRepairOperator(RepairSlice):
    """Compares tables of source and lake, and repairs what differs; of large tables a slice at a time.

    `slices`: into how many slices to cut the keys of each table; None: all rows are compared. `slice_number`: which of
    them; None: the one that waited longest. It fails where something differs at its end. `tables` None: all captured
    tables.
    """

    template_fields = ("tables", "pass_over_refused", "rows_per_second", "slice_number")

    def __init__(
        self,
        *,
        config_file: str | None = None,
        source: str | None = None,
        tables: Any = None,
        pass_over_refused: Any = False,
        rows_per_second: Any = None,
        slices: int | None = None,
        slice_number: Any = None,
        **kwargs: Any,
    ) -> None:
        """Raises ValueError for a `slice_number` without `slices`."""
        if slice_number is not None and slices is None:
            raise ValueError("give `slices` too: how many slices the keys of a table are cut into")
        kwargs.setdefault("retry_policy", ONLY_TRANSIENT)
        super().__init__(config_file=source_file(config_file, source), slices=slices or 1, period=0.0, **kwargs)
        self.tables = [ALL] if tables is None else tables
        self.pass_over_refused = pass_over_refused
        self.rows_per_second = rows_per_second
        self.slice_number = slice_number
        self.is_sliced = slices is not None

    @contextmanager
    def take_request(self, context: Any, config: Config) -> Iterator[VerifyRequest]:
        if self.is_sliced:
            with super().take_request(context, config) as sliced:
                yield sliced
        else:
            yield replace(verify_request(self.parameters(context, config)), repair=True)

    def parameters(self, context: Any, config: Config) -> Mapping[str, Any]:
        given = ("tables", "pass_over_refused", "rows_per_second")
        return check_arguments(verify_form(config), {field: getattr(self, field) for field in given})

    def chosen_slice(self, context: Any) -> int | None:
        if self.slice_number in (None, "", "None"):
            return None
        text = str(self.slice_number)
        if not text.isdecimal() or not 1 <= int(text) <= self.slices:
            raise RequestError(
                f"there is no slice {text}", where="slice_number", fix=f"give a number from 1 to {self.slices}"
            )
        return int(text)

    def run_name(self, context: Any) -> str:
        return signature(context)
