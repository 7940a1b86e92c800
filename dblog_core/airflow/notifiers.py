"""Who gets Airflow's notices of ended runs, late runs and dumps: its own notifiers, as `[[airflow.notify]]` names them.

Airflow calls those of runs. The task that captures, or watches the capture, reports all dumps:
like any other receiver of notices (`dblog_core.notifications`), so none is lost, and some may come twice under the
same id.
"""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseNotifier
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from dblog_core.errors import ConfigError, NotToldYet
from dblog_core.model import durations

if TYPE_CHECKING:
    from airflow.sdk import Context

    from dblog_core.config.airflow import Dag, NotifyConfig
    from dblog_core.config.settings import Config
    from dblog_core.notifications.changes import NoticeMessage
    from dblog_core.notifications.channels import Receiver


def notifiers(
    config: Config, dag: Dag | None, when: Literal["failure", "success"], *, where: str = ""
) -> list[Callable[[Context], None]]:
    """Those of one DAG (None: all that are configured, to see whether they can be made). Raises ConfigError."""
    settings = [n for n in config.airflow.notify if dag is None or (n.when == when and (not n.dags or dag in n.dags))]
    return [_make_notifier(each, where) for each in settings]


def deadlines(config: Config) -> list[DeadlineAlert]:
    """Of merges: one that is not over within `merged_within` of its being queued is reported, whatever keeps it."""
    late = [each for each in config.airflow.notify if each.when == "late"]
    return [
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=dt.timedelta(seconds=durations.parse(config.airflow.merged_within)),
            callback=SyncCallback(each.notifier, dict(each.arguments)),
            name=f"the lake of {config.source.name} within {config.airflow.merged_within}",
        )
        for each in late
    ]


def receivers(config: Config, context: Context) -> list[Receiver]:
    """Those of dumps; `context`: of the task that tells them."""
    from dblog_core.notifications.channels import Receiver

    settings = [each for each in config.airflow.notify if each.when == "dump"]
    return [Receiver(each.name, NotifierChannel(each, context), each.events) for each in settings]


class NotifierChannel:
    """One of Airflow's notifiers as a receiver of notices: its context is the task's, with the `notice` in it."""

    def __init__(self, settings: NotifyConfig, context: Context) -> None:
        self._wanted = settings
        self._context = context

    def tell(self, message: NoticeMessage) -> None:
        notice_context: Any = {**self._context, "notice": message.to_json()}
        try:
            _make_notifier(self._wanted, "")(notice_context)  # made anew for each: it fills its templates in place
        except Exception as error:  # whatever the class of somebody else raises
            raise NotToldYet(
                f"{self._wanted.notifier} has not taken notice {message.notice.id}: {type(error).__name__}: {error}",
                where=f"[[airflow.notify]] {self._wanted.name}",
                fix="repair what the notifier names; the notice is sent again until it is taken",
            ) from error


def _make_notifier(settings: NotifyConfig, where: str) -> BaseNotifier:
    module, _, name = settings.notifier.rpartition(".")
    try:
        notifier_class: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _fault(settings, where, f"there is no {settings.notifier}: {error}", "install its provider") from error
    if not (isinstance(notifier_class, type) and issubclass(notifier_class, BaseNotifier)):
        raise _fault(settings, where, f"{settings.notifier} is no notifier", "name a class of Airflow's notifiers")
    try:
        return notifier_class(**settings.arguments)
    except (TypeError, ValueError) as error:
        raise _fault(
            settings, where, f"{settings.notifier}: {error}", "give `arguments` what the class takes"
        ) from error


def _fault(settings: NotifyConfig, where: str, message: str, fix: str) -> ConfigError:
    return ConfigError(f"[[airflow.notify]] {message}", where=where, fix=fix)
