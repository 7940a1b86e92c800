"""Delta tables written by their own protocol, without Spark: mark the old rows in deletion vectors, append the new.

The reference is delta-io/delta's PROTOCOL.md. From the log to a commit:

  files.py        the table's files on storage
  features.py     which tables may be written so; any other is refused, with the reason
  shape.py        the table's columns, from the schema in its log
  checkpoints/    checkpoints of the log, read and written
  snapshot.py     the live files of a version, kept up commit by commit
  bitmaps.py      sets of row numbers, and their RoaringBitmapArray form
  vectors.py      deletion vectors: their files and descriptors
  statistics.py   minima, maxima and null counts of a file
  data_file.py    a Parquet file of new rows
  stored_rows.py  rows of data files, by their numbers
  key_hash.py     keys as 64 or 128 bits
  key_runs.py     sorted runs of keys, in memory or mapped from disk
  key_index.py    key -> file and row: a cache that the snapshot rules
  changes.py      what is to become of keys, and what became of them
  order_guard.py  which changes win against the rows that are there
  unchanged_toast.py  values that the log left out, from the table's own rows
  commit.py       one version of the log, created if absent
  table_log.py    a table's newest version, and one commit of it
  open_table.py   with its vectors and its index
  upsert.py       changes of a table become one commit, exactly once
  deletes.py      rows that go, whatever their keys are
  append.py       rows appended to a table that nothing is looked up in
  rewriting/      small files joined, mixed ones put in order, dead rows left out, while others change the table
"""
