"""Goes on with a table once it is as new as the end of the hour, and proven equal to its source."""

import datetime as dt

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from dblog_core.airflow.operators import DblogRepairOperator, DblogVerifyOperator
from dblog_core.airflow.sensors import DblogFreshnessSensor, DblogProvenSensor

HOURLY = CronDataIntervalTimetable("0 * * * *", timezone="UTC")
TABLE = {"source": "shop", "table": "shop.orders"}

with DAG(
    "orders_trusted",
    schedule=HOURLY,
    start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
):
    fresh = DblogFreshnessSensor(
        task_id="fresh", as_new_as="{{ data_interval_end }}", deferrable=True, poke_interval=5, timeout=1800, **TABLE
    )
    repair = DblogRepairOperator(task_id="repair", source="shop", tables=["shop.orders"], slices=2)
    verify = DblogVerifyOperator(task_id="verify", source="shop", tables=["shop.orders"])
    proven = DblogProvenSensor(
        task_id="proven", within=dt.timedelta(hours=1), mode="reschedule", poke_interval=60, timeout=600, **TABLE
    )

    @task
    def use_orders() -> str:
        return "proven equal, and as new as the end of the hour"

    fresh >> repair >> verify >> proven >> use_orders()
