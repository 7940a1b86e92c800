"""Data files of a table are written again, beside the merges: small ones are joined, dead rows are left out."""
