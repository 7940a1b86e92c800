"""Statements to PostgreSQL: catalogue, chunks, slots, watermarks."""
