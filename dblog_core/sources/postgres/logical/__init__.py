"""The replication slot: stream, pgoutput, wal2json, streamed transactions."""
