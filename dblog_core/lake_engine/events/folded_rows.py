"""Many events of a key become one folded row: what the span as a whole does to that key's row.

A folded row has `key`, `op`, `offset`, `position`, `commit_time`, `origin` (those of the key's last event), `inserted`,
`unchanged_toast` and `row`. Its op is PUT, DELETE, or WITHHOLD: the row lives, and a value of it is known to nobody.
`unchanged_toast` names columns that keep the lake's value: every event since the last that set them left them out.
`inserted`: the log itself has the row's birth in this span, so it is written even where it equals the lake's row.
"""

PUT = "p"
WITHHOLD = "w"
