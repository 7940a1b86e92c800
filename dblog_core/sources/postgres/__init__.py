"""PostgreSQL 15 and later: logical decoding through psycopg2's replication connection, chunks through COPY."""
