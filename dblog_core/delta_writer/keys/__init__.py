"""Which row of which file has a key: hashes of keys, and an index of them in memory and on disk."""
