"""The judge: hashes straight from the data files and the staged files, in Arrow, and what they say of each key.

Nothing of it is shared with the merge but the readers of files: a judge with the merge's own fold would prove less.

judge            the answer to a task            unequal_keys     the keys that an answer names
history          the last lines of a history beside its table
compared_table   lake and log of one table, and the sides of a task in parts that have room in memory
sides            lake, log and source, as far as some keys go
expected_state   the lake's rows with the staged events on top
unchanged_toast  where values are that the log has left out
superseded_events    which events no answer needs
staged_hashes    hashed events of a stretch of the log, each read once
staged_images    staged rows in the columns and types of the shape that is compared
hashed_events    hashed events of a table        lake_hashes      hashed rows of its data files
lake_columns     how a version of a lake table is read in that shape
exact_cast       values in another type          variant_values   values of the type VARIANT beside their texts
key_buckets      rows apart by key, on the local disk             key_numbers      keys as small numbers
"""
