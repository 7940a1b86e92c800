"""The demo's story: capture, dumps through Airflow, a takeover, merges, and a comparison of everything at the end."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from dblog_core import control, lake, spark, wiring
from dblog_core.interfaces import StateStore
from dblog_core.local import shop
from dblog_core.local.demo_parts import NAME, Parts, run_together
from dblog_core.local.demo_rows import write_rows
from dblog_core.local.demo_show import Board
from dblog_core.local.errors import LocalError

_LOOK = 0.5  # seconds
_KEYS = [[1, "SKU-0001", 2], [2, "SKU-0003", 2], [2, "SKU-0004", 1], [1, "none", 9]]


class Story:
    """Plays once; `tell` then says how it ended."""

    def __init__(self, parts: Parts, board: Board) -> None:
        self._parts, self._board = parts, board
        self._lags: list[float] = []
        self._summary: dict[str, str] = {}
        self._comparison: list[dict[str, Any]] = []
        self._state: StateStore | None = None
        self._dumped_rows = 0

    def play(self) -> bool:
        """Whether source and lake are equal in the end."""
        self._start()
        with closing(wiring.open_state(self._config)) as self._state:
            try:
                self._capture()
                self._dump_all()
                self._dump_keys()
                self._verify()
                self._settle()
            finally:
                self._state = None
        return self._compare()

    def tell(self) -> None:
        """The summary, and where to look."""
        equal = all(table["equal"] for table in self._comparison)
        for table in self._comparison:
            faults = ", ".join(f"{kind} {table[kind]}" for kind in ("missing", "extra", "different"))
            counts = f"{table['rows']:,} rows; {faults}"
            self._summary[f"{table['table']}"] = counts + (
                f" {json.dumps(table['examples'])}" if table["examples"] else ""
            )
        self._summary["verdict"] = "every row and column is equal" if equal else "SOURCE AND LAKE DIFFER"
        self._board.table(f"dblog: {self._parts.kind}, {self._board.elapsed:.0f} s", self._summary)
        look = f"DEMO_SOURCE={self._parts.kind} .venv/bin/python -m dblog_core.local.demo --look"
        root = self._parts.root
        self._board.plain(
            f"\nAll servers are stopped. On the same data again, until Ctrl-C, with all addresses:\n  {look}\n"
            f"  Airflow then: {self._parts.airflow.address()}\n"
            f"Without them:\n  super-changelog  {root / 'staging'}\n  Delta tables     {root / 'lake'}\n"
            f"  .venv/bin/dblog --config {self._parts.config_file} log | head\n"
            f"With them:\n  .venv/bin/dblog --config {self._parts.config_file} status"
        )

    # The chapters

    def _start(self) -> None:
        parts, board = self._parts, self._board
        board.stage(f"starting {parts.kind}, ZooKeeper and Airflow; filling five tables")
        parts.configure()
        self._config = parts.config()

        def source() -> int:
            rows = parts.start_database()
            board.say(f"{rows:,} rows in {len(shop.TABLES)} tables; the workload begins")
            parts.start_workload()
            return rows

        rows, *_ = run_together(source, parts.zookeeper.start, parts.airflow.start)
        self._summary["rows at the start"] = f"{rows:,} in {len(shop.TABLES)} tables"
        board.say(f"Airflow is up: {parts.airflow.address()}")
        self._client = parts.airflow.client()
        self._staging = wiring.open_staging(self._config)
        self._source = wiring.open_source(self._config.source)

    def _capture(self) -> None:
        self._board.stage("the capture and its standby, as DAGs that run for ever")
        wanted = {f"dblog_{NAME}_{kind}" for kind in ("capture", "capture_standby", "dump", "merge")}
        self._until(lambda: wanted <= set(self._client.dags()), 120, "Airflow to parse the DAGs")
        for dag in sorted(wanted):
            self._client.pause(dag, False)
        self._until(lambda: self._offset() > 0, 90, "the first segment")
        self._board.say("the super-changelog has begun")

    def _dump_all(self) -> None:
        self._board.stage(
            f"a dump of all tables, triggered in Airflow while {self._rate():.0f} transactions a second go on"
        )
        began = time.monotonic()
        parameters = {"tables": self._parts.tables, "chunk_size": 4000, "workers": 2}
        dump = self._trigger(parameters)
        self._until(lambda: self._dumped() >= 40_000 or self._over(dump), 300, "a part of the dump")
        self._take_over()
        self._finish(dump)
        seconds, status = time.monotonic() - began, self._newest()
        self._summary["dump of all tables"] = (
            f"{status.rows:,} rows in {status.chunks} chunks, {status.evicted:,} evicted; "
            f"{seconds:.0f} s from the trigger to the end of its run, a takeover in it"
        )

    def _take_over(self) -> None:
        """kill -9 of the leading capture's task; the other DAG goes on."""
        assert self._state is not None
        leader = self._state.leader("capture")
        if leader is None:
            raise LocalError("no capture leads", where="demo")
        began = time.monotonic()
        os.kill(int(leader.holder.rpartition(":")[2]), signal.SIGKILL)
        self._board.say(f"kill -9 of the leading capture, {leader.holder}, epoch {leader.epoch}")
        self._until(lambda: self._head_epoch() > leader.epoch, 90, "the standby to take over")
        seconds, now = time.monotonic() - began, self._state.leader("capture")
        who = f"{now.holder}, epoch {now.epoch}" if now else "nobody"
        self._board.say(f"the standby has taken over after {seconds:.1f} s: {who}")
        self._summary["takeover of the lease"] = (
            f"{seconds:.1f} s from kill -9 to the next segment, now epoch {self._head_epoch()}"
        )

    def _dump_keys(self) -> None:
        table = f"{shop.dialect(self._parts.kind).schema}.order_lines"
        self._board.stage(f"a dump of {len(_KEYS)} keys of {table}, one of which does not exist")
        self._finish(self._trigger({"tables": [table], "pks": _KEYS}))
        status = self._newest()
        self._summary["dump of a few keys"] = f"{status.rows} keys in {status.chunks} chunk, {status.evicted} evicted"

    def _verify(self) -> None:
        """`dblog verify`, as a user runs it, while the writers go on."""
        self._board.stage("the first merges into Delta, rung for by sealed segments")
        self._until(lambda: self._lake_offset() > 0, 900, "the first merge")
        self._board.stage("dblog verify: source and lake compared by hashes, while both change")
        began, messages = time.monotonic(), self._parts.root / "verify.log"
        command = [str(Path(sys.executable).with_name("dblog")), "--config", str(self._parts.config_file)]
        with (
            messages.open("w") as log,
            subprocess.Popen(
                [*command, "verify", "--all", "--json"], stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            self._until(lambda: process.poll() is not None, 600, "the verification", told=messages)
            told = process.stdout.read() if process.stdout else ""
        if process.returncode:
            raise LocalError(f"the verification found a difference, or failed: {told[-2000:]}", where=str(messages))
        tables = json.loads(told)["tables"]
        rows, transactions = sum(table["rows"] for table in tables), self._rate()
        self._summary["dblog verify"] = (
            f"{rows:,} rows of {len(tables)} tables equal, at {transactions:.0f} transactions a second; "
            f"{time.monotonic() - began:.0f} s"
        )

    def _settle(self) -> None:
        report = self._parts.workload.report if self._parts.workload else {}
        self._board.stage("the writers stop; capture and lake catch up")
        if self._parts.workload is not None:
            self._parts.workload.stop()
            report = self._parts.workload.report
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report["kinds"].items()))
        mean = report["transactions"] / max(report["seconds"], 1)
        self._summary["workload"] = f"{report['transactions']:,} transactions, {mean:.0f} a second: {kinds}"
        target = self._source.current_position()
        self._until(lambda: self._reached(target), 300, "the capture to catch up")
        self._until(lambda: self._lake_offset() >= self._offset(), 900, "the last merge")
        self._totals()

    def _compare(self) -> bool:
        self._board.stage("comparing every row and column of source and lake; stopping Airflow")
        directory = self._parts.root / "compare"
        directory.mkdir()
        tasks, _ = run_together(lambda: self._write_rows(directory), self._parts.airflow.stop)
        (directory / "tasks.json").write_text(json.dumps(tasks))
        command = spark.job_command("compare", self._config, arguments=[str(directory / "tasks.json")])
        done = subprocess.run(
            command.argv,
            env={**os.environ, **command.env},
            capture_output=True,
            text=True,
            check=False,
        )
        self._comparison = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(self._comparison) != len(tasks):
            raise LocalError(f"the comparison failed:\n{done.stderr[-2000:]}", where="demo")
        return done.returncode == 0

    def _write_rows(self, directory: Path) -> list[dict[str, Any]]:
        tasks = []
        for schema in self._source.tables():
            file = directory / f"{schema.table.name}.parquet"
            write_rows(self._parts.database, schema, file)
            path = lake.table_location(wiring.open_lake(self._config), schema.table)
            tasks.append({"schema": schema.to_json(), "files": [str(file)], "lake": str(path)})
        return tasks

    # What it looks at

    def _until(self, condition: Callable[[], bool], timeout: float, what: str, *, told: Path | None = None) -> None:
        """Shows what happens until the condition holds; `told`: a file whose newest line belongs to it, and gives it
        more time when there is a new one. Raises LocalError at the deadline."""
        deadline, news = time.monotonic() + timeout, ""
        while True:
            line = _newest_line(told) if told is not None else ""
            self._show({what: line} if told is not None else {})
            if condition():
                return
            if line != news:
                deadline, news = time.monotonic() + timeout, line
            if time.monotonic() > deadline:
                raise LocalError(
                    f"waited {timeout:.0f} s in vain for {what}", where="demo", fix=f"see {self._parts.root}"
                )
            time.sleep(_LOOK)

    def _show(self, first: Mapping[str, str]) -> None:
        facts = dict(first)
        if self._parts.workload is not None and not self._summary.get("workload"):
            self._parts.workload.check()
            report = self._parts.workload.report
            facts["workload"] = f"{report['rate']:.0f} transactions/s, {report['transactions']:,} so far"
        if self._state is not None:
            facts |= self._facts(self._state)
        self._board.show(facts)

    def _facts(self, state: StateStore) -> dict[str, str]:
        leader, told = state.leader("capture"), control.read_status(state) or {}
        lag = told.get("lag_seconds")
        if leader is not None and lag is not None:
            self._lags.append(lag)
        who = f"{leader.holder}, epoch {leader.epoch}" if leader else "nobody leads"
        offset, merged = self._offset(), self._lake_offset()
        shown = "unknown" if lag is None else f"{lag:.1f} s"
        facts = {"capture": f"{who}; offset {offset:,}, {told.get('rows_per_second') or 0:,.0f} rows/s, lag {shown}"}
        for dump in control.dumps(state):
            counts = f"{dump.rows:,} rows, {dump.chunks} chunks, {dump.evicted:,} evicted"
            facts[f"dump {dump.id[-6:]}"] = f"{dump.state}, {counts}"
        facts["lake"] = f"offset {merged:,}, {offset - merged:,} behind"
        return facts

    def _trigger(self, parameters: dict[str, Any]) -> str:
        run = self._client.trigger(f"dblog_{NAME}_dump", parameters)
        self._board.say(f"triggered: {self._client.link(f'dblog_{NAME}_dump', run)}")
        return run

    def _over(self, run: str) -> bool:
        state = self._client.run(f"dblog_{NAME}_dump", run)["state"]
        if state == "failed":
            raise LocalError(
                "the dump's run has failed", where="Airflow", fix=self._client.link(f"dblog_{NAME}_dump", run)
            )
        return bool(state == "success")

    def _finish(self, run: str) -> None:
        self._until(lambda: self._over(run), 600, "the dump's run to end")

    def _newest(self) -> control.DumpStatus:
        assert self._state is not None
        return max(control.dumps(self._state), key=lambda dump: dump.id)

    def _dumped(self) -> int:
        assert self._state is not None
        return sum(dump.rows for dump in control.dumps(self._state))

    def _rate(self) -> float:
        return float(self._parts.workload.report["rate"]) if self._parts.workload else 0.0

    def _offset(self) -> int:
        head = self._staging.head()
        return head.last_offset if head else 0

    def _head_epoch(self) -> int:
        head = self._staging.head()
        return head.epoch if head else 0

    def _reached(self, target: str) -> bool:
        head = self._staging.head()
        return head is not None and not head.partial and self._source.reached(head.position, target)

    def _lake_offset(self) -> int:
        status = lake.read_status(wiring.open_lake(self._config))
        return status.offset if status else 0

    def _totals(self) -> None:
        """What the manifests say of the whole run."""
        segments = list(self._staging.manifests())
        rows = sum(file.rows for manifest in segments for file in manifest.files)
        seconds = (segments[-1].sealed_at - segments[0].sealed_at) / 1e6
        merges = (lake.read_status(wiring.open_lake(self._config)) or lake.LakeStatus()).merge
        self._summary["super-changelog"] = (
            f"{rows:,} rows of the log, {rows / max(seconds, 1):,.0f} a second; {segments[-1].segment} segments"
        )
        median, most = (statistics.median(self._lags), max(self._lags)) if self._lags else (0.0, 0.0)
        self._summary["lag of the capture"] = f"median {median:.1f} s, at most {most:.1f} s"
        self._summary["merges"] = f"{merges}, up to offset {self._lake_offset():,}"


def _newest_line(file: Path) -> str:
    """What a command has said last; Java's own warnings are none of it."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("WARNING")]
    return lines[-1] if lines else "begins"
