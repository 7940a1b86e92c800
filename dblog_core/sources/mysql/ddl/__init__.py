"""What statements in the binlog say of tables."""
