"""The real Airflow, its lake, and a browser that looks at it, for the tests in this directory alone."""

from tests.fix_airflow import live
from tests.fix_airflow_lake import finished_dump, merged_lake
from tests.fix_browser import chromium, logins, picture, sign_in

__all__ = ["chromium", "finished_dump", "live", "logins", "merged_lake", "picture", "sign_in"]
