"""What unit tests have of the capture that would need a process, which cannot see their fakes."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _fakes_are_seen_by_dumps_of_the_system(system_dumps_in_this_process: None) -> None:
    return None
