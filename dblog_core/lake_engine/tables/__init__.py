"""Delta tables: log, types, alterations, compaction."""
