"""What the text of a type's values depends on: the types that it is made of, down to the server's own.

An array prints its elements, a domain its base, a range its bounds, a composite its attributes, and an enum its labels.
RENAME VALUE, ADD ATTRIBUTE and DROP ATTRIBUTE change that text in all rows, without a row event and without a new file
of a table. A label may be renamed and get its name back; what else is described here cannot: an attribute's number is
never used again, and no statement gives a type that is in use another base, element, bound or attribute type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from dblog_core.model.table_stamp import BUILT_IN, TypeStamp
from dblog_core.sources.postgres.sql.connection import Connection, rows

# A composite prints its attributes by their numbers, so their names do not count. The function that prints a type is
# replaced when its extension is updated; pg_upgrade keeps the ids of types, and not those of functions.
_TYPES = f"""
    WITH RECURSIVE part(root, type) AS (
        SELECT given.oid, given.oid FROM unnest(%s::oid[]) AS given(oid)
        UNION
        SELECT part.root, inner_.type FROM part JOIN pg_type t ON t.oid = part.type CROSS JOIN LATERAL (
            SELECT unnest(ARRAY[t.typbasetype, t.typelem])
            UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
            UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
            UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS inner_(type)
        WHERE inner_.type >= {BUILT_IN}
    ), described AS (
        SELECT t.oid, t.typtype = 'd' AS is_domain, t.typbasetype::bigint AS base,
            concat_ws(' ', t.oid, t.typtype, t.typbasetype, t.typtypmod, t.typelem, t.typdelim, p.probin,
                p.prosrc, (SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid),
                (SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid),
                (SELECT string_agg(concat_ws(':', a.attnum, a.atttypid, a.atttypmod, a.attisdropped), ','
                                   ORDER BY a.attnum)
                 FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)) AS form,
            e.labels, e.writes
        FROM pg_type t JOIN pg_proc p ON p.oid = t.typoutput LEFT JOIN LATERAL (
            SELECT json_object_agg(e.oid, e.enumlabel) AS labels, json_object_agg(e.oid, e.xmin::text) AS writes
            FROM pg_enum e WHERE e.enumtypid = t.oid AND t.typtype = 'e') e ON true
        WHERE t.oid IN (SELECT type FROM part)
    )
    SELECT part.root::bigint, part.type::bigint, d.is_domain, d.base, d.form, d.labels, d.writes
    FROM part JOIN described d ON d.oid = part.type
"""


@dataclass(frozen=True, slots=True)
class _Part:
    """One type that is reached from another. `form`: what it consists of, as one text."""

    is_domain: bool
    base: int
    form: str
    labels: dict[str, str] | None
    label_writes: dict[str, str] | None


def stamp_types(connection: Connection, types: Collection[int]) -> dict[int, TypeStamp]:
    """The stamp of each type, by its id. One look at the catalogue, and none where all types are the server's own."""
    own = sorted(type_id for type_id in types if type_id >= BUILT_IN)
    parts: dict[int, dict[int, _Part]] = {root: {} for root in own}
    for root, type_id, *description in rows(connection, _TYPES, (own,)) if own else ():
        parts[root][type_id] = _Part(*description)
    stamps = {type_id: TypeStamp(type_id, "") for type_id in types if type_id < BUILT_IN}
    return stamps | {root: _stamp_type(root, of_root) for root, of_root in parts.items()}


def _stamp_type(root: int, parts: dict[int, _Part]) -> TypeStamp:
    """Domains above the base print as it does, and count for nothing. Of a type that was dropped a moment ago there is
    no part: then no later stamp is like this one."""
    base = root
    while base in parts and parts[base].is_domain:
        base = parts.pop(base).base
    labels = {label: text for part in parts.values() for label, text in (part.labels or {}).items()}
    writes = {label: written for part in parts.values() for label, written in (part.label_writes or {}).items()}
    form = "\n".join(parts[type_id].form for type_id in sorted(parts))
    digest = hashlib.blake2b(form.encode(), digest_size=8).hexdigest() if parts else ""
    return TypeStamp(base, digest, labels, writes, is_enum=bool(labels) and len(parts) == 1)
