"""What a catalogue says of rows that change without the log: a stamp of each table, for two looks to compare."""
