"""Notices: what happens to dumps, sent to a log, a webhook, Kafka, or Airflow's notifiers.

changes    pure: what is new about a dump since its last notice
delivery   looks at the state store, tells, and keeps its place there: nothing is lost by a crash, some may come twice
channels   where notices go (Airflow's notifiers: `airflow.notifiers`)
webhook    a POST for each, signed
kafka      a message for each
"""
