"""The vocabulary: tables, events, values, watermarks, filters. No input or output."""
