"""What MariaDB's versions do differently, as tests expect it."""

from __future__ import annotations

import re

from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.server import DatabaseServer


def logs_generated_columns(server: DatabaseServer) -> bool:
    """MariaDB leaves them out of its row events in versions after 11.4."""
    return not _is_mariadb_from(server, (11, 5))


def makes_a_certificate(server: DatabaseServer) -> bool:
    """Whether a server without TLS options has a certificate that it has made and signed itself."""
    return server.kind == "mysql" or _is_mariadb_from(server, (11, 4))


def _is_mariadb_from(server: DatabaseServer, version: tuple[int, int]) -> bool:
    if not isinstance(server, MariadbServer):
        return False
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            parts = re.match(r"(\d+)\.(\d+)", cursor.fetchone()[0])
    finally:
        connection.close()
    assert parts is not None
    return (int(parts[1]), int(parts[2])) >= version
