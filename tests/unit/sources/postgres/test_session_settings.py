"""Which settings a session of PostgreSQL lacks."""

from __future__ import annotations

from dblog_core.sources.postgres import session_settings
from dblog_core.sources.postgres.session_settings import AT_START


def test_settings_that_the_environment_or_a_pooler_has_changed_are_set_again() -> None:
    present = {**AT_START, "TimeZone": "Europe/Berlin"}
    assert list(session_settings.deviating(present, AT_START)) == [("TimeZone", "UTC")]


def test_a_setting_that_the_server_does_not_know_is_passed_over() -> None:
    assert list(session_settings.deviating(dict(AT_START), AT_START)) == []
    newer = {**AT_START, "transaction_timeout": "1"}
    assert list(session_settings.deviating(newer, AT_START)) == [("transaction_timeout", "0")]


def test_a_timeout_of_the_log_is_raised_and_never_lowered() -> None:
    for present, expected in (("1", [("wal_sender_timeout", "60000")]), ("0", []), ("300000", [])):
        assert list(session_settings.deviating({**AT_START, "wal_sender_timeout": present}, AT_START)) == expected


def test_the_lock_timeout_of_a_reader_is_its_own() -> None:
    at_start = {**AT_START, "lock_timeout": "2000"}
    assert list(session_settings.deviating(dict(at_start), at_start)) == []
