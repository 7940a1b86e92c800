"""Our figures among Airflow's own metrics (StatsD, OpenTelemetry, Datadog), where it is configured to send any."""

from __future__ import annotations

from collections.abc import Mapping

from airflow.sdk.observability import stats


def gauges(source: str, values: Mapping[str, float | None]) -> None:
    """`dblog.SOURCE.NAME` for each; what is not known is left out. The source stands in the name, since StatsD knows no
    labels."""
    for name, value in values.items():
        if value is not None:
            stats.gauge(f"dblog.{source}.{name}", float(value))


def counts(source: str, values: Mapping[str, int]) -> None:
    """Adds to the counters `dblog.SOURCE.NAME`."""
    for name, value in values.items():
        stats.incr(f"dblog.{source}.{name}", value)
