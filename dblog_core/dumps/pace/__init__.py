"""How fast a worker reads: its limits, and what the source bears."""
