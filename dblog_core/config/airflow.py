"""`[airflow]`: when DAGs run, what they heed, and who gets notices of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dblog_core.config.fields import (
    Duration,
    Flag,
    Section,
    Whole,
)
from dblog_core.config.notify import DumpEvent

if TYPE_CHECKING:
    pass


Dag = Literal[
    "capture", "capture_standby", "dump", "merge", "merge_standby", "replay", "verify", "repair", "maintenance"
]
"""What Airflow runs for each source."""


class NotifyConfig(Section):
    """Who gets Airflow's notices of ended runs, and of dumps."""

    notifier: str = Field(
        pattern=r"^[A-Za-z_][\w.]*\.[A-Za-z_]\w*$",
        description="a class of Airflow's notifiers, such as airflow.providers.smtp.notifications.smtp.SmtpNotifier",
    )
    when: Literal["failure", "success", "late", "dump"] = Field(
        default="failure",
        description="failure or success of a run; late: a merge that is not over within merged_within; dump: what "
        "happens to dumps, whichever process asked for them",
    )
    name: str = Field(
        default="airflow",
        pattern=r"^[a-z][a-z0-9_]*$",
        max_length=40,
        description='when = "dump": names the place up to which notices were sent: [a-z][a-z0-9_]*',
    )
    events: tuple[DumpEvent, ...] = Field(
        default=(), description='when = "dump": which, such as ["completed", "failed"]; empty: all'
    )
    dags: tuple[Dag, ...] = Field(default=(), description='of which DAGs, such as ["dump", "verify"]; empty: of all')
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="what the class is made with; its templates may name a connection"
    )


class AirflowConfig(Section):
    """When Airflow's DAGs run automatically, and what they heed."""

    capture: Literal["run", "watch"] = Field(
        default="run", description="run: dblog_NAME_capture captures; watch: it watches a capture that runs elsewhere"
    )
    merge: Literal["batches", "continuous"] = Field(
        default="batches",
        description="batches: a run of dblog_NAME_merge for what is sealed, each with a Spark of its own; continuous: "
        "it and dblog_NAME_merge_standby merge all the time, in a warm Spark",
    )
    verify_every: Duration = Field(
        default="7d", description='how often dblog_NAME_verify compares all tables, once it is unpaused; or "never"'
    )
    verify_repair: Flag = Field(default=False, description="true: what it finds is repaired at once")
    repair_every: Duration = Field(
        default="1d", description='how often dblog_NAME_repair repairs a slice, once it is unpaused; or "never"'
    )
    repair_slices: Whole = Field(default=30, ge=1, le=200, description="slices that are the full state together")
    approve_rows: Whole = Field(
        default=0, ge=0, description="a dump of about more rows waits until somebody approves it; 0: none waits"
    )
    merged_within: Duration = Field(
        default="never", description="a merge that is not over so long after it was called for is reported as late"
    )
    pool: str = Field(
        default="default_pool", min_length=1, description="the Airflow pool of all tasks that read the source"
    )
    notify: tuple[NotifyConfig, ...] = Field(
        default=(), description="who gets Airflow's notices of ended and late runs"
    )
