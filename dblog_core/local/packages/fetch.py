"""Fetches the servers and the browser of the local stack into the cache, and builds versitygw.

It imports Python's own library alone: `tools/setup` runs this module while pip fills .venv.
"""

from __future__ import annotations

import sys

from dblog_core.errors import LocalError
from dblog_core.local.packages import trees, versitygw

ALL = "all"


def fetch(what: str) -> None:
    """`what`: `all`, or the database of a demo, of which only the server is fetched. Instant where it is done.

    Raises LocalError.
    """
    for package in trees.ALL if what == ALL else [trees.OF_A_DEMO[what]]:
        trees.tree(package)
    if what == ALL and versitygw.can_be_built():  # else moto serves
        versitygw.program()


def main(what: str) -> int:
    try:
        fetch(what)
    except LocalError as error:
        print(f"dblog: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
