"""What each of our sessions sets, whatever the server gives to new sessions (SET GLOBAL, init_connect), and why.

Left out, because our statements neither end nor answer otherwise by them: settings of plans and buffers, of what the
server writes into its own files, of tables that are made (our one names its engine and character set), of the protocol
(the driver does not ask for session state), and MariaDB's `system_versioning_asof`: versioned tables are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LARGEST = "18446744073709551615"
LOCK_SECONDS = 86400
"""For which a statement waits for a lock of a table, where nothing else is said."""
SQL_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
"""No ANSI quotes, no *_ZERO_DATE modes, no Oracle's meanings: our statements mean one thing. A watermark table of
another engine than ours is refused, not made."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable, as SHOW VARIABLES prints its value. `at_least`: a larger number may stay."""

    name: str
    value: str
    why: str
    at_least: bool = False
    kind: str = ""
    """The only kind of server where it counts."""

    def holds(self, present: str) -> bool:
        """Whether a session with this value of the variable needs no change."""
        if self.at_least and present.isdigit():
            return int(present) >= int(self.value)
        return present.upper() == self.value.upper()

    def assignment(self) -> str:
        """As it stands in a SET."""
        is_number = self.value.replace(".", "").isdigit()
        return f"{self.name} = {self.value if is_number else repr(self.value)}"


_EVERY_SERVER = (
    Setting("max_join_size", _LARGEST, "a SELECT that may read more rows ends in an error"),
    Setting("sql_big_selects", "ON", "the same; `max_join_size` sets it too"),
    Setting("sql_select_limit", _LARGEST, "a SELECT leaves out the rows after so many"),
    Setting(
        "completion_type", "NO_CHAIN", "a COMMIT begins the next transaction, whose SELECTs show old rows, or ends us"
    ),
)
_FIRST = {
    "mysql": (*_EVERY_SERVER, Setting("max_execution_time", "0", "a SELECT ends after so many milliseconds")),
    "mariadb": (
        *_EVERY_SERVER,
        Setting("max_statement_time", "0.000000", "a statement ends after so many seconds"),
        Setting("max_session_mem_used", "9223372036854775807", "a statement that needs more memory ends in an error"),
        Setting("tmp_disk_table_size", _LARGEST, "a SELECT that needs a larger temporary table ends in an error"),
    ),
}
"""Limits under which not even SHOW VARIABLES can be read. Each supported server of the kind knows them."""
_FIRST_OF_SOME = {
    "mysql": (),
    "mariadb": (
        Setting("max_tmp_session_space_usage", "0", "a SELECT that needs larger temporary files ends in an error"),
    ),
}
"""The same, of later versions."""

_SETTINGS = (
    # Limits: a statement of ours ends, or leaves something out.
    # The statements that set this list take two thousand bytes. One with very many keys ends in an error that names it,
    # and a row whose text the server cannot make is an error too (`row_hashes`).
    Setting("max_allowed_packet", "32768", "larger statements end in an error", at_least=True),
    # MariaDB refuses a sort whose buffer does not hold 15 of the longest sort keys.
    Setting("sort_buffer_size", "33554432", "rows too long for it cannot be sorted", at_least=True),
    # `sql.key_order` refuses keys that are longer: they would sort as equal, and a chunk leave some of them out.
    Setting("max_sort_length", "262144", "longer keys are sorted by their beginning only"),
    Setting("group_concat_max_len", "1048576", "longer results are cut", at_least=True),
    Setting("range_optimizer_max_mem_size", "8388608", "a list of many keys would read the whole table", at_least=True),
    Setting("in_predicate_conversion_threshold", "0", "a list of many keys would become a join"),
    Setting("lock_wait_timeout", str(LOCK_SECONDS), "a statement waits no longer for a lock of a table"),
    Setting("innodb_lock_wait_timeout", "50", "a watermark waits no longer for its row", at_least=True),
    Setting("wait_timeout", "28800", "the server ends a session that was idle for so long", at_least=True),
    Setting("net_read_timeout", "30", "the server ends a session whose statement comes slowly", at_least=True),
    Setting("net_write_timeout", "60", "the server ends a session that takes its rows slowly", at_least=True),
    Setting("idle_transaction_timeout", "0", "the server ends a session that is idle in a transaction"),
    Setting("idle_readonly_transaction_timeout", "0", "the same for one that has written nothing"),
    Setting("idle_write_transaction_timeout", "0", "the same for one that has written"),
    # Forms of values and names.
    Setting("sql_mode", SQL_MODE, "quotes, operators, padding and dates mean something else"),
    Setting("time_zone", "+00:00", "TIMESTAMPs are printed in this zone"),
    Setting("character_set_client", "utf8mb4", "our statements are in it"),
    Setting("character_set_connection", "utf8mb4", "texts in our statements are in it"),
    Setting("character_set_results", "utf8mb4", "values are sent in it"),
    Setting("collation_connection", "utf8mb4_general_ci", "texts that are of no column are compared by it"),
    Setting("lc_messages", "en_US", "some messages are told apart by their words"),
    Setting("lc_time_names", "en_US", "names of days and months are of this language"),
    Setting("default_week_format", "0", "weeks are counted by it"),
    Setting("div_precision_increment", "4", "quotients have so many digits more"),
    Setting("windowing_use_high_precision", "ON", "sums over windows are rounded"),
    Setting("default_regex_flags", "", "regular expressions mean something else"),
    Setting("old_mode", "", "MariaDB behaves as an older version"),
    Setting("sql_quote_show_create", "ON", "names in definitions of tables have no quotes"),
    Setting("show_create_table_verbosity", "OFF", "definitions of tables have other words"),
    Setting("show_create_table_skip_secondary_engine", "OFF", "definitions of tables lack words"),
    Setting("terminology_use_previous", "NONE", "states and commands have their former names"),
    Setting("sql_if_exists", "OFF", "statements that make the watermark table mean something else"),
    # Which rows and which tables a SELECT shows.
    Setting("autocommit", "ON", "all SELECTs would be of one snapshot, and a watermark would not be logged"),
    Setting("transaction_isolation", "REPEATABLE-READ", "a SELECT shows what is rolled back later, or waits for locks"),
    Setting("tx_isolation", "REPEATABLE-READ", "the same under MariaDB's former name"),
    Setting("transaction_read_only", "OFF", "no watermark can be written"),
    Setting("tx_read_only", "OFF", "the same under MariaDB's former name"),
    Setting("sql_auto_is_null", "OFF", "IS NULL finds the row that was inserted last"),
    Setting("sql_safe_updates", "OFF", "statements without a key end in an error"),
    Setting("query_cache_type", "OFF", "a SELECT shows rows as they were"),
    Setting("use_secondary_engine", "OFF", "a SELECT shows the rows of a copy"),
    Setting("wsrep_dirty_reads", "OFF", "a node that has lost its cluster shows old rows"),
    Setting("information_schema_stats_expiry", "0", "estimates are those of a day ago"),
    Setting(
        "show_gipk_in_create_table_and_information_schema", "ON",
        "a key that MySQL has made by itself is in its log, and would not be in its catalogue",
    ),
    # A table whose definition is locked is missing in MariaDB's catalogue, and only a warning says so.
    Setting("max_error_count", "65535", "warnings beyond so many are not kept", at_least=True, kind="mariadb"),
    Setting("sql_notes", "ON", "notes are not kept"),
    Setting("sql_log_bin", "ON", "watermarks are not logged"),
)  # fmt: skip


def first(kind: str) -> tuple[Setting, ...]:
    """Those that come before all other statements of a session."""
    return _FIRST[kind]


def first_of_some(kind: str) -> tuple[Setting, ...]:
    """Those that come before too, where the server knows them."""
    return _FIRST_OF_SOME[kind]


def deviating(kind: str, present: Mapping[str, str], lock_seconds: float | None) -> Iterator[Setting]:
    """The settings that a session with the variables `present` lacks. A variable that the server does not list is
    unknown to it. `lock_seconds`: for which statements wait for locks of tables, at least one second."""
    for setting in _SETTINGS:
        if setting.kind not in ("", kind) or setting.name not in present:
            continue
        if setting.name == "lock_wait_timeout" and lock_seconds is not None:
            setting = Setting(setting.name, str(max(1, round(lock_seconds))), setting.why)
        if not setting.holds(present[setting.name]):
            yield setting


def names() -> frozenset[str]:
    """The variables that are set on some server."""
    return frozenset(
        setting.name for group in (*_FIRST.values(), *_FIRST_OF_SOME.values(), _SETTINGS) for setting in group
    )
