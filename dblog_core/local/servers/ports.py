"""Free ports, chosen once and remembered beside the data, so that a restart finds its clients again."""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
_BELOW_EPHEMERAL = range(15_000, 32_000)  # a port of the ephemeral range may be some connection's own at a restart
_chance = random.SystemRandom()  # not the seeded generator: parallel test runs of one seed must differ


def remember_port(file: Path) -> int:
    """The port in the file; chosen and written where the file is missing."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{find_free_port()}\n")
    return int(file.read_text())


def find_free_port() -> int:
    """A port that nothing listens on."""
    while True:
        # By chance: several test runs look for ports at one time.
        port = _chance.choice(_BELOW_EPHEMERAL)
        with socket.socket() as probe:
            # As servers do: a port whose last connection has just closed counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue  # taken: the next one
            return port
