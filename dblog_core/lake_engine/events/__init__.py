"""Staged events, and how they fold to the newest row of each key."""
