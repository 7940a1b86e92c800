"""Builds the parts that a configuration names. The only module that knows every implementation; drivers load on use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dblog_core.config import Config, SourceConfig
from dblog_core.interfaces import Source, StateStore

if TYPE_CHECKING:
    from dblog_core.staging import Staging
    from dblog_core.storage.location import Location


def open_source(config: SourceConfig) -> Source:
    """The source; no connection is made yet."""
    if config.kind == "postgres":
        from dblog_core.sources.postgres.source import PostgresSource

        return PostgresSource(config)
    from dblog_core.sources.mysql.source import MysqlSource

    return MysqlSource(config)


def open_state(config: Config) -> StateStore:
    """The state store, connected, with all paths below the source's name. Raises StateUnavailable."""
    given = config.state
    scheme, _, rest = given.url.partition("://")
    if scheme == "zookeeper":
        from dblog_core.state.zookeeper import ZookeeperState
        from dblog_core.state.zookeeper_session import Access

        files = {"ca": given.tls_ca, "certificate": given.tls_cert, "key": given.tls_key}
        paths = {name: str(path) if path else None for name, path in files.items()}
        secret = given.password.get_secret_value()
        access = Access(user=given.user, password=secret, login=given.login, tls=given.tls, **paths)
        return ZookeeperState(rest, prefix=config.source.name, access=access)
    from dblog_core.state.sqlite import SqliteState

    return SqliteState(rest, prefix=config.source.name)


def open_staging(config: Config) -> Staging:
    """The source's super-changelog: the directory is made where missing."""
    from dblog_core.staging import Staging
    from dblog_core.storage.opening import open_storage

    name = config.source.name
    return Staging(source=name, storage=open_storage(config.staging.path, name, s3=config.s3))


def open_lake(config: Config) -> Location:
    """Where the source's Delta tables lie."""
    from dblog_core.lake import lake_at

    return lake_at(config.lake.path, s3=config.s3)
