"""The page in Airflow's UI: what `dblog status` says about every source, its recent lag, and control of its dumps.

With what Airflow says of the source's DAGs: those that are paused, and runs that failed. Served behind Airflow's own
login. Who may read a source's dump DAG sees the source; who may trigger it may pause,
resume, cancel and retune its dumps. One look at a source serves everybody for a second.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from dblog_core import wiring
from dblog_core.airflow import dag_runs
from dblog_core.airflow.dag_factory import read_sources
from dblog_core.airflow.dag_runs import SourceRuns
from dblog_core.airflow.in_process import quiet_libraries
from dblog_core.airflow.links import source_of
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_records, dump_store
from dblog_core.errors import DblogError, RequestError
from dblog_core.interfaces import Json
from dblog_core.monitoring.lag_history import LagHistory
from dblog_core.monitoring.status import read_source_status
from dblog_core.monitoring.storage_usage import Meter

_AGAIN = 1.0  # seconds between two looks at one source
_FILES_AGAIN = 5.0  # seconds between two looks at the configurations
_HTML = Path(__file__).with_name("ui_page.html")
_ENDED = 4  # dumps that are over, of which the page tells

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
"""The page has one script, of its own, asks its own server alone, and stands in frames of Airflow alone. Widths of bars
are styles of elements."""

Method = Literal["GET", "POST"]


class Settings(BaseModel):
    """What may be changed of a dump that runs; from its next chunk on."""

    model_config = ConfigDict(extra="forbid")

    chunk_size: int | None = None
    workers: int | None = None
    delay: float | None = Field(None, description="seconds between two chunks")
    rate: int | None = Field(None, description="rows a second; 0: no limit")


@dataclass(frozen=True, slots=True)
class _View:
    """What the page says of a source: what `dblog status` has of it, as JSON, and what Airflow says of its DAGs."""

    status: Json
    runs: SourceRuns

    def to_json(self, may_read: Callable[[str], bool]) -> Json:
        """Without runs of DAGs that the user may not read."""
        return {**self.status, **self.runs.only_of(may_read).to_json()}


@dataclass(slots=True)
class _Source:
    """One source, looked at once a second at most however many people watch."""

    config: Config
    meter: Meter
    lag: LagHistory
    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = float("-inf")
    seen: _View | None = None

    def look(self) -> _View:
        """What was seen last, while another request looks: a source that answers slowly must not hold the threads
        that serve all of Airflow."""
        seen = self.seen
        if not self.lock.acquire(blocking=seen is None):
            assert seen is not None
            return seen
        try:
            if self.seen is None or time.monotonic() - self.at >= _AGAIN:
                self.seen = self._look()
                self.at = time.monotonic()
            return self.seen
        finally:
            self.lock.release()

    def _look(self) -> _View:
        source = self.config.source
        is_outside = self.config.airflow.capture == "watch"
        about: Json = {"source": source.name, "kind": source.kind, "now": time.time(), "outside": is_outside}
        runs = dag_runs.of_source(source.name)
        try:
            status = read_source_status(self.config, self.meter)
            points = [[p.at / 1e6, round(p.lag, 3), p.rows] for p in self.lag.look()]
        except DblogError as error:
            return _View({**about, "fault": {"error": error.reason, "fix": error.fix}}, runs)
        live = [dump for dump in status.dumps if dump.state not in dump_records.OVER]
        over = [dump for dump in status.dumps if dump.state in dump_records.OVER]
        shown = replace(status, dumps=(*reversed(live), *reversed(over[-_ENDED:])))
        more_dumps = len(status.dumps) - len(shown.dumps)
        return _View({**shown.to_json(), **about, "more_dumps": more_dumps, "lag": points}, runs)


class Sources:
    """The sources of $DBLOG_CONFIG_DIR as they are now; a file is read again once it has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Source] = {}
        self._faults: list[Json] = []
        self._at = float("-inf")

    def all(self) -> tuple[dict[str, _Source], list[Json]]:
        """By name, and what is wrong with files that give none."""
        with self._lock:
            if time.monotonic() - self._at >= _FILES_AGAIN:
                self._read()
                self._at = time.monotonic()
            return self._known, self._faults

    def _read(self) -> None:
        read = read_sources()
        self._faults = [{"error": fault.reason, "fix": fault.fix} for fault in read.faults]
        configs = {config.source.name: config for config in read.configs.values()}
        same = {
            name: open_source for name, open_source in self._known.items() if configs.get(name) == open_source.config
        }
        self._known = {name: same.get(name) or _open(config) for name, config in sorted(configs.items())}


def _open(config: Config) -> _Source:
    return _Source(config, Meter(config), LagHistory(wiring.open_staging(config)))


def app() -> FastAPI:
    """The application that Airflow mounts."""
    quiet_libraries()
    application = FastAPI(title="DBLog", docs_url=None, redoc_url=None, openapi_url=None)
    sources = Sources()
    signed_in = [Depends(requires_access_view(AccessView.WEBSITE))]
    changing = [Depends(_require_own_page)]

    @application.get("/", response_class=HTMLResponse, dependencies=signed_in)
    def page() -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        text = _HTML.read_text(encoding="utf-8").replace("<script>", f'<script nonce="{nonce}">')
        return HTMLResponse(text, headers={**_HEADERS, "Content-Security-Policy": _POLICY.format(nonce=nonce)})

    @application.get("/sources", dependencies=signed_in)
    def every(user: GetUserDep, dag: str = "") -> Json:
        """What the user may see, and the source that a DAG is of. A file that is wrong may be of any source: who may
        not see them all learns nothing of it."""
        every_source, faults = sources.all()
        visible = [name for name in every_source if _may(user, name, "GET")]
        meant = source_of(dag)
        visible_faults = faults if faults and _may_see_all(user) else []
        return {"sources": visible, "faults": visible_faults, "meant": meant if meant in visible else None}

    @application.get("/sources/{name}")
    def one(name: str, user: GetUserDep) -> Json:
        view = _find_permitted(sources, user, name, "GET").look()
        return {**view.to_json(partial(_may_read, user)), "may_control": _may(user, name, "POST")}

    @application.post("/sources/{name}/dumps/{dump}/{action}", dependencies=changing)
    def act(name: str, dump: str, action: Literal["pause", "resume", "cancel"], user: GetUserDep) -> Json:
        change = {"pause": control.pause, "resume": control.resume, "cancel": control.cancel}[action]
        return _change_dump(_find_permitted(sources, user, name, "POST"), dump, partial(change, dump_id=dump))

    @application.post("/sources/{name}/dumps/{dump}", dependencies=changing)
    def retune(name: str, dump: str, settings: Settings, user: GetUserDep) -> Json:
        changes = settings.model_dump(exclude_none=True)
        return _change_dump(
            _find_permitted(sources, user, name, "POST"), dump, partial(control.retune, dump_id=dump, **changes)
        )

    @application.exception_handler(DblogError)
    def answer_error(_: Request, error: DblogError) -> JSONResponse:
        code = 409 if isinstance(error, RequestError) else 503
        return JSONResponse({"detail": error.message, "fix": error.fix}, code)

    return application


def _require_own_page(request: Request) -> None:
    """A form of another site cannot send this header, so it cannot use a person's cookie to change a dump."""
    if request.headers.get("x-requested-with") != "dblog":
        raise HTTPException(403, "changes need the header X-Requested-With: dblog")


def _change_dump(source: _Source, dump: str, change: Callable[..., None]) -> Json:
    with closing(wiring.open_state(source.config)) as state:
        change(state)
        source.at = float("-inf")
        return dump_store.read_dump(state, dump).to_json()


def _find_permitted(sources: Sources, user: Any, name: str, method: Method) -> _Source:
    """Raises 404 where there is no such source or the user may not know of it, 403 where they may only look."""
    every_source = sources.all()[0]
    if name not in every_source or not _may(user, name, "GET"):
        raise HTTPException(404, f"there is no source {name}")
    if not _may(user, name, method):
        raise HTTPException(403, f"you may not trigger dblog_{name}_dump, so its dumps are not yours to change")
    return every_source[name]


def _may(user: Any, name: str, method: Method) -> bool:
    """Whether the user may see the source's dumps (GET), or change them (POST)."""
    dag = DagDetails(id=f"dblog_{name}_dump")
    entity = DagAccessEntity.RUN if method == "POST" else None
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=dag, user=user))


def _may_see_all(user: Any) -> bool:
    """Whether the user may see every DAG, of sources too that have none for a fault."""
    return bool(get_auth_manager().is_authorized_dag(method="GET", user=user))


def _may_read(user: Any, dag_id: str) -> bool:
    """Whether the user may see the runs of a DAG."""
    entity = DagAccessEntity.RUN
    details = DagDetails(id=dag_id)
    return bool(get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=user))
