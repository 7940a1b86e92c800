"""Dumps a table every night, merges it, and counts its rows in the lake."""

import datetime as dt

from airflow.sdk import DAG, task

from dblog_core.airflow.operators import DblogDumpOperator, DblogMergeOperator, lake_table_asset

ORDERS = lake_table_asset(source="shop", table="shop.orders")

with DAG("orders_nightly", schedule="0 2 * * *", start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), catchup=False):
    dump = DblogDumpOperator(task_id="dump", source="shop", tables=["shop.orders"], workers=2)
    merge = DblogMergeOperator(task_id="merge", source="shop")

    @task
    def count_orders(path: str) -> int:
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        query = QueryBuilder().register("orders", DeltaTable(path)).execute("SELECT count(*) FROM orders")
        return pa.table(query.read_all())[0][0].as_py()

    dump >> merge >> count_orders(ORDERS.extra["path"])
