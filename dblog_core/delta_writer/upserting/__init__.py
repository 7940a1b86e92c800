"""Changes of keys that become one commit of a table."""
