"""Fetches all that the local stack runs from into the cache, and compiles the kernels (`make setup`); instant where it
is done."""

from __future__ import annotations

import sys

from dblog_core import compiled
from dblog_core.local import jars, packages
from dblog_core.local.errors import LocalError


def main() -> int:
    try:
        jars.jars()
        for package in packages.ALL:
            packages.tree(package)
        compiled.warm()
    except LocalError as error:
        print(f"dblog: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
