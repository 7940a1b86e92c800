"""Dumps listed keys; `dblog work` on another machine reads them. While the tasks wait, they take no slot."""

from airflow.sdk import DAG, Param

from dblog_core.airflow.operators import DblogDumpOperator
from dblog_core.airflow.sensors import DblogFreshnessSensor, DblogProvenSensor

with DAG("orders_elsewhere", schedule=None, params={"orders": Param([1], type="array")}):
    dump = DblogDumpOperator(
        task_id="dump",
        source="shop",
        tables=["shop.orders"],
        pks="{{ params.orders }}",
        work=False,
        deferrable=True,
        poll_interval=5,
    )
    fresh = DblogFreshnessSensor(
        task_id="fresh",
        source="shop",
        table="shop.orders",
        as_new_as="{{ dag_run.run_after }}",
        mode="reschedule",
        poke_interval=10,
        timeout=3600,
    )
    proven = DblogProvenSensor(
        task_id="proven", source="shop", table="shop.orders", within=3600, deferrable=True, poke_interval=5
    )
    dump >> fresh >> proven
