"""Notices: what happens to dumps, told to a log, a webhook, Kafka, or Airflow's notifiers.

changes    pure: what is new about a dump since it was told of last
delivery   looks at the state store, tells, and keeps its place there: nothing is lost by a crash, some may come twice
channels   where notices go (Airflow's notifiers: `airflow.notifiers`)
webhook    a POST for each, signed
kafka      a message for each
"""
