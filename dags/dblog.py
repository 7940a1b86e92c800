"""The airflow DAGs of every source that has a TOML file in $DBLOG_CONFIG_DIR."""

from dblog_core.airflow.dag_factory import dags

globals().update(dags())
