"""Packages that the local servers need, fetched and unpacked."""
