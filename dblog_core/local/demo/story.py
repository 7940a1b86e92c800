"""The demo's story: capture, dumps through Airflow, a takeover, merges, and a comparison of everything at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from dblog_core import wiring
from dblog_core.errors import LocalError
from dblog_core.interfaces import StateStore
from dblog_core.local.demo import shop
from dblog_core.local.demo.board import Board
from dblog_core.local.demo.parts import NAME, Parts, run_together
from dblog_core.local.demo.verdict import Verdict, compare
from dblog_core.local.demo.view import View
from dblog_core.local.servers.daemon import wait_until

_LOOK_SECONDS = 0.5
_KEYS = [[1, "SKU-0001", 2], [2, "SKU-0003", 2], [2, "SKU-0004", 1], [1, "none", 9]]
_MERGE = f"dblog_{NAME}_merge"

Result = TypeVar("Result")


class Story:
    """Plays once, and leaves the database and ZooKeeper running; `tell` says how it ended."""

    def __init__(self, parts: Parts, board: Board) -> None:
        self._parts = parts
        self._board = board
        self._summary: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def play(self) -> Verdict:
        """What the comparison of source and lake says in the end."""
        self._chapter("start", self._start)
        with closing(wiring.open_state(self._config)) as state:
            self._play_live(state)
        return self._chapter("comparison", self._compare)

    def tell(self, verdict: Verdict) -> None:
        """The summary, and where to look."""
        self._summary["seconds"] = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self._seconds.items())
        self._board.table(
            f"dblog: {self._parts.kind}, {self._board.elapsed_seconds:.0f} s", {**self._summary, **verdict.summary()}
        )
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
        parts = self._parts
        board = self._board
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

    def _play_live(self, state: StateStore) -> None:
        """All that happens while the servers run and the writers write."""
        assert self._parts.workload is not None
        self._state = state
        self._view = View(self._config, state, self._parts.workload)
        self._chapter("capture", self._capture)
        self._chapter("dump", self._dump_all)
        if self._parts.edition.whole:
            self._client.pause(_MERGE, False)
            self._chapter("dump of keys", self._dump_keys)
            self._chapter("first merge", self._first_merge)
            self._chapter("verify", self._verify)
        self._chapter("last merge", self._merge_to_the_end)

    def _capture(self) -> None:
        self._board.stage("the capture, as a DAG that runs forever")
        captures = [f"dblog_{NAME}_capture", *([f"dblog_{NAME}_capture_standby"] if self._parts.edition.whole else [])]
        expected = {*captures, f"dblog_{NAME}_dump", _MERGE}
        self._wait_until(lambda: expected <= set(self._client.dags()), 120, "Airflow to parse the DAGs")
        self._client.pause(_MERGE)  # each run is a cold Spark: one for all of the dump, and not one beside each chapter
        for dag in captures:
            self._client.pause(dag, False)
        self._wait_until(lambda: self._view.offset() > 0, 90, "the first segment")
        self._board.say("the super-changelog has begun")

    def _dump_all(self) -> None:
        edition = self._parts.edition
        self._board.stage(
            f"a dump of all tables, triggered in Airflow while {self._view.rate():.0f} transactions a second continue"
        )
        began = time.monotonic()
        dump = self._trigger({"tables": self._parts.tables, "chunk_size": edition.chunk_size, "workers": 2})
        if edition.whole:
            self._wait_until(
                lambda: self._view.rows_dumped() >= edition.takeover_after or self._is_over(dump),
                300,
                "a part of the dump",
            )
            # In the middle of the dump, so that windows are open when the leader dies.
            self._take_over()
        self._wait_for_run(dump)
        seconds = time.monotonic() - began
        status = self._view.newest_dump()
        self._summary["dump of all tables"] = (
            f"{status.rows:,} rows in {status.chunks} chunks, {status.evicted:,} evicted; "
            f"{seconds:.0f} s from the trigger to the end of its run{', a takeover in it' if edition.whole else ''}"
        )

    def _take_over(self) -> None:
        """kill -9 of the leading capture's task; the other DAG continues."""
        leader = self._state.leader("capture")
        if leader is None:
            raise LocalError("no capture leads", where="demo")
        began = time.monotonic()
        # The holder's name ends with its process id.
        os.kill(int(leader.holder.rpartition(":")[2]), signal.SIGKILL)
        self._board.say(f"kill -9 of the leading capture, {leader.holder}, epoch {leader.epoch}")
        self._wait_until(lambda: self._view.epoch() > leader.epoch, 90, "the standby to take over")
        seconds = time.monotonic() - began
        now = self._state.leader("capture")
        who = f"{now.holder}, epoch {now.epoch}" if now else "nobody"
        self._board.say(f"the standby has taken over after {seconds:.1f} s: {who}")
        self._summary["takeover of the lease"] = (
            f"{seconds:.1f} s from kill -9 to the next segment, now epoch {self._view.epoch()}"
        )

    def _dump_keys(self) -> None:
        table = f"{shop.dialect(self._parts.kind).schema}.order_lines"
        self._board.stage(f"a dump of {len(_KEYS)} keys of {table}, one of which does not exist")
        self._wait_for_run(self._trigger({"tables": [table], "pks": _KEYS}))
        status = self._view.newest_dump()
        self._summary["dump of a few keys"] = f"{status.rows} keys in {status.chunks} chunk, {status.evicted} evicted"

    def _first_merge(self) -> None:
        self._board.stage("the first merge into Delta, rung for by sealed segments")
        self._wait_until(lambda: self._view.lake_offset() > 0, 900, "the first merge")
        self._client.pause(_MERGE)  # the verification has no need of it

    def _verify(self) -> None:
        """`dblog verify`, as a user runs it, while the writers continue."""
        self._board.stage("dblog verify: source and lake compared by hashes, while the writers continue")
        began = time.monotonic()
        messages = self._parts.root / "verify.log"
        command = [str(Path(sys.executable).with_name("dblog")), "--config", str(self._parts.config_file)]
        with (
            messages.open("w") as log,
            subprocess.Popen(
                [*command, "verify", "--all", "--json"], stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            self._wait_until(lambda: process.poll() is not None, 600, "the verification", messages=messages)
            result = process.stdout.read() if process.stdout else ""
        if process.returncode:
            raise LocalError(f"the verification found a difference, or failed: {result[-2000:]}", where=str(messages))
        tables = json.loads(result)["tables"]
        rows = sum(table["rows"] for table in tables)
        transactions = self._view.rate()
        self._summary["dblog verify"] = (
            f"{rows:,} rows of {len(tables)} tables equal, at {transactions:.0f} transactions a second; "
            f"{time.monotonic() - began:.0f} s"
        )

    def _merge_to_the_end(self) -> None:
        assert self._parts.workload is not None
        self._board.stage("the writers stop; capture and lake catch up")
        self._parts.workload.stop()
        report = self._parts.workload.report
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.kinds.items()))
        self._summary["workload"] = f"{report.transactions:,} transactions, {report.mean_rate:.0f} a second: {kinds}"
        # After the writers have stopped: nothing is committed beyond it.
        end = self._view.position()
        self._wait_until(lambda: self._view.has_captured(end), 300, "the capture to catch up")
        self._client.pause(_MERGE, False)
        self._client.trigger(_MERGE)  # nothing is sealed any more that would ring for it
        self._wait_until(lambda: self._view.lake_offset() >= self._view.offset(), 900, "the last merge")
        self._summary |= self._view.totals()

    def _compare(self) -> Verdict:
        self._board.stage("comparing every row and column of source and lake; stopping Airflow")
        schemas = wiring.open_source(self._config.source).tables()
        verdict: Verdict
        verdict, _ = run_together(
            lambda: compare(self._parts.database, self._config, schemas),
            self._stop_airflow,
        )
        return verdict

    def _stop_airflow(self) -> None:
        """Once the last merge is over, which has now done its work: one that is stopped would run again later."""
        wait_until(self._merges_are_over, timeout=120, what=f"the runs of {_MERGE} to end")
        self._parts.airflow.stop()

    def _merges_are_over(self) -> bool:
        return not any(self._client.runs(_MERGE, state=state) for state in ("queued", "running"))

    # What comes next

    def _chapter(self, name: str, chapter: Callable[[], Result]) -> Result:
        began = self._board.elapsed_seconds
        result = chapter()
        self._seconds[name] = self._board.elapsed_seconds - began
        return result

    def _wait_until(
        self, condition: Callable[[], bool], timeout: float, what: str, *, messages: Path | None = None
    ) -> None:
        """Shows what happens until the condition holds; `messages`: a file whose newest line belongs to it, and gives
        it more time when there is a new one. Raises LocalError at the deadline."""
        deadline = time.monotonic() + timeout
        news = ""
        while True:
            line = _newest_line(messages) if messages is not None else ""
            self._show(what, line)
            if condition():
                return
            # A command that still says something is at work: its time begins again.
            if line != news:
                deadline = time.monotonic() + timeout
                news = line
            if time.monotonic() > deadline:
                raise LocalError(
                    f"waited {timeout:.0f} s in vain for {what}", where="demo", fix=f"see {self._parts.root}"
                )
            time.sleep(_LOOK_SECONDS)

    def _show(self, what: str, line: str) -> None:
        sight = self._view.look()
        first = {what: line} if line else {}
        self._board.show({**first, **sight.facts()}, f"{line or f'waiting for {what}'}; {sight.brief()}")

    def _trigger(self, parameters: dict[str, Any]) -> str:
        run = self._client.trigger(f"dblog_{NAME}_dump", parameters)
        self._board.say(f"triggered: {self._client.link(f'dblog_{NAME}_dump', run)}")
        return run

    def _is_over(self, run: str) -> bool:
        state = self._client.run(f"dblog_{NAME}_dump", run)["state"]
        if state == "failed":
            raise LocalError(
                "the dump's run has failed", where="Airflow", fix=self._client.link(f"dblog_{NAME}_dump", run)
            )
        return bool(state == "success")

    def _wait_for_run(self, run: str) -> None:
        self._wait_until(lambda: self._is_over(run), 600, "the dump's run to end")


def _newest_line(file: Path) -> str:
    """What a command has said last; without Java's own warnings."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("WARNING")]
    return lines[-1] if lines else "begins"
