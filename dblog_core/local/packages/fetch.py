"""Fetches the servers and the browser of the local stack into the cache, and builds versitygw.

It imports Python's own library alone: `tools/setup` runs this module while pip fills .venv.
"""

from __future__ import annotations

import sys

from dblog_core.errors import LocalError
from dblog_core.local.packages import trees, versitygw


def fetch_all() -> None:
    """Instant where it is done. Raises LocalError."""
    for package in trees.ALL:
        trees.tree(package)
    if versitygw.can_be_built():  # else moto serves
        versitygw.program()


def main() -> int:
    try:
        fetch_all()
    except LocalError as error:
        print(f"dblog: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
