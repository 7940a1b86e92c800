"""The lake's side of a comparison without Spark: hashes straight from the data files and the staged files, in Arrow.

It answers what fits the memory of this process, and what Arrow and Spark print alike; what does not is `NotDirect`, and
Spark is asked. The answers are those of `spark_jobs.verifying.compare_hashes`, and tests hold both against each other.

lake_hashes      hashed rows of a table's data files, kept from one reading of the source to the next
hashed_events    hashed events of a table
staged_hashes    those of a stretch of the log, each of which is read once, of all keys or of some
superseded_events    which of them no answer needs
key_numbers      keys as small numbers
expected_state   the lake's rows with the staged events on top
judge            the answer to a task
"""
