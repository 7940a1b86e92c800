"""Where Spark runs for the tasks of a source: what the Airflow connection `dblog_spark` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection

if TYPE_CHECKING:
    from dblog_core.config.settings import Config

CONNECTION = "dblog_spark"


def on_connection(config: Config) -> Config:
    """The configuration with the connection's master in place of `[spark] master`, for jobs that the engine starts
    without Airflow's operator. Raises AirflowException where the connection is missing.
    """
    connection = Connection.get(CONNECTION)
    host = connection.host or ""
    # As SparkSubmitOperator reads it: a URL in the host's field, or its scheme as the connection's type.
    master = (
        host
        if connection.conn_type == "spark" and ("://" in host or not connection.port)
        else f"{connection.conn_type}://{host}"
    )
    master = f"{master}:{connection.port}" if connection.port else master
    return config.model_copy(update={"spark": config.spark.model_copy(update={"master": master})})
