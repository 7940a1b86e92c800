"""The real Airflow is at hand for the tests in this directory alone."""

from tests.fix_airflow import live

__all__ = ["live"]
