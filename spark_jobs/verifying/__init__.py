"""Spark's side of a verification."""
