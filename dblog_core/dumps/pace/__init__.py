"""How fast a worker reads: its limits, and the load of the source."""
