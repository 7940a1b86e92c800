"""The real Airflow, and a browser that looks at it, are at hand for the tests in this directory alone."""

from tests.fix_airflow import live
from tests.fix_browser import chromium, picture, sign_in

__all__ = ["chromium", "live", "picture", "sign_in"]
