"""What Airflow connections say: how the source of an `airflow_connection` is reached, and where Spark runs for tasks.

A connection is looked up when it is needed, never while DAG files are parsed. Inside a task that asks the task's
supervisor; outside of Airflow, environment variables (AIRFLOW_CONN_…) and configured secrets backends are all that
Airflow looks at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from dblog_core.airflow.provider import TLS, TYPES
from dblog_core.config.settings import Config
from dblog_core.config.source import SourceConfig
from dblog_core.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Connection

SPARK = "dblog_spark"
"""The connection that says where Spark runs for the tasks of a source."""


def on_connection(config: Config) -> Config:
    """The configuration with the master of the connection `dblog_spark` in place of `[spark] master`.

    It is for jobs that the engine starts without Airflow's operator. Where the engine runs without Spark, the
    configuration stays as it is. Raises AirflowException where the connection is missing.
    """
    from airflow.sdk import Connection

    if config.lake.engine == "local":
        return config
    connection = Connection.get(SPARK)
    host = connection.host or ""
    # As SparkSubmitOperator reads it: a URL in the host's field, or its scheme as the connection's type.
    master = (
        host
        if connection.conn_type == "spark" and ("://" in host or not connection.port)
        else f"{connection.conn_type}://{host}"
    )
    master = f"{master}:{connection.port}" if connection.port else master
    return config.model_copy(update={"spark": config.spark.model_copy(update={"master": master})})


def resolve(config: Config) -> Config:
    """The configuration with its `airflow_connection`, if any, replaced by what it stands for. Raises ConfigError."""
    return config.model_copy(update={"source": as_source(config.source)})


def as_source(source: SourceConfig) -> SourceConfig:
    """The source, connected as its `airflow_connection`, if any, says. Raises ConfigError."""
    name = source.airflow_connection
    if name is None:
        return source
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowException

    try:
        connection = Connection.get(name)
    except AirflowException as error:
        fix = f"add the connection {name} in Airflow; where dblog runs outside of it, set AIRFLOW_CONN_{name.upper()}"
        raise _fault(f"Airflow has no connection {name}", fix) from error
    if not connection.host or not connection.login:
        raise _fault(f"the Airflow connection {name} lacks a host or a login", "complete it")
    login = {"user": connection.login, "password": connection.password or ""}
    try:
        return source.with_connection(host=connection.host, port=connection.port, **login, tls=_tls(source, connection))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _fault(f"the Airflow connection {name}: {where}: {first['msg']}", "correct its form") from error


def _tls(source: SourceConfig, connection: Connection) -> dict[str, str]:
    """What the form of our own types says of TLS; in the extra of any other type such names mean something else."""
    kind = (connection.conn_type or "").replace("-", "_")
    if kind not in TYPES:
        return {}
    if (kind == "dblog_postgres") != (source.kind == "postgres"):
        raise _fault(
            f"{connection.conn_id} has the type {kind}, and the source is {source.kind}", "name one of its kind"
        )
    return {name: str(value) for name, value in connection.extra_dejson.items() if name in TLS and value}


def _fault(message: str, fix: str) -> ConfigError:
    return ConfigError(message, where="[source] airflow_connection", fix=fix)
