"""What a lake task works with, and what it hands back to the merge that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dblog_core.config.settings import Config
from dblog_core.lake.lake_status import LakeStatus, TableStatus
from dblog_core.lake.task_results import TaskResult
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.withheld_keys import Dumps, Withheld
from dblog_core.staging import Staging


@dataclass(frozen=True, slots=True)
class Tools:
    """`number`: the merge that the task is, and so its transaction in Delta; `status`: the lake after the merge before.

    `check` raises LeaseLost once the lake's lock is in doubt; `step` gets each step
    as it has been done. `config` and `dumps` are None only where a test has none.
    `purged`: tables of which no file has a row that was marked before that time (seconds UTC).
    """

    number: int
    status: LakeStatus
    staging: Staging
    lake: Lake
    withheld: Withheld
    check: Callable[[], None]
    step: Callable[[str], None]
    config: Config | None
    dumps: Dumps | None
    purged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """`result`: what the command prints; `tables`: those that the task has changed, as they are now."""

    result: TaskResult
    tables: Mapping[str, TableStatus] = field(default_factory=dict)
