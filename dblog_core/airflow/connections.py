"""`airflow_connection`: where a source's host, user and password come from an Airflow connection.

It is looked up when a connection to the source is needed, never while DAG files are parsed. Inside a task that asks the
task's supervisor; outside of Airflow, environment variables (AIRFLOW_CONN_…) and configured secrets backends are all
that Airflow looks at.
"""

from __future__ import annotations

from dblog_core.config import Config
from dblog_core.errors import ConfigError


def resolved(config: Config) -> Config:
    """The configuration with its `airflow_connection`, if any, replaced by what it stands for. Raises ConfigError."""
    name = config.source.airflow_connection
    if name is None:
        return config
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowException

    fix = f"add the connection {name} in Airflow; where dblog runs outside of it, set AIRFLOW_CONN_{name.upper()}"
    try:
        found = Connection.get(name)
    except AirflowException as error:
        raise ConfigError(f"Airflow has no connection {name}", where="[source] airflow_connection", fix=fix) from error
    if not found.host or not found.login:
        raise ConfigError(
            f"the Airflow connection {name} lacks a host or a login",
            where="[source] airflow_connection",
            fix="complete it",
        )
    source = config.source.connected(host=found.host, port=found.port, user=found.login, password=found.password or "")
    return config.model_copy(update={"source": source})
