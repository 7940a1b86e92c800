"""Makes no airflow DAG: it fails to import, with the reasons, while a TOML file in $DBLOG_CONFIG_DIR is wrong."""

from dblog_core.airflow.dag_factory import check

check()
