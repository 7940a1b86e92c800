"""Builds the parts that a configuration names. The only module that knows every implementation; drivers load on use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dblog_core.config.settings import Config
from dblog_core.config.source import SourceConfig
from dblog_core.installed_packages import require, require_sasl
from dblog_core.interfaces import Output, Source, StateStore

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from dblog_core.interfaces import Json
    from dblog_core.lake.merge_options import MergeOptions
    from dblog_core.staging import Staging
    from dblog_core.storage.location import Location


def open_source(config: SourceConfig) -> Source:
    """The source; no connection is made yet."""
    require("postgres" if config.kind == "postgres" else "mysql")
    if config.kind == "postgres":
        from dblog_core.sources.postgres.source import PostgresSource

        return PostgresSource(config)
    from dblog_core.sources.mysql.source import MysqlSource

    return MysqlSource(config)


def open_state(config: Config) -> StateStore:
    """The state store, connected, with all paths below the source's name. Raises StateUnavailable."""
    settings = config.state
    scheme, _, rest = settings.url.partition("://")
    if scheme == "zookeeper":
        require("zookeeper")
        if settings.login == "sasl":
            require_sasl()
        from dblog_core.state.zookeeper import ZookeeperState
        from dblog_core.state.zookeeper_session import Access

        access = Access(
            user=settings.user,
            password=settings.password.get_secret_value(),
            login=settings.login,
            tls=settings.tls or "verify-full",
            tls_ca=settings.tls_ca,
            tls_cert=settings.tls_cert,
            tls_key=settings.tls_key,
        )
        # The prefix keeps sources apart that share an ensemble.
        return ZookeeperState(rest, prefix=config.source.name, access=access)
    from dblog_core.state.sqlite import SqliteState

    return SqliteState(rest, prefix=config.source.name)


def open_staging(config: Config) -> Staging:
    """The source's super-changelog: the directory is made where missing."""
    from dblog_core.staging import Staging
    from dblog_core.storage.factory import open_storage

    name = config.source.name
    return Staging(source=name, storage=open_storage(config.staging.path, name, s3=config.s3))


def open_lake(config: Config) -> Location:
    """Where the source's Delta tables lie."""
    # Imported here: `lake` imports this module.
    from dblog_core.lake.lake_status import lake_at

    return lake_at(config.lake.path, s3=config.s3)


def open_output(config: Config, name: str) -> Output:
    """The output of `[output.NAME]`; no connection is made yet. Raises OutputRefused for a class that is not there."""
    settings = config.output[name]
    full_name = f"{config.source.name}.{name}"
    if settings.kind in ("postgres", "mysql", "kafka"):
        require(settings.kind)
    if settings.kind == "postgres":
        from dblog_core.outputs.postgres import PostgresDialect
        from dblog_core.outputs.sql_table import TableOutput

        return TableOutput(PostgresDialect(settings), full_name)
    if settings.kind == "mysql":
        from dblog_core.outputs.mysql import MysqlDialect
        from dblog_core.outputs.sql_table import TableOutput

        return TableOutput(MysqlDialect(settings), full_name)
    if settings.kind == "kafka":
        from dblog_core.outputs.kafka import KafkaOutput

        return KafkaOutput(settings, config.source.name, name)
    if settings.kind == "http":
        from dblog_core.outputs.http import HttpOutput

        # It becomes the idempotency key SOURCE/OUTPUT/FIRST-LAST.
        return HttpOutput(settings, full_name.replace(".", "/"))
    if settings.kind == "python":
        from dblog_core.outputs import custom

        return custom.load_output(
            settings.implementation, source=config.source.name, output=name, options=settings.options
        )
    from dblog_core.outputs.files import FilesOutput
    from dblog_core.storage.factory import open_storage

    storage = open_storage(settings.path, f"{config.source.name}/{name}", temporary="_tmp", s3=config.s3)
    return FilesOutput(storage, form=settings.form or "jsonl")


def run_merge(
    config: Config,
    options: MergeOptions,
    *,
    stop: threading.Event,
    on_line: Callable[[str], None],
    on_result: Callable[[Json], None] | None = None,
    is_wanted: Callable[[], bool] | None = None,
) -> int:
    """Runs a merge to its end, or until `stop`: in this process, or by spark-submit, as `[lake] engine` says.

    `on_line` gets its progress, `on_result` each merge. `is_wanted`: False ends a merge in this process. Returns the
    exit code: 0 done; 1 failed, interrupted, or a table is stopped.
    """
    if config.lake.engine == "spark":
        import orjson

        from dblog_core.lake.spark_submit import run_job

        on_text = None if on_result is None else lambda text: on_result(orjson.loads(text))
        return run_job("merge", config, arguments=options.arguments(), stop=stop, on_line=on_line, on_result=on_text)
    from dblog_core.config.secret_settings import READER, given_to
    from dblog_core.lake_engine import merge_job
    from dblog_core.lake_engine.lake_job import Caller

    # Without the source's password: code of a merge that asks for it fails.
    caller = Caller(stop, on_line, is_wanted or (lambda: True))
    return merge_job.run(given_to(config, READER), options, caller, on_result)
