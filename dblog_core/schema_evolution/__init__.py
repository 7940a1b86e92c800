"""How the shape of a table changes: compatibility, renames, versions."""
