"""DBLog on Airflow and Spark: capture a database's log and its full state, interleaved by watermarks."""

__version__ = "0.1.0"
