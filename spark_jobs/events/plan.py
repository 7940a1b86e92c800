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
    last_unlogged_rewrite,
    next_span,
    plan_works,
    split_at_renames,
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
    "last_unlogged_rewrite",
    "next_span",
    "plan_works",
    "split_at_renames",
]
