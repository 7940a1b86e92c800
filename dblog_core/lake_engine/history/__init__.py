"""The history of rows beside the lake's tables."""
