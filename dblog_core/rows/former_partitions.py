"""Tables with hidden values that were a partition of another table for a while (PostgreSQL).

Their rows are logged under the name of that table, which may have no entry, and once they are detached nothing of it
shows that. They do show it: ATTACH and DETACH describe all of their columns again (`Origin.described`), and an ALTER
TABLE only those that it names. One that is gone may have been anything.
"""

from __future__ import annotations

from dataclasses import replace

from dblog_core.model.table_identity import Origin
from dblog_core.rows.acceptance import Acceptance, Held


def may_be(before: Acceptance, now: Origin | None) -> bool:
    """Whether the table may have been a partition since `before`. `now`: what the catalogue has under its name."""
    if not before.is_by_catalogue:
        return False
    if now is None:
        return before.why_held is not Held.GONE
    if before.why_held is Held.GONE:
        return bool(now.described)  # its end was seen; this one was made since
    return (_oid(before), _descriptions(before)) != (str(now.oid), now.described)


def may_be_accepted(before: Acceptance, accepted: Acceptance) -> bool:
    """As `may_be`, of one that a person has accepted as it is now."""
    if not before.is_by_catalogue or before.why_held is Held.GONE:
        return False
    return (_oid(before), _descriptions(before)) != (_oid(accepted), _descriptions(accepted))


def look_again(before: Acceptance, now: Origin | None) -> Acceptance:
    """The acceptance of a held table, with its present description."""
    if now is None:
        return replace(before, shape="", version="")
    return replace(before, shape=now.describe(hides=True), version=now.version)


def _oid(acceptance: Acceptance) -> str:
    return acceptance.shape.partition(":")[0]


def _descriptions(acceptance: Acceptance) -> str:
    return acceptance.version.partition(":")[2]
