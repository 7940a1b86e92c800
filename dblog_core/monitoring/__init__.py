"""What people and systems watch: status, metrics, preflight checks."""
