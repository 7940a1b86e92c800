"""How much is measured: quick for a look, usual for `make bench`, full for what takes hours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Rounds of each measurement, and rows: of ours, of a peer that needs minutes for as many, of the odd tables."""

    name: str
    rounds: int
    rows: int
    peer_rows: int
    tiny: int
    wide: int
    long: int
    many: int
    seconds: float
    """Of a steady load that is watched."""
    lake_rows: int
    lake_seconds: float
    """Of a steady load whose rows are watched in the lake."""
    parallel: int
    """Rows of a dump on a cluster."""
    parallel_rounds: int


# Rows of 10 kB, and of 500 tables: of less than three full segments the rate would be that of the capture's start.
SCALES = {
    scale.name: scale
    for scale in (
        Scale("quick", 3, 60_000, 20_000, 5_000, 3_000, 20_000, 25_000, 6, 100_000, 45, 100_000, 1),
        Scale("usual", 5, 1_000_000, 200_000, 60_000, 40_000, 40_000, 2_000_000, 12, 10_000_000, 600, 2_000_000, 3),
        Scale(
            "full", 7, 10_000_000, 1_000_000, 200_000, 200_000, 50_000, 2_000_000, 60, 10_000_000, 600, 10_000_000, 1
        ),
    )
}
