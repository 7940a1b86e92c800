"""Values of PostgreSQL, as text and in binary form."""
