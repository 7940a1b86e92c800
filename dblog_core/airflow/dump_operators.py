"""A dump as a DAG run: plan it, work on it in mapped tasks, wait until every chunk is in the super-changelog, tidy up.

The run's dump is known by who requested it, so no attempt of any task loses it. `close` is a teardown: Airflow runs it
too when somebody marks the run as failed, and it cancels what is not over. A teardown with `on_failure_fail_dagrun`
is the only leaf that gives a run its state: so `close` fails unless the dump is done.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dblog_core.airflow import run_notes
from dblog_core.airflow.in_process import InProcess
from dblog_core.airflow.params import request
from dblog_core.errors import RequestError
from dblog_core.model.durations import in_words

if TYPE_CHECKING:
    from dblog_core.airflow.openlineage import Lineage
    from dblog_core.config.settings import Config
    from dblog_core.dumps.dry_run import Plan
    from dblog_core.dumps.requests import DumpRequest
    from dblog_core.dumps.status import DumpStatus
    from dblog_core.interfaces import StateStore

log = logging.getLogger(__name__)

REPORT = 10.0  # seconds between two progress lines
DUMP = "dump"  # the XCom key of the dump's id


class _DumpTask(InProcess, BaseOperator):
    """A task of a dump run."""

    part = "dump"

    def __init__(self, *, config_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config_file = config_file


class ApproveDump(InProcess, ApprovalOperator):
    """Waits until somebody approves a dump of about more than `most` rows; nothing is requested before that.

    Once rejected, the rest of the run is skipped.
    """

    part = "dump"

    def __init__(self, *, config_file: str, most: int, **kwargs: Any) -> None:
        super().__init__(subject="Approve the dump?", **kwargs)
        self.config_file = config_file
        self.most = most

    def execute(self, context: Any) -> Any:
        """Raises RequestError, which fails the run at once with the reason."""
        params = dict(context["params"])
        dump_plan = self.run_engine(lambda config, _: _make_plan(config, params))
        rows = sum(table.rows for table in dump_plan.tables)
        log.info("the dump would be:\n%s", as_table(dump_plan))
        if params.get("dry_run") or rows <= self.most:
            return None
        self.subject = f"Dump about {rows:,} rows?"
        self.body = f"{as_table(dump_plan)}\n\nMore than {self.most:,} rows need somebody's approval."
        return super().execute(context)


class PlanDump(_DumpTask):
    """Checks the parameters against the database and files the dump; returns one argument set per worker task.

    An attempt cancels what an earlier one, or the run before it was cleared, has filed. A dry run files nothing.
    """

    def execute(self, context: Any) -> list[dict[str, str]]:
        """Raises RequestError, which fails the run at once with the reason."""
        params = dict(context["params"])
        name = requester(context["dag_run"])
        if params.get("dry_run"):
            plan = self.run_engine(lambda config, _: _dry_run(config, params))
            context["ti"].xcom_push("plan", plan)
            return []
        status = self.run_engine(lambda config, _: _submit(config, params, name))
        context["ti"].xcom_push(DUMP, status.id)
        workers = min(status.options.workers, len(status.tasks))
        return [{"dump_id": status.id}] * workers


class WorkDump(_DumpTask):
    """Reads chunks of the dump until none is left; several share its tables. A retry continues where the dump is."""

    def __init__(self, *, dump_id: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dump_id = dump_id

    def execute(self, context: Any) -> None:
        """Raises what makes the dump impossible."""
        self.run_engine(self._work)
        if self.stopped:
            raise AirflowException("the task was asked to stop before the dump was over; another attempt continues it")

    def _work(self, config: Config, stop: threading.Event) -> None:
        from dblog_core.dumps import work_loop

        work_loop.work(config, stop=stop, once=True, dump_id=self.dump_id, workers=1, on_progress=ProgressLines())


class DumpResult(InProcess):
    """A mixin for the task that ends with its dump; a step of the engine sets `config`."""

    config: Config | None = None
    _done: DumpStatus | None = None

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Lineage | None:
        """Which tables the dump has read, and how many rows are staged of each."""
        from dblog_core.airflow import openlineage

        return openlineage.of_dump(self.config, self._done) if self.config and self._done else None

    def result_of(self, status: DumpStatus) -> dict[str, Any]:
        """The dump's rows, chunks and evicted rows, all placed in the super-changelog. Raises AirflowFailException
        unless it is done, AirflowException where the task was asked to stop before."""
        assert self.config is not None
        log.info("%s", describe(status))
        if self.stopped:
            raise AirflowException("the task was asked to stop before the dump was over; another attempt continues it")
        if status.state != "done":
            raise AirflowFailException(ending(status))
        self._done = status
        result = status.to_json()
        counts = {f"dump.{name}": result[name] for name in ("rows", "chunks", "evicted")}
        run_notes.counts(self.config.source.name, counts)
        return {name: result[name] for name in ("id", "state", "tables", "rows", "chunks", "evicted")}


class CompleteDump(DumpResult, _DumpTask):
    """Waits until every chunk of the dump is placed; fails the run if the dump did not get there."""

    template_fields = ("dump_id",)

    def __init__(self, *, dump_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dump_id = dump_id

    def execute(self, context: Any) -> dict[str, Any]:
        """Returns the dump's rows, chunks and evicted rows, all placed in the super-changelog."""
        return self.result_of(self.run_engine(self._complete))

    def _complete(self, config: Config, stop: threading.Event) -> DumpStatus:
        from dblog_core.dumps import work_loop

        self.config = config
        # What a worker that was marked as done by hand has left would wait forever.
        work_loop.work(config, stop=stop, once=True, dump_id=self.dump_id, workers=1, on_progress=ProgressLines())
        return work_loop.wait(config, self.dump_id, stop=stop)


class CloseDump(_DumpTask):
    """The teardown: cancels the run's dump if it is not over. The run's state is the dump's: it fails unless that is
    done."""

    def execute(self, context: Any) -> None:
        """Raises AirflowFailException where the dump of the run is not done."""
        if context["params"].get("dry_run"):
            return
        name = requester(context["dag_run"])
        cancelled = self.run_engine(lambda config, _: _cancel(config, name))
        if cancelled:
            raise AirflowFailException(f"the run ended before its dump, which is cancelled: {', '.join(cancelled)}")
        status = self.run_engine(lambda config, _: _newest(config, name))
        if status is None:
            raise AirflowFailException(f"the state store has no dump of {name}: nobody knows how it ended")
        if status.state != "done":
            raise AirflowFailException(ending(status))


class ProgressLines:
    """Writes a dump's progress as log lines: every ten seconds, and when its state changes."""

    def __init__(self) -> None:
        self._state = ""
        self._next = 0.0

    def __call__(self, status: DumpStatus) -> None:
        if status.state == self._state and time.monotonic() < self._next:
            return
        self._state = status.state
        self._next = time.monotonic() + REPORT
        log.info("%s", describe(status))


def describe(status: DumpStatus) -> str:
    """One line for a person."""
    open_tasks = [t.table for t in status.tasks if not t.progress.done]
    left = f"; not done: {', '.join(dict.fromkeys(open_tasks))}" if open_tasks else ""
    of = f" of about {status.estimated_rows}" if open_tasks and status.estimated_rows is not None else ""
    speed = "" if status.rows_per_second is None else f", {status.rows_per_second:.0f} rows/s"
    time_left = f", {status.seconds_left:.0f} s left" if status.seconds_left else ""
    slowdown = f"; held: {status.held}" if status.held else ""
    rows = f"{status.rows}{of} rows in {status.chunks} chunks placed, {status.evicted} evicted{speed}{time_left}"
    tasks = f"{status.tasks_done} of {len(status.tasks)} tasks done{left}{slowdown}"
    return f"dump {status.id} is {status.state}: {rows}, {tasks}"


def ending(status: DumpStatus) -> str:
    """How a dump has ended that is not done, in one sentence."""
    return f"dump {status.id} is {status.state}: {status.error or 'somebody ended it'}"


def requester(dag_run: Any) -> str:
    """How a run signs the dumps that it files."""
    return f"airflow:{dag_run.dag_id}/{dag_run.run_id}"


def as_table(plan: Plan) -> str:
    """A plan in Markdown, one line for each table; its columns are aligned, since logs show it as it is."""
    rows = [("table", "rows, about", "ranges", "chunks", "index", "time, about")]
    for t in plan.tables:
        index = t.index or "none: slow"
        rows.append((t.table, f"{t.rows:,}", str(t.ranges), f"{t.chunks:,}", index, in_words(t.seconds)))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    lines.insert(1, f"| {' | '.join('-' * width for width in widths)} |")
    notes = [f"- {t.table}: {warning}" for t in plan.tables for warning in t.warnings]
    notes += [f"- left out: {refused.reason}" for refused in plan.refused]
    total = f"about {sum(t.rows for t in plan.tables):,} rows, {in_words(plan.seconds)} in all"
    return "\n".join([*lines, "", total, *notes])


def _make_plan(config: Config, params: dict[str, Any]) -> Plan:
    from dblog_core.dumps.dry_run import plan

    return plan(config, request(params))


def _dry_run(config: Config, params: dict[str, Any]) -> dict[str, Any]:
    dump_plan = _make_plan(config, params)
    log.info("a dry run; nothing is requested. The dump would be:\n%s", as_table(dump_plan))
    return dump_plan.to_json()


def _submit(config: Config, params: dict[str, Any], name: str) -> DumpStatus:
    from dblog_core import wiring

    _cancel(config, name)
    with closing(wiring.open_state(config)) as state:
        return file_dump(config, state, request(params), name)


def file_dump(config: Config, state: StateStore, dump_request: DumpRequest, name: str) -> DumpStatus:
    """Files a dump that `name` requests, and says in the log what it reads. Raises RequestError."""
    from dblog_core.dumps import dump_store, filing
    from dblog_core.state.lease_holder import CAPTURE

    dump_id = filing.submit(config, dump_request, requested_by=name, state=state)
    status = dump_store.read_dump(state, dump_id)
    if state.leader(CAPTURE) is None:
        log.warning("%s", no_capture(config))
    what = (
        f"all {len(status.tables)} captured tables that have a key"
        if dump_request.tables is None
        else "the tables named"
    )
    log.info("dump %s of %s: %s", dump_id, what, ", ".join(status.tables))
    log.info("%s", ", ".join(f"{name}: {value}" for name, value in status.options.to_json().items()))
    for refused in status.refused:
        log.warning("left out: %s; %s", refused.reason, refused.fix)
    return status


def no_capture(config: Config) -> str:
    """What a dump waits for while nobody captures, and what repairs it."""
    name = f"dblog_{config.source.name}_capture"
    outside = "start the capture where it runs: Airflow only watches it"
    fix = outside if config.airflow.capture == "watch" else f"unpause {name} and {name}_standby"
    return f"no capture of {config.source.name} is running: the dump is requested, and waits for one\n  fix: {fix}"


def _cancel(config: Config, name: str) -> list[str]:
    """Cancels the unfinished dumps that were requested by `name`; returns their ids."""
    from dblog_core import wiring
    from dblog_core.dumps import dump_records, dump_store

    with closing(wiring.open_state(config)) as state:
        unfinished = [
            d.id for d in dump_store.list_dumps(state) if d.requested_by == name and d.state not in dump_records.OVER
        ]
        return [dump_id for dump_id in unfinished if try_cancel(state, dump_id)]


def _newest(config: Config, name: str) -> DumpStatus | None:
    """The last dump that was requested by `name`: a run that was cleared has filed more than one."""
    from dblog_core import wiring
    from dblog_core.dumps import dump_store

    with closing(wiring.open_state(config)) as state:
        dumps_of_run = [dump for dump in dump_store.list_dumps(state) if dump.requested_by == name]
        return dumps_of_run[-1] if dumps_of_run else None


def try_cancel(state: StateStore, dump_id: str) -> bool:
    """Cancels a dump; False where it was over in that moment."""
    from dblog_core.dumps import control

    try:
        control.cancel(state, dump_id)
    except RequestError:
        return False
    log.info("dump %s is cancelled", dump_id)
    return True
