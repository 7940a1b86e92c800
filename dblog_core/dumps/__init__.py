"""Dumps: requests, their state, and the workers that read chunks."""
