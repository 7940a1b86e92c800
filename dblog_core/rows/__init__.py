"""Rows in Arrow's form: column rules, staged types, hashes, compiled kernels."""
