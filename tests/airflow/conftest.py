"""The real Airflow, its lake, and a browser that looks at it, for the tests in this directory alone."""

from tests.fix_airflow import live
from tests.fix_airflow_lake import dumped, merged
from tests.fix_browser import chromium, logins, picture, sign_in

__all__ = ["chromium", "dumped", "live", "logins", "merged", "picture", "sign_in"]
