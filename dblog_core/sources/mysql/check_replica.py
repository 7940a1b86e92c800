"""The preflight of a replica: its log must have what it replicates, in the order of its primary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Problem
from dblog_core.sources.mysql.sql.connection import rows, variables

_LOGGING = ("log_slave_updates", "log_replica_updates")
# The server has both names from MySQL 8.0.26 on; the new one comes last, and is the one that a fix uses.
_WORKERS = ("slave_parallel_workers", "replica_parallel_workers")
_ORDER = ("slave_preserve_commit_order", "replica_preserve_commit_order")
_DOUBT = ", should this server be a replica"


def problems(connection: Connection[Any], config: SourceConfig) -> Iterator[Problem]:
    """What is wrong if the server is a replica; a warning where the account may not see whether it is one."""
    findings = [*_of_logging(connection, config), *_of_order(connection, config)]
    if not findings:
        return
    replicating = _replicates(connection, config)
    if replicating is not False:
        doubt = "" if replicating else _DOUBT
        for what, fix in findings:
            yield Problem(what + doubt, fix, fatal=bool(replicating))


def _of_logging(connection: Connection[Any], config: SourceConfig) -> Iterator[tuple[str, str]]:
    """A replica logs what it replicates only where it is set to."""
    if config.read_only and "ON" not in variables(connection, *_LOGGING).values():
        what = "log_slave_updates is OFF: what a replica gets from its primary is not in its log"
        yield what, "start the server with log_slave_updates = ON"


def _of_order(connection: Connection[Any], config: SourceConfig) -> Iterator[tuple[str, str]]:
    """MySQL's workers commit as they finish, unless they are set to keep the order.

    MariaDB's keep it in each mode of slave_parallel_mode: only a transaction of another GTID domain may overtake, and
    its writer has allowed that.
    """
    if config.kind == "mariadb":
        return
    values = variables(connection, *_WORKERS, *_ORDER)
    workers = _newest(values, _WORKERS)
    order = _newest(values, _ORDER)
    if workers is None or order is None or int(values[workers]) <= 1 or values[order] == "ON":
        return
    what = f"{order} is {values[order]} with {workers} = {values[workers]}: a replica commits, and logs, transactions"
    fix = f"STOP REPLICA SQL_THREAD; SET PERSIST {order} = ON; START REPLICA SQL_THREAD"
    yield f"{what} in another order than its primary, so that a cut can show what the primary never was", fix


def _newest(values: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The last of the names that the server knows."""
    return next((name for name in reversed(names) if name in values), None)


def _replicates(connection: Connection[Any], config: SourceConfig) -> bool | None:
    """Whether the server is a replica; None: the account may not see it."""
    statement = "SHOW SLAVE STATUS" if config.kind == "mariadb" else "SHOW REPLICA STATUS"
    try:
        return bool(rows(connection, statement))
    # Without the right to see it: a warning then, since nothing is certain.
    except pymysql.err.MySQLError:
        return None
