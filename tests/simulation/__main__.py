"""Runs seeds: `python -m tests.simulation FIRST [LAST]`; one seed prints its trace where it fails.

Prints one JSON line of counts at the end. The exit code is 1 at the first seed that fails.
"""

from __future__ import annotations

import hashlib
import logging
import sys

import orjson

from tests.simulation.oracle import judge
from tests.simulation.world import World

_SHOWN = 150  # steps of a failing run


def main(arguments: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    first = int(arguments[0])
    last = int(arguments[1]) if len(arguments) > 1 else first
    total: dict[str, int] = {}
    for seed in range(first, last + 1):
        world = World(seed)
        try:
            world.run(judge)
        except AssertionError as error:
            steps = "\n".join(world.simulation.trace[-_SHOWN:])
            sys.stdout.write(f"{steps}\n\nseed {seed} ({world.kind}): {error}\n")
            sys.stdout.write(f"again: .venv/bin/python -m tests.simulation {seed}\n")
            return 1
        for name, number in world.simulation.counts.items():
            total[name] = total.get(name, 0) + number
    digest = hashlib.blake2b("\n".join(world.simulation.trace).encode(), digest_size=16).hexdigest()
    sys.stdout.write(orjson.dumps({"counts": total, "last trace": digest}).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
