"""What is done with the lake besides merging: an interval replayed, the tables verified, the lake maintained.

Replay and maintenance are lake tasks: a merge that runs carries them out, or a Spark job that the task starts. Killed
at any moment, what was begun is finished by the next merge.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from dblog_core.airflow import run_notes
from dblog_core.airflow.connections import on_connection
from dblog_core.airflow.in_process import InProcess
from dblog_core.airflow.params import named_tables, verify_request
from dblog_core.errors import RequestError
from dblog_core.model import table_names

if TYPE_CHECKING:
    from dblog_core.config.settings import Config
    from dblog_core.interfaces import Json
    from dblog_core.lake.replay_interval import IntervalEnd
    from dblog_core.lake.task_results import ReplayedTable, ReplayResult
    from dblog_core.maintenance.maintain_result import MaintainResult
    from dblog_core.verify.report import Differences, HistoryReport, Report, TableReport
    from dblog_core.verify.verification import VerifyRequest

log = logging.getLogger(__name__)

_EMPTY_SLICE = (
    "no key of any table is in this slice. Small tables are whole in slice 1; all slices are the full state. To repair "
    "a table now, run the verify DAG with `repair`"
)
WRITTEN = ("inserted", "updated", "deleted", "withheld")
"""What a replay counts of a table."""
_NAMED = 5  # tables in a run's note
SHOWN = 20
"""Keys of a table in a verification's XCom; the log of the task has as many."""


class _OnLake(InProcess, BaseOperator):
    """A task on the lake of one source."""

    def __init__(self, *, config_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config_file = config_file


class ReplayInterval(_OnLake):
    """Applies the last change of every key that changed in the run's data interval again, or between the parameters
    `from` and `to`. A scheduled run begins where the last one ended, so that intervals that Airflow skips are not left
    out."""

    part = "replay"

    def execute(self, context: Any) -> Json:
        """Returns what was written, by table. Raises RequestError for a wrong interval, AirflowFailException where a
        table could not be replayed."""
        begin, end = ends(context)
        chosen_tables = named_tables(context["params"])
        follows = run_type(context) == "scheduled" and not given_ends(context)
        about: list[str] = []  # what the note says of the interval

        def replay(config: Config, stop: threading.Event) -> ReplayResult:
            from dblog_core.lake import lake_tasks
            from dblog_core.lake.replay_interval import IntervalEnd, interval
            from dblog_core.lake.replay_reach import record_progress
            from dblog_core.lake.task_requests import ReplayRequest
            from dblog_core.lake.task_results import ReplayResult
            from dblog_core.wiring import open_state

            tables = () if chosen_tables is None else tuple(of_lake(config, chosen_tables))
            low, high = map(IntervalEnd.at, interval(begin, end, dt.datetime.now(dt.UTC)))
            if follows:
                low, text = _follow(config, low, high)
                about.append(text)
            log.info("replay from %s to %s", low, high)
            request = ReplayRequest(low, high, tables)
            result = lake_tasks.carry_out(on_connection(config), request, ReplayResult, stop=stop, on_line=_line)
            if follows and chosen_tables is None and all(table.error is None for table in result.tables):
                with closing(open_state(config)) as state:
                    record_progress(state, high.value)
            return result

        result = self.run_engine(replay)
        _tell_of_replay(context, result.tables, "".join(about))
        if failed := [f"{t.table}: {t.error}" for t in result.tables if t.error is not None]:
            raise AirflowFailException("; ".join(failed))
        return result.to_json()


def _follow(config: Config, low: IntervalEnd, high: IntervalEnd) -> tuple[IntervalEnd, str]:
    """Where a scheduled replay begins, and what its note says of it where that is not its interval's begin."""
    from dblog_core.lake import replay_reach
    from dblog_core.wiring import open_staging, open_state

    with closing(open_state(config)) as state:
        upto = replay_reach.read_progress(state)
    reach = replay_reach.read_reach(open_staging(config))
    first_commit = None if reach is None else reach.commit_time
    due = replay_reach.find_due(low.value, high.value, upto=upto, reach=first_commit)
    if due.start == low.value and due.removed is None:
        return low, ""
    text = f"from {_time_text(due.start)} to {_time_text(due.end)}"
    if due.removed is not None:
        text += f" (staging has removed the changes from {_time_text(due.removed)} on; `dblog verify` covers them)"
    return replace(low, value=due.start), f"{text}: "


def _time_text(microseconds: int) -> str:
    return f"{dt.datetime.fromtimestamp(microseconds / 1e6, dt.UTC):%Y-%m-%d %H:%M}"


def _tell_of_replay(context: Any, tables: Sequence[ReplayedTable], about: str = "") -> None:
    """In the log, a line for each table of which something was written, and in the run's note."""
    for table in tables:
        if table.counts is None:
            log.info("%s: %s", table.table, table.error)
        elif table.counts.has_written:
            log.info("%s: %s", table.table, _counts_text(table.counts.to_json(), ", "))
    counts = [table.counts.to_json() for table in tables if table.counts is not None]
    sums = {kind: sum(count[kind] for count in counts) for kind in ("keys", *WRITTEN)}
    looked = f"{about}looked at {count_text(sums.pop('keys'), 'key')} of {count_text(len(tables), 'table')}"
    if len(counts) < len(tables) or any(sums.values()):
        run_notes.tell(context, f"{looked}: {_counts_text(sums, '; ') or 'see the log'}")
    else:
        run_notes.tell(context, f"{looked}: nothing to repair")
        log.info("%s: the lake has what they last were", looked)


def _counts_text(counts: Mapping[str, int], separator: str) -> str:
    return separator.join(f"{kind} {count:,}" for kind, count in counts.items() if count)


class MaintainLake(_OnLake):
    """Joins small files and removes what is older than it is kept, in lake and staging."""

    part = "maintenance"

    def execute(self, context: Any) -> Json:
        """Returns what was done. Raises AirflowSkipException while nothing is merged."""

        def maintain(config: Config, stop: threading.Event) -> MaintainResult | None:
            from dblog_core.lake import lake_tasks
            from dblog_core.lake.lake_status import read_status
            from dblog_core.lake.task_requests import MaintainRequest
            from dblog_core.maintenance.maintain_result import MaintainResult
            from dblog_core.wiring import open_lake

            if read_status(open_lake(config)) is None:
                return None
            request = MaintainRequest()
            result = lake_tasks.carry_out(on_connection(config), request, MaintainResult, stop=stop, on_line=_line)
            for table in result.tables:
                log.info("%s: %s", table.size.table, ", ".join(table.did) or "nothing to do")
            result.check()
            return result

        result = self.run_engine(maintain)
        if result is None:
            raise AirflowSkipException("nothing is merged yet")
        return result.to_json()


class VerifyTables(_OnLake):
    """Compares tables of source and lake under live writes; repairs what differs where the run's parameters say so."""

    part = "verify"

    @contextmanager
    def take_request(self, context: Any, config: Config) -> Iterator[VerifyRequest]:
        """What a run compares, in the block. Raises RequestError."""
        yield verify_request(self.parameters(context, config))

    def parameters(self, context: Any, _: Config) -> Mapping[str, Any]:
        """As the form of a verification has them."""
        return dict(context["params"])

    def note(self, request: VerifyRequest, report: Report) -> str:
        """What a run has compared, and what was different."""
        part = f"slice {request.slice.number} of {request.slice.of}: " if request.slice else ""
        if not report.tables:
            return f"{part}nothing was compared: {_EMPTY_SLICE}"
        rows = count_text(sum(t.rows for t in report.tables), "row")
        rows = f"compared {rows} of {count_text(len(report.tables), 'table')}"
        return f"{part}{rows}: {'; '.join(_verdicts(report))}"

    def execute(self, context: Any) -> Json:
        """Returns the counts of each table and some of its keys. Raises AirflowFailException where something differs
        in the end, or could not be compared; AirflowSkipException where nothing was there to compare."""

        def compare(config: Config, stop: threading.Event) -> tuple[VerifyRequest, Report]:
            from dblog_core.verify.verification import verify
            from dblog_core.verify.window_positions import Interrupted

            try:
                with self.take_request(context, config) as request:
                    return request, verify(on_connection(config), request, stop=stop, say=_line)
            except Interrupted as error:
                raise AirflowException("this task was asked to stop; it has no result") from error

        request, report = self.run_engine(compare)
        context["ti"].xcom_push("tables", [summary(table) for table in report.tables])
        for table in report.tables:
            log.info("%s", describe_table(table))
        run_notes.tell(context, self.note(request, report))
        bad = [describe_table(table) for table in report.tables if not table.equal]
        if bad := [*bad, *(f"not compared: {left.reason} (fix: {left.fix})" for left in report.missing_tables)]:
            raise AirflowFailException("; ".join(bad))
        if not report.tables:  # of a slice
            raise AirflowSkipException(f"nothing was compared: {_EMPTY_SLICE}")
        log.info("%s", self.note(request, report))
        return {"equal": True, "tables": len(report.tables), "rows": sum(table.rows for table in report.tables)}


class RepairSlice(VerifyTables):
    """Compares one slice of each table's keys, and repairs what differs: the slice that waited longest, or that of its
    interval in a backfill. All slices are the full state."""

    part = "repair"

    def __init__(self, *, slices: int, period: float, **kwargs: Any) -> None:
        """`period`: seconds from one interval to the next."""
        super().__init__(**kwargs)
        self.slices = slices
        self.period = period

    @contextmanager
    def take_request(self, context: Any, config: Config) -> Iterator[VerifyRequest]:
        """Raises AirflowSkipException where other runs compare all slices already."""
        from dblog_core.verify import slice_times
        from dblog_core.verify.slices import Slice
        from dblog_core.wiring import open_state

        request = verify_request(self.parameters(context, config))
        run = self.run_name(context)
        chosen = self.chosen_slice(context)
        with (
            closing(open_state(config)) as state,
            slice_times.take_slice(state, self.slices, run=run, number=chosen, ttl=config.state.ttl) as number,
        ):
            if number is None:
                raise AirflowSkipException("other runs compare every slice at this moment")
            log.info("slice %d of %d", number, self.slices)
            yield replace(request, repair=True, slice=Slice(number, self.slices))

    def run_name(self, context: Any) -> str:
        """By which other attempts of a run find its slice."""
        return str(context.get("run_id") or "")

    def chosen_slice(self, context: Any) -> int | None:
        """The slice that the form names, or that of a backfill's interval; None: the one that waited longest."""
        if number := context["params"].get("slice"):
            return int(number)
        begin = context.get("data_interval_start")
        if begin is None or run_type(context) != "backfill":
            return None
        return slice_of(begin, self.slices, self.period)


def slice_of(begin: dt.datetime, slices: int, period: float) -> int:
    """The slice of a backfill's interval, from 1: intervals that follow each other have slices that do."""
    return int(begin.timestamp() // period) % slices + 1


def run_type(context: Any) -> str | None:
    """What has begun a run: `scheduled`, `backfill`, `manual` and so on."""
    return getattr(context.get("dag_run"), "run_type", None)


def of_lake(config: Config, patterns: Sequence[str]) -> list[str]:
    """The lake's tables among names and patterns. Raises RequestError for one that matches none."""
    from dblog_core.lake.lake_status import read_status
    from dblog_core.wiring import open_lake

    status = read_status(open_lake(config))
    lake_tables = sorted(status.tables) if status is not None else []
    matches = {pattern: _fitting(table_names.canonical(pattern), lake_tables) for pattern in patterns}
    if nothing := [pattern for pattern, names in matches.items() if not names]:
        has = f"it has {', '.join(lake_tables)}" if lake_tables else "it has none yet: nothing is merged"
        raise RequestError(f"the lake has no table {nothing[0]}", fix=has)
    return list(dict.fromkeys(name for names in matches.values() for name in names))


def _fitting(pattern: str, lake_tables: Sequence[str]) -> list[str]:
    from dblog_core.model import table_patterns

    return (
        [pattern]
        if pattern in lake_tables
        else [name for name in lake_tables if table_patterns.match_text(name, [pattern])]
    )


def given_ends(context: Any) -> bool:
    """Whether somebody has given an end of the interval by a parameter."""
    return bool(context["params"].get("from") or context["params"].get("to"))


def ends(context: Any) -> tuple[str | None, str | None]:
    """Begin and end of what a run replays, as a person would write them: its parameters, or its data interval; None:
    an hour before the end, and now."""
    begin = context.get("data_interval_start")
    end = context.get("data_interval_end")
    if given_ends(context) or begin is None or end is None or begin >= end:
        return context["params"].get("from") or None, context["params"].get("to") or None
    return begin.isoformat(), end.isoformat()


def summary(table: TableReport) -> Json:
    """A table's record with as many keys as a page can show."""
    record = _shorten(table.to_json(), ("missing", "extra", "different", "undecided"))
    if table.history is not None:
        record["history"] = _shorten(table.history.to_json(), ("missing", "extra", "different"))
    if table.repaired is not None:
        record["repaired"] = _shorten(table.repaired.to_json(), ("missing", "extra", "different"))
    return record


def _verdicts(report: Report) -> list[str]:
    """In few words: what was repaired, and which tables differ still."""
    mended = [t for t in report.tables if t.repaired is not None and t.equal]
    keys = sum(t.repaired.differences.count for t in mended if t.repaired is not None)
    verdicts = (
        [f"{count_text(keys, 'key')} of {table_names.some([t.table for t in mended], _NAMED)} repaired"]
        if mended
        else []
    )
    verdicts += [f"{t.table}: {t.outcome}" for t in report.tables if not t.equal][:_NAMED]
    not_compared = [f"{t.table} {_names(t)}" for t in report.tables if t.not_compared]
    more = f" and {len(not_compared) - _NAMED} more tables" if len(not_compared) > _NAMED else ""
    columns = [f"columns not compared: {', '.join(not_compared[:_NAMED])}{more}"] if not_compared else []
    return [*(verdicts or ["equal"]), *columns]


def _names(table: TableReport) -> str:
    """The columns of a table that are not compared, in brackets."""
    return f"({', '.join(column.column for column in table.not_compared)})"


def count_text(number: int, what: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _shorten(record: Json, names: Sequence[str]) -> Json:
    counts = {f"{name}_keys": len(record[name]) for name in names}
    return {**record, **counts, **{name: record[name][:SHOWN] for name in names}}


def describe_table(table: TableReport) -> str:
    """One line for a person."""
    if table.error is not None:
        return f"{table.table}: {table.error}"
    line = f"{table.table}: {table.outcome}, {table.rows:,} rows{_keys(table.differences)}"
    if table.not_compared:
        columns = (f"{column.column} ({column.reason})" for column in table.not_compared)
        line += f"; not compared: {', '.join(columns)}"
    if table.history is not None:
        line += _history_text(table.history)
    if table.repaired is None:
        return line
    return f"{line}; repaired by dump {table.repaired.dump_id}{_keys(table.repaired.differences)}"


def _history_text(history: HistoryReport) -> str:
    text = f"; its history may lack lines: {history.gap}" if history.gap is not None else ""
    if history.not_compared is not None:
        text += f"; its history is not compared: {history.not_compared}"
    elif history.differences.count:
        text += f"; its history differs{_keys(history.differences)}"
    return f"{text} (fix: {history.fix})" if history.fix else text


def _keys(differences: Differences) -> str:
    keys = [f"missing {key}" for key in differences.missing]
    keys += [f"extra {key}" for key in differences.extra]
    keys += [f"different {key} ({', '.join(columns) or 'columns unknown'})" for key, columns in differences.different]
    more = f", and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return f": {'; '.join(keys[:SHOWN])}{more}" if keys else ""


def _line(line: str) -> None:
    log.info("%s", line)
