"""Shares of a merge that executors carry, by buckets of keys."""
