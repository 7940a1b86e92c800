"""Data files of a table are written again beside merges: joined, put in the order of the key, freed of dead rows."""
