"""A line in Debezium's envelope (JSON without schemas): pure.

The envelope has no form for a new shape and for the end of a dump: those lines have none. A value that the log left out
and that stays as it is has Debezium's own placeholder.
"""

from __future__ import annotations

import datetime as dt

from dblog_core.interfaces import Json
from dblog_core.model.events import FINISHED, SCHEMA
from dblog_core.model.schema import TableName

UNAVAILABLE = "__debezium_unavailable_value"


def envelope(line: Json, *, source: str) -> Json | None:
    """The envelope; None: it has no form for such a line. `source`: the configuration's name of the database."""
    if line["op"] in (SCHEMA, FINISHED):
        return None
    table = TableName.parse(line["table"])
    after = line["after"]
    if after is not None and line["unchanged"]:
        # Debezium's placeholder for a TOAST value that the log left out.
        after = {**after, **dict.fromkeys(line["unchanged"], UNAVAILABLE)}
    return {
        "before": line["before"],
        "after": after,
        "source": {
            "version": "1",
            "connector": "dblog",
            "name": source,
            "ts_ms": _milliseconds(line["commit_time"]),
            "snapshot": "true" if line["origin"] == "dump" else "false",
            "schema": table.schema,
            "table": table.name,
            "txId": line["transaction"],
            "position": line["position"],
            "offset": line["offset"],
        },
        "op": line["op"],
        "ts_ms": _milliseconds(line["commit_time"]),
    }


def _milliseconds(time: str) -> int:
    return int(dt.datetime.fromisoformat(time).timestamp() * 1000)
