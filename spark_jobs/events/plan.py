"""What a merge applies, under the name that Spark jobs know it by; the command line plans the same without Spark."""

from dblog_core.lake.merge_plan import (
    MAX_BYTES,
    MAX_ROWS,
    Span,
    Work,
    from_dump,
    ghost_chunks,
    lacks_before,
    lacks_since,
    next_span,
    rewritten,
    stretches,
    works,
)

__all__ = [
    "MAX_BYTES",
    "MAX_ROWS",
    "Span",
    "Work",
    "from_dump",
    "ghost_chunks",
    "lacks_before",
    "lacks_since",
    "next_span",
    "rewritten",
    "stretches",
    "works",
]
