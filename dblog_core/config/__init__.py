"""The configuration: its sections, how its file is read, and what is wrong with one."""
