"""The judge: hashes of the data files and of the staged files, in Arrow, and what they say of each key.

It shares with the merge the readers of files, the spool, the buckets of keys and the encoder of VARIANTs. Its fold and
its shaping of rows are its own: a judge with those of the merge would prove less.

judge            the verdict of a comparison         comparison       a comparison, and its verdict
history_comparison   the last lines of a history and its table
compared_table   lake and log of one table, and the sides of a comparison in parts that fit into memory
sides            lake, log and source, as far as some keys go
expected_state   the lake's rows with the staged events on top, and events that no answer needs
value_origins    where values are that the log has left out
staged_hashes    hashed events of a stretch of the log, each read once
staged_images    staged rows in the columns and types of the shape that is compared
lake_hashes      hashed rows of the lake's data files
lake_columns     how a version of a lake table is read in that shape
hashed_rows      hashed rows and events in columns   bucketed_rows    rows apart by key, on the local disk
exact_values     values in the types of the shape, and what they lack
"""
