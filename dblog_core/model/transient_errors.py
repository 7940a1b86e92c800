"""Which errors of database servers pass: the same step may succeed later. The same for sources and outputs."""

from __future__ import annotations

MYSQL = frozenset(
    {
        *(1040, 1041, 1042, 1043, 1129, 1203, 1226),  # too many connections, of one user or host too
        *(1053, 1077, 1158, 1159, 1160, 1161, 2002, 2003, 2006, 2013, 2055, 4031),  # a server or a connection that ends
        *(1180, 1205, 1206, 1213, 1317, 1684, 1927, 1969, 3024),  # locks, deadlocks, kills, statement timeouts
        1114,  # a full disk
    }
)
"""Numbers of MySQL, MariaDB and the driver."""

POSTGRES = ("08", "25P03", "25P04", "40", "53", "57", "55006", "55P03", "58030")
"""Beginnings of SQLSTATEs."""
