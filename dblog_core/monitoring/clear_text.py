"""What a configuration sends over a network in clear text, and what it leaves open to anybody who reaches it.

Each is somebody's choice, or a default, and hinders nothing: so each is a warning of `dblog check`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblog_core.config.kafka import KafkaConfig
from dblog_core.config.output import OutputConfig
from dblog_core.config.settings import Config, uses_s3
from dblog_core.interfaces import Problem
from dblog_core.model.hosts import are_all_loopback, hosts_of, in_the_clear

_ENCRYPT = 'set tls = "verify-full" (and tls_ca), as the default is there'
_HTTPS = "use an https:// address"
_TRUE = ("true", "True", "TRUE")


def in_clear_text(config: Config) -> Iterator[Problem]:
    """A warning for each."""
    for what, fix in _find_clear_text(config):
        yield Problem(what, fix, fatal=False)


def _find_clear_text(config: Config) -> Iterator[tuple[str, str]]:
    """What, and the fix."""
    source = config.source
    hosts = [source.host, *([source.replica.host] if source.replica else [])]
    if source.tls == "off" and not are_all_loopback(*hosts):
        yield f"[source] tls is off: rows of {', '.join(hosts)} travel in clear text", _ENCRYPT
    yield from _state(config)
    s3 = uses_s3(config) or any(output.path.startswith("s3://") for output in config.output.values())
    if s3 and in_the_clear(config.s3.endpoint):
        yield f"[s3] endpoint {config.s3.endpoint}: rows travel in clear text", _HTTPS
    if config.signals.kafka:
        yield from _topic("[signals.kafka]", config.signals.kafka)
    for channel in config.notify:
        place = f"[[notify]] {channel.name}"
        if channel.kafka:
            yield from _topic(place, channel.kafka)
        if in_the_clear(channel.url):
            yield f"{place}: notices travel in clear text", _HTTPS
    for name, output in config.output.items():
        yield from _output(f"[output.{name}]", output)
    yield from _spark(config)


def _state(config: Config) -> Iterator[tuple[str, str]]:
    state = config.state
    if state.url.startswith("sqlite:") or are_all_loopback(*hosts_of(state.url)):
        return
    if state.tls == "off":
        carried = "keys of rows and positions" if not state.user or state.login == "sasl" else "user and password"
        yield f"[state] tls is off: {carried} travel to ZooKeeper in clear text", _ENCRYPT
    if not state.user:
        what = "[state] has no user: anybody who reaches ZooKeeper can read our nodes, ask for dumps, and take the lead"
        yield what, 'give user and password = "${ENV}"; nodes from before stay open (docs/configuration.md)'


def _topic(place: str, topic: KafkaConfig) -> Iterator[tuple[str, str]]:
    if topic.tls == "off" and not are_all_loopback(*hosts_of(topic.servers)):
        yield f"{place} tls is off: {_carried_by_kafka(topic.user, topic.sasl)} travel in clear text", _ENCRYPT


def _output(place: str, output: OutputConfig) -> Iterator[tuple[str, str]]:
    hosts = hosts_of(output.servers) if output.kind == "kafka" else [output.host]
    if output.kind in ("postgres", "mysql", "kafka") and output.tls == "off" and not are_all_loopback(*hosts):
        carried = _carried_by_kafka(output.user, output.sasl) if output.kind == "kafka" else "rows"
        yield f"{place} tls is off: {carried} travel in clear text", _ENCRYPT
    if output.kind == "http" and in_the_clear(output.url):
        yield f"{place} url: rows travel in clear text", _HTTPS
    if in_the_clear(output.registry):
        yield f"{place} registry: anybody in between can change schemas", _HTTPS


def _carried_by_kafka(user: str, sasl: str) -> str:
    return "user, password and messages" if user and sasl == "plain" else "messages"


def _spark(config: Config) -> Iterator[tuple[str, str]]:
    """A standalone cluster: executors get the secrets of storage with their tasks, dump workers the source's too."""
    master = config.spark.master
    conf = config.spark.conf
    if not master.startswith("spark://") or are_all_loopback(*hosts_of(master)):
        return
    encrypted = any(conf.get(f"spark.{part}.enabled") in _TRUE for part in ("network.crypto", "ssl.rpc", "ssl"))
    if conf.get("spark.authenticate") not in _TRUE or not encrypted:
        what = f"[spark] master {master}: anybody who reaches the cluster can run tasks, and rows and the secrets of "
        fix = 'set "spark.authenticate" and "spark.network.crypto.enabled" to "true" in [spark.conf], as on the cluster'
        yield f"{what}storage travel in clear text", fix
