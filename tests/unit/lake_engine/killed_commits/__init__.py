"""Commits of each kind by a process that dies at any of its writes, or that loses the answer to one."""
