"""What the triggerer waits for, and assets: the doorbell of the merge, waits of operators and sensors, lake tables.

The doorbell is an asset whose events say that segments were sealed which the lake does not have yet. The triggerer
watches the log of manifests, so nothing needs a credential, and a capture that runs outside of Airflow rings as well.
An event is no more than a bell: Airflow folds events into one while a merge runs, and the merge takes whatever is
sealed when it starts.

A deferred task waits in a `Wait`. All that it knows is in its arguments, so that it continues after a restart of the
triggerer. It never opens the source.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from dblog_core.config.secret_settings import READER
from dblog_core.config.settings import uses_s3
from dblog_core.errors import DblogError, RequestError

if TYPE_CHECKING:
    from dblog_core.config.settings import Config
    from dblog_core.interfaces import Json
    from dblog_core.staging import Staging
    from dblog_core.storage.location import Location

log = logging.getLogger(__name__)

POLL = 1.0  # seconds between two looks
TROUBLED = 30.0  # seconds to the next look when staging or lake cannot be read
JUDGE = 30.0  # seconds between two looks whether the lake still continues the staging
WAITING = 600.0  # seconds for which a lake task, or a merge that was begun, waits until somebody is asked to finish it
QUIET = 5.0  # seconds after a ring: a merge takes longer


def sealed_segments(config: Config, file: Path) -> Asset:
    """The asset that the merge DAG of a source is scheduled on; `file`: its configuration."""
    name = config.source.name
    # Where paths lie on an object store, the trigger reads its credentials from the file: Airflow stores what is here.
    where = str(file) if uses_s3(config) else ""
    trigger = SegmentsSealed(staging=config.staging.path, source=name, lake=config.lake.path, config=where)
    return Asset(
        name=f"dblog_{name}_segments",
        uri=f"x-dblog://{name}/segments",
        group="dblog",
        extra={
            "is": f"the super-changelog of {name} on storage; an event says that rows were sealed, and starts the merge"
        },
        watchers=[AssetWatcher(name=f"dblog_{name}_manifests", trigger=trigger)],
    )


LAKE_TABLES = AssetAlias("dblog_lake_tables", group="dblog")
"""What a merge names as its outlet: the tables that it changes are known only at its end."""


def lake_table(config: Config, table: str) -> Asset:
    """The asset of a lake table: a merge that has changed the table emits an event of it. `extra` has its `path`.
    Raises LakeError."""
    from dblog_core.lake.lake_status import table_location
    from dblog_core.model import table_names
    from dblog_core.model.schema import TableName
    from dblog_core.wiring import open_lake

    name = TableName.parse(table_names.canonical(table))
    source = config.source.name
    path = str(table_location(open_lake(config), name))
    # A metadata database of MySQL takes ASCII only.
    return Asset(
        name=f"dblog_{source}_{quote(str(name))}",
        uri=f"x-dblog://{source}/lake/{quote(name.schema, safe='')}/{quote(name.name, safe='')}",
        group="dblog",
        extra={"is": f"the lake table of {quote(str(name))}; an event says that a merge has changed it", "path": path},
    )


class SegmentsSealed(BaseEventTrigger):
    """Rings when a newer segment with rows is sealed, at start when the lake is behind, when the staging was replaced
    by one that the lake does not continue, and when a lake task or a merge that was begun waits for long."""

    def __init__(self, *, staging: str, source: str, lake: str, config: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
        self.staging = staging
        self.source = source
        self.lake = lake
        self.config = config

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {"staging": self.staging, "source": self.source, "lake": self.lake, "config": self.config}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watch = Watch(self.staging, self.source, self.lake, config=self.config)
        while True:
            ring, pause = await asyncio.to_thread(watch.look)
            if ring:
                yield TriggerEvent({"segment": watch.segment})  # type: ignore[no-untyped-call]  # as above
            await asyncio.sleep(pause)


class Watch:
    """Remembers the newest segment that was seen; one look is a probe for the next manifest."""

    def __init__(
        self, staging: str, source: str, lake: str, *, config: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        """`config`: the file with the settings of the object store that the paths lie on; `now`: monotonic seconds."""
        self._where = (staging, source)
        self._lake = lake
        self._config = config
        self._staging: Staging | None = None
        self._place: Location | None = None
        self._now = now
        self._judged_at = float("-inf")
        self._continues = True
        self._waiting: dict[str, float] = {}  # since when work waits, by its name; infinite: this has rung for it
        self.segment = 0

    def look(self) -> tuple[bool, float]:
        """Whether to ring, and the seconds until the next look."""
        try:
            ring = self._judge() or (self._newer() if self._staging else self._behind())
        except DblogError as error:
            log.error("cannot see whether segments were sealed, looking again in %.0f s: %s", TROUBLED, error)
            return False, TROUBLED
        return ring, QUIET if ring else POLL

    def _behind(self) -> bool:
        """The first look: whether the lake lacks rows of the super-changelog."""
        from dblog_core.config.loader import load
        from dblog_core.lake.continuity import judge_lake
        from dblog_core.lake.lake_status import lake_at
        from dblog_core.staging import Staging
        from dblog_core.storage.factory import open_storage

        root, source = self._where
        s3 = load(self._config, secrets=False).s3 if self._config else None
        staging = Staging(source=source, storage=open_storage(root, source, s3=s3))
        head = staging.head()
        self._place = lake_at(self._lake, s3=s3)
        lake, verdict = judge_lake(staging, self._place)
        self._staging = staging
        self._judged_at = self._now()
        self._continues = verdict.may_merge
        self.segment = head.segment if head else 0
        lacks_rows = head is not None and head.last_offset > (lake.common_offset if lake else 0)
        return lacks_rows or not verdict.may_merge

    def _judge(self) -> bool:
        """Whether to ring for something else than a segment: now and then."""
        if self._staging is None or self._place is None or self._now() - self._judged_at < JUDGE:
            return False
        self._judged_at = self._now()
        return self._is_refused(self._staging, self._place) or self._has_waited(self._place)

    def _is_refused(self, known: Staging, place: Location) -> bool:
        """Whether the lake no longer continues the staging, which somebody has replaced: the merge says so, and fails.
        True once each time; from then on the newest segment that there is now counts as seen."""
        from dblog_core.lake.continuity import judge_lake

        staging = known.handle()  # it knows no segment that is gone
        _, verdict = judge_lake(staging, place)
        had_continued = self._continues
        self._continues = verdict.may_merge
        if (head := staging.head_number()) < self.segment:
            self._staging = staging
            self.segment = head
        return had_continued and not verdict.may_merge

    def _has_waited(self, place: Location) -> bool:
        """Whether a lake task, or a merge that was begun, has waited for long: who did it may have died, and perhaps no
        row follows. True once for each. Where another process is still at work on it, the merge that this starts waits
        for that one, and has nothing to do."""
        from dblog_core.lake.continuity import read_unfinished_merge
        from dblog_core.lake.lake_status import read_status
        from dblog_core.lake.lake_tasks import waiting_tasks

        names = {f"task {task.id}" for task in waiting_tasks(place)}
        if (begun := read_unfinished_merge(place, read_status(place))) is not None:
            names.add(f"merge {begun.number}")
        now = self._now()
        self._waiting = {name: self._waiting.get(name, now) for name in names}
        late = [name for name, since in self._waiting.items() if now - since >= WAITING]
        self._waiting.update(dict.fromkeys(late, float("inf")))
        return bool(late)

    def _newer(self) -> bool:
        """Whether any segment after the last one seen has rows."""
        assert self._staging is not None
        rows = False
        for manifest in self._staging.manifests(after=self.segment):
            self.segment = manifest.segment
            rows = rows or manifest.last_offset >= manifest.first_offset
        return rows


class Wait(BaseTrigger):
    """Looks every `interval` seconds for what a task waits for. `config_file`: the source's TOML file."""

    def __init__(self, *, config_file: str, interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
        self.config_file = config_file
        self.interval = interval

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments of the class, without the two of every wait."""

    @abstractmethod
    def look(self, config: Config) -> Json | None:
        """What to tell the task; None: not yet. Raises DblogError."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {"config_file": self.config_file, "interval": self.interval, **self.arguments()}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (event := await asyncio.to_thread(self.try_look)) is None:
            await asyncio.sleep(self.interval)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # as above

    def try_look(self) -> Json | None:
        """As `look`; an error that another look may not meet is logged, any other one ends the wait."""
        from dblog_core.airflow.in_process import quiet_libraries
        from dblog_core.config.loader import load

        quiet_libraries()
        try:
            return self.look(load(self.config_file, needs=READER))
        except DblogError as error:
            if not error.transient:
                return {"error": str(error)}
            log.warning("looking again in %.0f s: %s", self.interval, error)
            return None


class DumpOver(Wait):
    """Until a dump is over. `cancel_on_kill`: whether to cancel it when somebody ends or clears the deferred task."""

    def __init__(self, *, dump_id: str, cancel_on_kill: bool, **wait: Any) -> None:
        super().__init__(**wait)
        self.dump_id = dump_id
        self.cancel_on_kill = cancel_on_kill

    def arguments(self) -> dict[str, Any]:
        return {"dump_id": self.dump_id, "cancel_on_kill": self.cancel_on_kill}

    def look(self, config: Config) -> Json | None:
        from dblog_core.dumps import dump_store
        from dblog_core.dumps.dump_records import OVER
        from dblog_core.wiring import open_state

        with closing(open_state(config)) as state:
            is_over = dump_store.read_dump(state, self.dump_id).state in OVER
        return {"dump_id": self.dump_id} if is_over else None

    async def on_kill(self) -> None:
        """Airflow 3.3 and later call it."""
        if self.cancel_on_kill:
            await asyncio.to_thread(self._cancel)

    def _cancel(self) -> None:
        from dblog_core.config.loader import load
        from dblog_core.dumps import control
        from dblog_core.wiring import open_state

        with closing(open_state(load(self.config_file, needs=READER))) as state:
            try:
                control.cancel(state, self.dump_id)
            except RequestError as error:
                log.info("dump %s is not cancelled: %s", self.dump_id, error)


class TableFresh(Wait):
    """Until a lake table is as new as a time (`monitoring.freshness`). `end`: an end of the source's log after that
    time; None: the task asks the source for it at `ask_at` (seconds since 1970 UTC)."""

    def __init__(self, *, table: str, time_us: int, end: str | None, ask_at: float, **wait: Any) -> None:
        super().__init__(**wait)
        self.table = table
        self.time_us = time_us
        self.end = end
        self.ask_at = ask_at

    def arguments(self) -> dict[str, Any]:
        return {"table": self.table, "time_us": self.time_us, "end": self.end, "ask_at": self.ask_at}

    def look(self, config: Config) -> Json | None:
        from dblog_core.monitoring import freshness

        seen = freshness.judge(config, self.table, self.time_us, end=self.end)
        if seen.fresh:
            return {"result": seen.to_json()}
        return {"ask": True} if self.end is None and time.time() >= self.ask_at else None


class TableProven(Wait):
    """Until a table was proven equal in the last `within` seconds."""

    def __init__(self, *, table: str, within: float, **wait: Any) -> None:
        super().__init__(**wait)
        self.table = table
        self.within = within

    def arguments(self) -> dict[str, Any]:
        return {"table": self.table, "within": self.within}

    def look(self, config: Config) -> Json | None:
        result = proven_result(config, self.table, self.within)
        return None if result is None else {"result": result}


def proven_result(config: Config, table: str, within: float) -> Json | None:
    """When and how the table was proven equal in the last `within` seconds; None: it was not. Raises RequestError for
    a table that is not captured."""
    from dblog_core.model import table_names
    from dblog_core.monitoring.freshness import check_captured
    from dblog_core.verify import last_results
    from dblog_core.wiring import open_state

    name = table_names.canonical(table)
    with closing(open_state(config)) as state:
        last = last_results.read_results(state).get(name)
    if last is None:
        check_captured(config, name)
    elif last.proven_at_us is not None and last.proven_at_us >= (time.time() - within) * 1e6:
        return {"table": name, "proven_at_us": last.proven_at_us, "not_compared": last.not_compared}
    return None
