"""What a change of rows in statement form may have changed: the tables that it names, and those that they reach."""
