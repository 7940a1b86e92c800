"""Upkeep: schedule, retention, disk usage."""
