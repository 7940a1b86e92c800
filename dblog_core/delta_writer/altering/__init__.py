"""Columns and properties of a table are changed by commits of `metaData` and `protocol` alone: no data file is read."""
