"""A run: statements over many sessions, a capture of all that they touch, dumps beside them, and what comes of it."""

from __future__ import annotations

import contextlib
import io
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from dblog_core import wiring
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.capture.healing.unlogged_rewrites import Stamps
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store, filing, work_loop
from dblog_core.dumps.dump_records import OVER
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import DblogError, SourceUnavailable
from dblog_core.model import table_identity
from dblog_core.monitoring.gone_tables import find_gone
from dblog_core.monitoring.status import read_source_status
from dblog_core.state import settings_in_force, stopped_tables
from dblog_core.state.stopped_tables import RepairSeenBy
from tests.conformance.forms import Case, Step, woven
from tests.conformance.reports import Reports, from_dumps, from_problems, from_status, merge_reports
from tests.fix_servers import Database
from tests.records import read_records
from tests.waiting import PATIENCE_SECONDS, wait_until

CHUNK = 7


class World:
    """One database under statements, and its capture. `refused`: statements that the server did not take, by form."""

    def __init__(self, database: Database, path: Path, cases: Sequence[Case], draw: random.Random) -> None:
        self.database = database
        self.path = path
        self.cases = list(cases)
        self.draw = draw
        self.taken = 0
        self.refused: list[str] = []
        self.forms: Counter[str] = Counter()
        self.rules: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, list[str]] = {}
        self._start = draw.choice(("latest", "initial"))
        self._sessions: dict[tuple[int, int], Any] = {}
        self._file = path / "as it is.toml"
        self._file.touch()
        self._begun = 0
        self._requested: list[threading.Event] = []
        self._faults: list[BaseException] = []
        self._open = contextlib.ExitStack()
        self._dumping = contextlib.ExitStack()
        if database.kind != "postgres":
            user = f"'{database.account.user}'@'{database.server.host}'"
            like = database.name.replace("_", "\\_") + "\\_%"
            database.execute("SET GLOBAL local_infile = 1")
            database.execute(f"GRANT SELECT ON `{like}`.* TO {user}")

    @property
    def config(self) -> Config:
        """As it is now, with the rules that were typed."""
        tables = ["*.*"] if self.database.kind == "postgres" else [f"{self.database.name}*.*"]
        source = {"tables": tables, "columns": self.rules, "keys": self.keys, "start": self._start}
        return self.database.config(self.path, source=source)

    # Statements -----------------------------------------------------------------------------------------------------

    def run_early(self) -> None:
        """What happens before the capture begins; at least one table is there then."""
        self.database.execute("CREATE TABLE always (id int PRIMARY KEY)", "INSERT INTO always VALUES (1)")
        for case in self.cases:
            for number, step in enumerate(case.steps):
                if number >= case.early and not self._is_open(case):
                    break
                self._run(case, step)
                case.early = max(case.early, number + 1)

    def _is_open(self, case: Case) -> bool:
        """Whether a first capture of PostgreSQL would wait for a transaction of the case, or refuse a table."""
        if self.database.kind != "postgres":
            return False
        sessions = [session for (number, _), session in self._sessions.items() if number == case.number]
        if any(session.info.transaction_status != TRANSACTION_STATUS_IDLE for session in sessions):
            return True
        prepared = "SELECT 1 FROM pg_prepared_xacts WHERE database = current_database()"
        if self.database.query(prepared):
            return True
        return any(problem.fatal for problem in wiring.open_source(self.config.source).check())

    def run_all(self, at: dict[int, Any]) -> None:
        """All other statements; `at`: what is done before the statement of a number, in percent of all."""
        whole = sum(len(case.steps) - case.early for case in self.cases)
        due = sorted((percent * whole // 100, act) for percent, act in at.items())
        for number, (case, step) in enumerate(woven(self.cases, self.draw, ready=self._is_ready)):
            while due and due[0][0] <= number:
                due.pop(0)[1]()
            self.look()
            self._run(case, step)
        for _, act in due:
            act()
        self._end_sessions()
        wait_until(lambda: self.look() or all(event.is_set() for event in self._requested), "the dumps are requested")

    def _is_ready(self, case: Case, step: Step) -> bool:
        """Whether no transaction of another case holds a snapshot that the statement would wait for."""
        others = [session for (number, _), session in self._sessions.items() if number != case.number]
        return "CONCURRENTLY" not in step.sql or all(
            session.info.transaction_status == TRANSACTION_STATUS_IDLE for session in others
        )

    def _run(self, case: Case, step: Step) -> None:
        key = (case.number, step.session)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self._connect()
        sql: str | bytes = step.sql.encode(step.codec) if step.codec else step.sql
        try:
            with contextlib.closing(session.cursor()) as cursor:
                self._execute(cursor, sql, step)
        except Exception as error:  # noqa: BLE001 - every kind of refusal is told
            if not step.may_fail:
                self.refused.append(f"{case.form.name}: {step.sql[:300]}: {str(error).strip()}")
        else:
            self.taken += 1
            self.forms[case.form.name] += 1
        if step is case.steps[-1]:
            for number in {step.session for step in case.steps}:
                if (ended := self._sessions.pop((case.number, number), None)) is not None:
                    ended.close()

    def _execute(self, cursor: Any, sql: str | bytes, step: Step) -> None:
        if step.file is None:
            cursor.execute(sql)
        elif self.database.kind == "postgres":
            cursor.copy_expert(sql, io.StringIO(step.file))
        else:
            file = self.path / "loaded"
            file.write_text(step.file, newline="")
            assert isinstance(sql, str)
            cursor.execute(sql.replace("'file'", f"'{file}'"))

    def _connect(self) -> Any:
        server = self.database.server
        waiting = "lock_wait_timeout = 60, innodb_lock_wait_timeout = 60"
        if self.database.kind == "postgres":
            session = self.database.connect()
            with session.cursor() as cursor:
                cursor.execute("SET lock_timeout = '60s'")
            return session
        return pymysql.connect(
            host=server.host,
            port=server.port,
            user=server.admin.user,
            password=server.admin.password,
            database=self.database.name,
            autocommit=True,
            charset="utf8mb4",
            local_infile=True,
            init_command=f"SET {waiting}",
        )

    def _end_sessions(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    # Capture and dumps ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A capture, until `end`. It has begun: the first one refuses to, where a table cannot be captured."""
        self._open.enter_context(self._capturing(self.config))
        staging = wiring.open_staging(self.config)
        wait_until(lambda: self.look() or staging.head() is not None, "the capture has begun")
        self._begun += 1
        self.database.execute(f"INSERT INTO always VALUES ({1 + self._begun})")
        # By this capture: whoever goes on from here is not before the dumps that its term requests.
        self._wait_until_staged()

    def end(self) -> None:
        self._open.close()
        self.look()

    def again(self) -> None:
        """The capture ends, and another one takes over."""
        self.end()
        self.begin()

    @contextmanager
    def _capturing(self, config: Config) -> Iterator[None]:
        stop = threading.Event()

        def capture() -> None:
            try:
                run_capture(config, stop=stop, file=ConfigFile(self._file, lambda _: config))
            except BaseException as fault:  # noqa: BLE001 - raised in the test's own thread
                self._faults.append(fault)

        thread = threading.Thread(target=capture)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)
        assert not thread.is_alive()

    def look(self) -> None:
        """Raises what has ended the capture, or a dump's worker."""
        if self._faults:
            raise self._faults[0]

    def dump_beside(self) -> None:
        """Requests a dump of all, and works on it, in a thread: a table may be locked by a transaction that only the
        next statement ends."""
        config = self.config
        stop = threading.Event()
        requested = threading.Event()
        self._requested.append(requested)

        def work() -> None:
            try:
                dump_id = filing.submit(config, DumpRequest(None, chunk_size=CHUNK))
                requested.set()
                with contextlib.suppress(DblogError):  # of a table that cannot be dumped: its task says so
                    work_loop.work(config, stop=stop, once=True, dump_id=dump_id)
            except BaseException as fault:  # noqa: BLE001 - raised in the test's own thread
                self._faults.append(fault)

        thread = threading.Thread(target=work)
        thread.start()

        def end() -> None:
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)

        self._dumping.callback(end)

    def dump(self, tables: Sequence[str]) -> None:
        """`dblog dump --table T … --wait`; the capture works on it."""
        for table in tables:
            with contextlib.suppress(DblogError):
                filing.submit(self.config, DumpRequest((table,), chunk_size=CHUNK), requested_by=dump_records.SYSTEM)

    # Fixes ----------------------------------------------------------------------------------------------------------

    def type_statements(self, statements: Sequence[str]) -> str | None:
        """Types them at the server, as its administrator; why one is refused."""
        try:
            self.database.execute(*statements)
        except Exception as error:  # noqa: BLE001 - every kind of refusal is a fault of the fix
            return f"{statements}: {str(error).strip()}"
        return None

    def type_dump(self, table: str) -> str | None:
        """`dblog dump --table TABLE`, on which the capture works; why it is refused."""
        try:
            filing.submit(self.config, DumpRequest((table,), chunk_size=CHUNK), requested_by=dump_records.SYSTEM)
        except DblogError as error:
            return str(error)
        return None

    def add_rules(self, table: str, rules: Mapping[str, Any]) -> None:
        """Adds to what stands below [source.columns."TABLE"]."""
        entry = self.rules.setdefault(table, {})
        for rule, columns in rules.items():
            entry[rule] = (
                {**entry.get(rule, {}), **columns}
                if isinstance(columns, dict)
                else [*dict.fromkeys([*entry.get(rule, []), *columns])]
            )

    def settle(self) -> None:
        """All that is committed is staged, the capture knows the catalogue as it is, and every dump is over."""
        self._wait_until_staged()
        self._wait_until_noticed()
        self._wait_until_dumped()
        self._wait_until_staged()

    def _wait_until_noticed(self) -> None:
        """What no log tells of, the capture sees when it looks at the catalogue: tables that are made, altered, refused
        or mended. The dumps that it requests then are in the state store before a manifest says what it remembers."""
        source = wiring.open_source(self.config.source)

        def unseen_changes() -> dict[str, object]:
            self.look()
            records = read_records(self.config)
            refused = stopped_tables.entries_by_source(source.list_refusals())
            stopped = stopped_tables.read(records)
            mended = {table for table, e in stopped.items() if e.by != RepairSeenBy.LOG} - refused.keys()
            pending: dict[str, object] = {"refused": sorted(refused.keys() - stopped.keys()), "mended": mended}
            if (now := source.identities()) is not None:
                pending["made"] = table_identity.find_other_tables(settings_in_force.read_shown(records) or set(), now)
            if (stamps := source.stamps()) is not None:
                remembered = Stamps(records)
                remembered.look(stamps)
                pending["altered"] = [name for name, stamp in stamps.items() if remembered.before.get(name) != stamp]
            return {what: tables for what, tables in pending.items() if tables}

        def unseen() -> dict[str, object]:
            try:
                return unseen_changes()
            except SourceUnavailable as error:  # every connection is in use, on a busy machine
                return {"away": str(error)}

        wait_until(lambda: not unseen(), "the capture knows the catalogue", describe=unseen)

    def _wait_until_staged(self) -> None:
        source = wiring.open_source(self.config.source)
        staging = wiring.open_staging(self.config)
        target = source.current_position()

        def is_staged() -> bool:
            self.look()
            head = staging.head()
            return head is not None and not head.partial and source.has_reached(head.position, target)

        wait_until(is_staged, "the log is staged")

    def _wait_until_dumped(self) -> None:
        def over() -> bool:
            self.look()
            with closing(wiring.open_state(self.config)) as state:
                return all(dump.state in OVER for dump in dump_store.list_dumps(state))

        def describe() -> object:
            with closing(wiring.open_state(self.config)) as state:
                return [dump.to_json() for dump in dump_store.list_dumps(state) if dump.state not in OVER]

        wait_until(over, "all dumps are over", describe=describe)

    # What came of it ------------------------------------------------------------------------------------------------

    def reports(self) -> Reports:
        """What status, check and dumps say of tables, by the table's name."""
        tables = read_source_status(self.config).to_json()["tables"]
        with closing(wiring.open_state(self.config)) as state:
            dumps = dump_store.list_dumps(state)
        source = wiring.open_source(self.config.source)
        problems = [*source.check(), *find_gone(self.config, source)]
        return merge_reports(from_status(tables), from_dumps(dumps), from_problems(problems))

    def schemas(self) -> list[str]:
        if self.database.kind == "postgres":
            return []
        schema_rows = self.database.query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
        return [name for (name,) in schema_rows if str(name).startswith(self.database.name)]

    def clean(self) -> None:
        """Ends all, and drops what else was made at the server."""
        self._end_sessions()
        self._dumping.close()
        self._open.close()
        if self.database.kind != "postgres":
            others = [name for name in self.schemas() if name != self.database.name]
            self.database.execute(*(f"DROP DATABASE `{name}`" for name in others))
