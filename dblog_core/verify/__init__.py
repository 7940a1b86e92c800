"""Verification: whether the lake is the source, row by row, while both change; and the repair of what differs.

Theory of operation. A worker writes a low watermark, SELECTs keys and row hashes that the server computes, and writes a
high watermark. The capture records where in the log that lies (`Probed`): the SELECT saw every event up to offset
`since`, and none above `offset`. On MySQL and MariaDB `since` is the place of the low watermark; on PostgreSQL it lies
before every event that is logged and that the SELECT's own snapshot does not see. Where the capture cannot tell, the
SELECT is done again. So what the source has said of a key holds at every place between, unless the key has an event
there.

The other side is the rows that the lake is to hold at the last of these places: one Delta version of the table, pinned
before the first watermark, with the events that are staged since folded on top as a merge would
(`judge.expected_state`). So no merge has to keep pace, and the staged log is proven as well as the lake. Those rows are
hashed in the same way (`dblog_core.rows.row_hashes`), by Arrow in this process, and joined by key: only keys and hashes
move, the source is read once, and no order of keys is needed.

A key that changed between is equal if the source showed any state that the log led it through there. Otherwise it is
undecided, and read again by its key, in a window that is shorter by far. A key that differs is read again too: it
counts only if two readings, each of which decides, find it different. A key that is undecided after `ROUNDS` readings
is named as that; it is no proof of equality.

verification      all of it                              table_comparison  one table, from the pin to its report
pinned_version    the version of the lake to begin with  source_reader     one SELECT between its watermarks
window_positions  where the capture says that they are   judge             the verdict: a package
suspects          pure: which keys are read again        sample            which rows are drawn, and what they say
compared_columns  pure: which columns are not compared   unreadable_values  rows that cannot be read as they are staged
certificate       what was found, to be checked later    certificate_check  the check
repair            dumps of what differs, merged          report            what users get
last_results      what `status` shows of earlier runs    slices            the full state in N parts
slice_times       which slice waited longest
"""
