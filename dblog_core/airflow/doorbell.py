"""The former place of `dblog_core.airflow.triggers`: Airflow's database names the trigger by it."""

from dblog_core.airflow.triggers import SegmentsSealed as SegmentsSealed
