"""Dumps of the system within the test's own process, which a process of their own could not see into."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from dblog_core.capture import dump_process
from dblog_core.config.settings import Config
from dblog_core.dumps import work_loop
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, StateStore

log = logging.getLogger(__name__)


@pytest.fixture
def system_dumps_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests with fakes, or with changes to our code, in the places of what works on dumps."""

    def work(config: Config, state: StateStore, clock: Clock, stop: threading.Event, **_: Any) -> None:
        while not clock.wait(stop, dump_process.LOOK):
            try:
                work_loop.work(config, stop=stop, once=True, requested_by=dump_process.REQUESTED_BY)
            except DblogError as error:
                log.warning("a dump that the system or a signal requested: %s", error)

    monkeypatch.setattr(dump_process, "work", work)
