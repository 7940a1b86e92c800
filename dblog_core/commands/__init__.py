"""The commands of `dblog`: each turns arguments into a call of the engine, and its answer into text or JSON."""
