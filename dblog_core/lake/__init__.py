"""What is known of the lake without Spark: its status, cuts, plans and tasks."""
