"""The binlog: stream, framing, events, rows, transactions."""
