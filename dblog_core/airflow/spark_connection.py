"""Where Spark runs for the tasks of a source: what the Airflow connection `dblog_spark` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection

if TYPE_CHECKING:
    from dblog_core.config.settings import Config

CONNECTION = "dblog_spark"


def on_connection(config: Config) -> Config:
    """The configuration with the connection's master in place of `[spark] master`, for jobs that the engine starts by
    itself. Raises AirflowException where the connection is missing."""
    found = Connection.get(CONNECTION)
    host = found.host or ""
    # As SparkSubmitOperator reads it: a URL in the host's field, or its scheme as the connection's type.
    master = host if found.conn_type == "spark" and ("://" in host or not found.port) else f"{found.conn_type}://{host}"
    master = f"{master}:{found.port}" if found.port else master
    return config.model_copy(update={"spark": config.spark.model_copy(update={"master": master})})
