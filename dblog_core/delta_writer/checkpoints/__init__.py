"""Checkpoints of a table's log, from which readers begin: read, and written."""
