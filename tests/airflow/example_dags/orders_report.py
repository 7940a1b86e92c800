"""Runs whenever a merge has changed a table of the lake."""

from typing import Any

from airflow.sdk import DAG, task

from dblog_core.airflow.operators import lake_table_asset

ORDERS = lake_table_asset(source="shop", table="shop.orders")

with DAG("orders_report", schedule=[ORDERS]):

    @task
    def report(path: str, triggering_asset_events: Any = None) -> dict[str, int]:
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        event = triggering_asset_events[ORDERS][-1]
        table = DeltaTable(path, version=event.extra["version"])  # of that merge, whatever was merged since
        query = QueryBuilder().register("orders", table).execute("SELECT max(id) FROM orders")
        return {"offset": event.extra["offset"], "newest": pa.table(query.read_all())[0][0].as_py()}

    report(ORDERS.extra["path"])
