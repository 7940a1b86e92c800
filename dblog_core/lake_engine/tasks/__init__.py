"""Tasks that change the lake beside merges: maintenance, replay, rebuild, reset."""
