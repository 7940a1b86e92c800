"""Statements to MySQL and MariaDB: catalogue, chunks, watermarks."""
