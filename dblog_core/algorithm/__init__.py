"""DBLog's algorithm without a server: windows, placed chunks, a task's progress. The checker explores it."""
