"""What is wrong with the receivers of notices: `[[notify]]` and `[[airflow.notify]]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dblog_core.config.connection_validation import KAFKA_PAIRS, check_connection, check_file
from dblog_core.config.faults import Fault
from dblog_core.config.fields import FromEnvironment
from dblog_core.config.raw_config import RawConfig
from dblog_core.config.secret_settings import SECRET_NAME

_WEBHOOK = ("url", "secret", "tls_ca")
_FOREIGN = {"log": (*_WEBHOOK, "kafka"), "webhook": ("kafka",), "kafka": _WEBHOOK}
"""What has no meaning for a channel, by what it tells."""


def check_late_notices(raw: RawConfig) -> Iterator[Fault]:
    """Lateness is reported to somebody, and somebody hears of each limit that is exceeded."""
    within = raw.section("airflow").get("merged_within", "never")
    late = [(i, notifier) for i, notifier in raw.entries("airflow", "notify") if notifier.get("when") == "late"]
    if within != "never" and raw.section("airflow").get("merge") == "continuous":
        fix = "leave it out; the metric dblog.NAME.merged_offset and `dblog status` tell how far the lake is"
        yield Fault(("airflow", "merged_within"), 'has no meaning for merge = "continuous", which never ends', fix)
    if within != "never" and not late:
        yield Fault(("airflow", "merged_within"), "tells nobody", 'add [[airflow.notify]] with when = "late"')
    for i, notifier in late:
        if _has_secret(notifier.get("arguments")):
            what = "would lie in Airflow's database, where everybody reads them who may read DAGs"
            fix = "name an Airflow connection that holds the secret; a late run's arguments take nothing from ${ENV}"
            yield Fault(("airflow", "notify", i, "arguments"), what, fix)
    if late and within == "never":
        yield Fault(("airflow", "notify"), "waits for a limit", 'give [airflow] merged_within, such as "10m"')


def _has_secret(value: Any) -> bool:
    """Whether anything in it comes from the environment, or is a secret by its name."""
    if isinstance(value, Mapping):
        return any(SECRET_NAME.search(str(name)) or _has_secret(inner) for name, inner in value.items())
    if isinstance(value, list):
        return any(map(_has_secret, value))
    return isinstance(value, FromEnvironment)


def check_dump_notices(raw: RawConfig) -> Iterator[Fault]:
    """Airflow's notifiers have places among the channels of `[[notify]]`."""
    names = [channel.get("name") for _, channel in raw.entries("notify")]
    for i, notifier in raw.entries("airflow", "notify"):
        of_dumps = notifier.get("when") == "dump"
        for key in ("dags",) if of_dumps else ("events", "name"):
            if notifier.get(key):
                what = "has no meaning for dumps" if of_dumps else 'has a meaning for when = "dump" alone'
                yield Fault(("airflow", "notify", i, key), what, "remove it")
        name = notifier.get("name", "airflow")
        if of_dumps and name in names:
            what = f"{name} is the name of another receiver of notices"
            yield Fault(("airflow", "notify", i, "name"), what, "choose another name")
        if of_dumps:
            names.append(name)


def check_channels(raw: RawConfig, *, files: bool) -> Iterator[Fault]:
    """Each channel has a name of its own, and what its kind needs."""
    names: list[Any] = []
    for i, channel in raw.entries("notify"):
        if channel.get("name") in names:
            yield Fault(("notify", i, "name"), "stands there twice", "choose another name")
        names.append(channel.get("name"))
        if channel.get("to") == "webhook" and not channel.get("url"):
            yield Fault(("notify", i, "url"), "is missing", "give the receiver's https://… address")
        if channel.get("to") == "kafka" and not channel.get("kafka"):
            yield Fault(("notify", i, "kafka"), "is missing", "give servers and topic below [notify.kafka]")
        for key in _FOREIGN.get(str(channel.get("to")), ()):
            if channel.get(key):
                yield Fault(("notify", i, key), f"has no meaning for a {channel['to']}", "remove it")
        if isinstance(channel.get("kafka"), Mapping):
            yield from check_connection(("notify", i, "kafka"), channel["kafka"], KAFKA_PAIRS, files=files)
        path = channel.get("tls_ca")
        if path and str(channel.get("url", "")).startswith("http://"):
            yield Fault(("notify", i, "tls_ca"), "is never used with http://", "remove it, or use https://")
        elif files:
            yield from check_file(("notify", i, "tls_ca"), path)
