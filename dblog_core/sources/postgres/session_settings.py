"""What each of our sessions sets, whatever server, database and role give to new sessions, and why.

It comes above postgresql.conf, ALTER SYSTEM, ALTER DATABASE and ALTER ROLE, and above the variables of the environment
that libpq reads (PGTZ, PGDATESTYLE, PGOPTIONS). Left out, because our statements neither end nor answer otherwise by
them: settings of plans and memory, of what the server writes into its own log, of VACUUM, and of the making of tables
that are not ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

FORMS = {
    "search_path": "pg_catalog",  # type names and regclass values come schema-qualified, whoever asks
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "timezone_abbreviations": "Default",
    "bytea_output": "hex",
    "extra_float_digits": "1",  # the shortest text that reads back as the same float
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "xmlbinary": "base64",
    "xmloption": "content",
    "array_nulls": "on",  # else NULL in a bound array is a text
    "transform_null_equals": "off",
    "standard_conforming_strings": "on",  # else a backslash in a bound value is an escape
    "quote_all_identifiers": "off",  # names of types are compared
}
"""Values have one text form only under fixed settings: log and chunk connections share these."""

_LIMITS = {
    "statement_timeout": "0",  # a chunk's SELECT, or making a slot, ends
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",  # a session that waits for its next chunk ends
    "tcp_user_timeout": "0",  # a session whose packets are acknowledged late ends
    "exit_on_error": "off",  # the first error ends the session
    "gin_fuzzy_search_limit": "0",  # a SELECT by a GIN index leaves rows out, by chance
    "row_security": "off",  # a policy that would hide rows from a chunk raises an error instead
    "default_transaction_read_only": "off",  # no watermark can be written
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_tablespace": "",  # the watermark table's, like the next
    "default_table_access_method": "heap",
    "client_min_messages": "notice",
    "jit": "off",  # compiling a plan takes longer than reading a chunk
}
AT_START = {**FORMS, **_LIMITS}
"""Every supported server knows these; they are there before a session's first statement."""

TRANSACTION_TIMEOUT = "transaction_timeout"
_OF_SOME = {
    TRANSACTION_TIMEOUT: "0",
    "restrict_nonsystem_relation_kind": "",  # tables and views of some kinds cannot be read
    # Not of ours to set, but for a superuser: damaged pages would be read as pages without rows.
    "zero_damaged_pages": "off",
    "ignore_checksum_failure": "off",
}
"""Those of some versions, and those that most users may only look at."""
_AT_LEAST = {"wal_sender_timeout": 60_000}
"""In milliseconds; 0 is none. Below it the server may end a log that is read in order."""

QUESTION = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY(%s)"
NAMES = (*AT_START, *_OF_SOME, *_AT_LEAST)


def deviating(present: Mapping[str, str], at_start: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The settings, with the values to set, that a session lacks; those that the server does not list are unknown to
    it. `present`: by `QUESTION`; `at_start`: what the session was opened with."""
    for name, value in {**at_start, **_OF_SOME}.items():
        if name in present and present[name] != value:
            yield name, value
    for name, least in _AT_LEAST.items():
        if 0 < int(present.get(name, 0)) < least:
            yield name, str(least)
