"""Values of MySQL and MariaDB, as the binlog and a SELECT give them."""
