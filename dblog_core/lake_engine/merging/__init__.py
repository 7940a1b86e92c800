"""The merge of staged events into lake tables, exactly once."""
