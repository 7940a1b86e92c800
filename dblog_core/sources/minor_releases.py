"""Releases of servers that lose or change what we read, as their release notes say; `check` reports each by name.

    server       releases       what is lost                                       what we do
    PostgreSQL   < 15.13, 16.9, changes of a table that is added to the            wait for its writers (`publication`),
                 17.5           publication while a transaction writes to it       and a warning
    PostgreSQL   < 15.8, 16.4   the first part of a transaction that is open       a warning
                                while the slot is made
    PostgreSQL   < 15.6, 16.2   the default of a column that was added, in rows    a warning
                                from before: NULL comes instead
    PostgreSQL   < 15.6         columns, where a subtransaction alters a table     a warning
                                while the log is opened again
    MySQL        8.0 < 8.0.30   nothing of the log; a chunk may miss rows whose    wait for XA COMMITs
                                XA COMMIT is logged, and the stale row would win   (`xa_visibility`), and a warning
    MySQL        8.0.29         values of tables with added columns                a warning

Older majors than those in a row are refused by `check`, and newer ones have the fix from their beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dblog_core.interfaces import Problem

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """`fixed`: the first release with the fix of each series, which the numbers before the last one name; `first`:
    the first release that has the fault (empty: the first of the series)."""

    kind: str
    fixed: tuple[Version, ...]
    what: str
    first: Version = ()

    def concerns(self, kind: str, version: Version) -> bool:
        """Whether a server of this version has it."""
        series = [fixed for fixed in self.fixed if version[: len(fixed) - 1] == fixed[:-1]]
        return kind == self.kind and any(self.first <= version < fixed for fixed in series)


LATE_PUBLICATION = Fault(
    "postgres",
    ((15, 13), (16, 9), (17, 5)),
    "changes of a table that is added to the publication while a transaction writes to it may be missing in the log",
)
LATE_XA_COMMIT = Fault(
    "mysql",
    ((8, 0, 30),),
    "an XA COMMIT may be visible only after it is logged; dumps wait for it, which takes PROCESS and XA_RECOVER_ADMIN",
)
FAULTS = (
    LATE_PUBLICATION,
    Fault(
        "postgres",
        ((15, 8), (16, 4)),
        "of a transaction that is open while the slot is made, the first changes may be missing in the log",
    ),
    Fault(
        "postgres",
        ((15, 6), (16, 2)),
        "a column that was added with a default may be NULL in the log, for rows from before",
    ),
    Fault(
        "postgres",
        ((15, 6),),
        "where a subtransaction alters a table while the log is opened, rows may be read by a former shape",
    ),
    LATE_XA_COMMIT,
    Fault("mysql", ((8, 0, 30),), "values of tables to which columns were added may be read wrongly", first=(8, 0, 29)),
)


def parse(text: str) -> Version:
    """The numbers at the beginning of a version's text."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(map(int, match[0].split("."))) if match else ()


def of_postgres(number: int) -> Version:
    """The version that PostgreSQL gives as a number, such as 150013."""
    return number // 10_000, number % 10_000


def problems(kind: str, version: Version) -> Iterator[Problem]:
    """A warning for each fault of this release."""
    for fault in FAULTS:
        if fault.concerns(kind, version):
            fixed = next(f for f in fault.fixed if version[: len(f) - 1] == f[:-1])
            name = "PostgreSQL" if kind == "postgres" else "MySQL"
            yield Problem(
                f"{name} {'.'.join(map(str, version))}: {fault.what}",
                f"update the server to {'.'.join(map(str, fixed))} or later",
                fatal=False,
            )
