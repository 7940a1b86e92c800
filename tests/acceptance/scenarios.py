"""Which test runs which command: `test_commands.py` compares all of them with `dblog --help`."""

from __future__ import annotations

SCENARIOS: dict[str, frozenset[str]] = {
    "test_every_command_of_a_session": frozenset(
        {
            *("config schema", "check", "capture", "dump", "work", "dumps", "pause", "resume", "cancel", "set"),
            *("signals", "serve", "merge", "replay", "rebuild", "reset", "maintain", "verify", "log", "relay"),
            *("status", "metrics", "cut", "schema"),
        }
    ),
    "test_a_damaged_line_of_a_history_is_named_and_a_reset_writes_it_again": frozenset({"verify", "reset", "merge"}),
    "test_a_held_table_is_accepted_as_it_is_now": frozenset({"rules accept", "check", "log"}),
    "test_a_lake_goes_on_over_another_staging": frozenset({"lake adopt", "merge", "capture"}),
    "test_a_merge_gets_what_only_the_source_has": frozenset({"schema accept", "reset", "merge"}),
    "test_dumps_wait_for_a_process_with_access_to_the_source": frozenset({"work", "reset", "merge"}),
}
"""Test function -> the commands that it runs at least. The fixture `new_world` checks it after the test."""
