"""What Spark does of a merge: works that the driver does not fold, and tables that it does not write."""
