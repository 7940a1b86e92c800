"""Which variables of MySQL and MariaDB a session sets."""

from __future__ import annotations

from dblog_core.sources.mysql import session_settings
from dblog_core.sources.mysql.session_settings import Setting


def _names(kind: str, present: dict[str, str], lock_seconds: float | None = None) -> dict[str, str]:
    return {s.name: s.value for s in session_settings.deviating(kind, present, lock_seconds)}


def test_a_variable_that_the_server_does_not_list_is_not_set() -> None:
    assert _names("mysql", {}) == {}
    assert _names("mysql", {"sql_safe_updates": "ON"}) == {"sql_safe_updates": "OFF"}


def test_a_value_that_is_right_or_larger_than_needed_stays() -> None:
    right = {"sql_notes": "ON", "sort_buffer_size": "33554432", "wait_timeout": "31536000", "time_zone": "+00:00"}
    assert _names("mysql", right) == {}
    assert _names("mysql", {"wait_timeout": "1"}) == {"wait_timeout": "28800"}


def test_only_mariadb_tells_of_missing_tables_by_warnings() -> None:
    """MySQL lets no plain account set this one, and nothing is read by it there."""
    assert _names("mysql", {"max_error_count": "0"}) == {}
    assert _names("mariadb", {"max_error_count": "0"}) == {"max_error_count": "65535"}


def test_a_session_waits_for_locks_as_long_as_its_reader_says() -> None:
    assert _names("mysql", {"lock_wait_timeout": "1"}) == {"lock_wait_timeout": "86400"}
    assert _names("mysql", {"lock_wait_timeout": "86400"}, 0.2) == {"lock_wait_timeout": "1"}
    assert _names("mysql", {"lock_wait_timeout": "5"}, 5.0) == {}


def test_numbers_are_assigned_as_numbers() -> None:
    assert Setting("a", "0.000000", "").assignment() == "a = 0.000000"
    assert Setting("a", "+00:00", "").assignment() == "a = '+00:00'"
    assert Setting("a", "", "").assignment() == "a = ''"


def test_no_variable_stands_twice() -> None:
    groups = [*session_settings._FIRST.values(), *session_settings._FIRST_OF_SOME.values()]
    for group in (*groups, session_settings._SETTINGS):
        assert len({setting.name for setting in group}) == len(group)
    assert all(setting.why for group in (*groups, session_settings._SETTINGS) for setting in group)
