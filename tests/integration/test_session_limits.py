"""Limits and formats that a server gives to every new session: no session of ours works under them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import work_loop
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import SourceRefused
from dblog_core.model.filters import Filter
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql import session_settings
from dblog_core.sources.mysql.sql import connection as mysql
from dblog_core.sources.postgres import session_settings as settings
from dblog_core.sources.postgres.sql import connection as postgres
from dblog_core.staging.reader import lines
from tests.fix_servers import Database

pytestmark = [pytest.mark.in_turn]
both = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)

EVERY_MYSQL = {
    "max_join_size": "1",
    "sql_select_limit": "2",
    "completion_type": "1",
    "sql_safe_updates": "1",
    "sql_auto_is_null": "1",
    "sql_buffer_result": "1",
    "max_sort_length": "64",
    "group_concat_max_len": "4",
    "sort_buffer_size": "32768",
    "tmp_table_size": "1024",
    "max_heap_table_size": "16384",
    "lock_wait_timeout": "1",
    "innodb_lock_wait_timeout": "1",
    "wait_timeout": "1",
    "interactive_timeout": "1",
    "net_read_timeout": "1",
    "net_write_timeout": "1",
    "sql_mode": "'ANSI,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,NO_UNSIGNED_SUBTRACTION'",
    "time_zone": "'+05:30'",
    "character_set_client": "'latin1'",
    "character_set_connection": "'latin1'",
    "character_set_results": "'latin1'",
    "collation_connection": "'utf8mb4_bin'",
    "lc_messages": "'de_DE'",
    "lc_time_names": "'de_DE'",
    "default_week_format": "3",
    "div_precision_increment": "0",
    "sql_quote_show_create": "0",
    "autocommit": "0",
    "sql_notes": "0",
    "sql_warnings": "1",
    "max_error_count": "0",
    "big_tables": "1",
    "foreign_key_checks": "0",
    "unique_checks": "0",
    "low_priority_updates": "1",
    "max_seeks_for_key": "1",
    "max_length_for_sort_data": "4",
    "read_rnd_buffer_size": "1",
    "join_buffer_size": "128",
    "eq_range_index_dive_limit": "1",
    "optimizer_search_depth": "1",
    "optimizer_prune_level": "0",
    "optimizer_switch": "'index_condition_pushdown=off,derived_merge=off,semijoin=off,index_merge=off'",
    "updatable_views_with_limit": "0",
    "session_track_state_change": "1",
    "session_track_system_variables": "'*'",
    "session_track_transaction_info": "'CHARACTERISTICS'",
    "init_connect": "'SET @@completion_type = 1, @@time_zone = \\'-11:00\\', timestamp = 1'",
}
MYSQL = {
    **EVERY_MYSQL,
    "max_execution_time": "1",
    "transaction_isolation": "'READ-UNCOMMITTED'",
    "transaction_read_only": "1",
    "information_schema_stats_expiry": "86400",
    "show_create_table_verbosity": "1",
    "show_gipk_in_create_table_and_information_schema": "0",
    "explain_format": "'TREE'",
    "explain_json_format_version": "1",
    "end_markers_in_json": "1",
    "parser_max_mem_size": "10000000",
    "range_optimizer_max_mem_size": "1",
    "windowing_use_high_precision": "0",
    "terminology_use_previous": "'BEFORE_8_0_26'",
    "block_encryption_mode": "'aes-256-cbc'",
    "print_identified_with_as_hex": "1",
    "sql_require_primary_key": "1",
    "cte_max_recursion_depth": "1",
    "default_collation_for_utf8mb4": "'utf8mb4_general_ci'",
    "resultset_metadata": "'NONE'",
    "session_track_gtids": "'ALL_GTIDS'",
    "internal_tmp_mem_storage_engine": "'MEMORY'",
}
MARIADB = {
    **EVERY_MYSQL,
    "sql_mode": "'ORACLE,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,EMPTY_STRING_IS_NULL'",
    "max_statement_time": "0.000001",
    "max_session_mem_used": "262144",  # of 8192, the least, every second server of 10.11 crashes
    "tx_isolation": "'READ-UNCOMMITTED'",
    "tx_read_only": "1",
    "tmp_disk_table_size": "1024",
    "max_tmp_session_space_usage": "65536",
    "idle_transaction_timeout": "1",
    "idle_readonly_transaction_timeout": "1",
    "idle_write_transaction_timeout": "1",
    "in_predicate_conversion_threshold": "2",
    "old_mode": "'ZERO_DATE_TIME_CAST,NO_PROGRESS_INFO'",
    "default_regex_flags": "'DOTALL,EXTENDED'",
    "note_verbosity": "''",
    "query_cache_type": "1",
    "wsrep_dirty_reads": "1",
    "max_recursive_iterations": "1",
    "sql_if_exists": "1",
    "system_versioning_asof": "'2020-01-01 00:00:00'",
    "optimizer_use_condition_selectivity": "1",
    "join_cache_level": "0",
    "use_stat_tables": "'NEVER'",
    "standard_compliant_cte": "0",
    "character_set_collations": "'utf8mb4=utf8mb4_bin'",
}
_UNTOUCHED = {
    "mysql": """
        auto_increment_increment auto_increment_offset binlog_direct_non_transactional_updates binlog_format
        binlog_row_image binlog_row_value_options binlog_rows_query_log_events binlog_transaction_compression
        binlog_transaction_compression_level_zstd bulk_insert_buffer_size character_set_database
        character_set_filesystem character_set_server collation_database collation_server connection_memory_chunk_size
        connection_memory_limit default_storage_engine default_table_encryption default_tmp_storage_engine
        enable_cascade_triggers enable_secondary_engine_statistics error_count explicit_defaults_for_timestamp
        external_table_secondary_storage_engine external_table_storage_engine external_user
        generated_random_password_length global_connection_memory_tracking group_replication_consistency gtid_next
        gtid_owned histogram_generation_max_mem_size identity immediate_server_version innodb_ddl_buffer_size
        innodb_ddl_threads innodb_ft_enable_stopword innodb_ft_user_stopword_table innodb_parallel_read_threads
        innodb_strict_mode innodb_table_locks innodb_tmpdir insert_id keep_files_on_create last_insert_id
        long_query_time max_delayed_threads max_insert_delayed_threads max_points_in_geometry max_sp_recursion_depth
        max_user_connections min_examined_row_limit myisam_sort_buffer_size myisam_stats_method net_buffer_length
        net_retry_count old_alter_table optimizer_max_subgraph_pairs optimizer_trace optimizer_trace_features
        optimizer_trace_limit optimizer_trace_max_mem_size optimizer_trace_offset original_commit_timestamp
        original_server_version preload_buffer_size profiling profiling_history_size proxy_user pseudo_replica_mode
        pseudo_slave_mode pseudo_thread_id query_alloc_block_size query_prealloc_size rand_seed1 rand_seed2
        range_alloc_block_size rbr_exec_mode read_buffer_size require_row_format restrict_fk_on_non_standard_key
        secondary_engine_cost_threshold select_into_buffer_size select_into_disk_sync select_into_disk_sync_delay
        session_track_schema set_operations_buffer_size sql_generate_invisible_primary_key sql_log_off statement_id
        timestamp transaction_alloc_block_size transaction_allow_batching transaction_prealloc_size warning_count
        xa_detach_on_prepare
        new show_old_temporals transaction_write_set_extraction
    """,
    "mariadb": """
        alter_algorithm analyze_max_length analyze_sample_percentage aria_repair_threads aria_sort_buffer_size
        aria_stats_method binlog_alter_two_phase binlog_annotate_row_events check_constraint_checks
        column_compression_threshold column_compression_zlib_level column_compression_zlib_strategy
        column_compression_zlib_wrap deadlock_search_depth_long deadlock_search_depth_short deadlock_timeout_long
        deadlock_timeout_short default_master_connection enforce_storage_engine expensive_subquery_limit gtid_domain_id
        gtid_seq_no histogram_size histogram_type in_transaction innodb_compression_default
        innodb_default_encryption_key_id innodb_snapshot_isolation join_buffer_space_limit last_gtid
        log_disabled_statements log_queries_not_using_indexes log_slow_admin_statements log_slow_always_query_time
        log_slow_disabled_statements log_slow_filter log_slow_max_warnings log_slow_min_examined_row_limit
        log_slow_query log_slow_query_time log_slow_rate_limit log_slow_slave_statements log_slow_verbosity
        log_warnings max_relay_log_size max_rowid_filter_size max_tmp_tables mhnsw_default_distance mhnsw_default_m
        mhnsw_ef_search mrr_buffer_size myisam_repair_threads new_mode old old_passwords
        optimizer_adjust_secondary_key_costs optimizer_extra_pruning_depth optimizer_join_limit_pref_ratio
        optimizer_max_sel_arg_weight optimizer_max_sel_args optimizer_scan_setup_cost
        optimizer_selectivity_sampling_limit optimizer_where_cost progress_report_time query_cache_strip_comments
        query_cache_wlock_invalidate redirect_url rowid_merge_buff_size server_id skip_parallel_replication
        skip_replication slow_query_log sql_slave_skip_counter storage_engine system_versioning_alter_history
        system_versioning_insert_history tcp_nodelay thread_pool_priority tmp_memory_table_size wsrep_causal_reads
        wsrep_gtid_seq_no wsrep_on wsrep_osu_method wsrep_retry_autocommit wsrep_sync_wait wsrep_trx_fragment_size
        wsrep_trx_fragment_unit
    """,
}
"""Variables of sessions by which nothing that we read ends or reads otherwise, and that no test here changes."""

POSTGRES = {
    "statement_timeout": "1",
    "transaction_timeout": "1",
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
    "idle_session_timeout": "1",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "search_path": "nowhere",
    "row_security": "on",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'Asia/Kolkata'",
    "timezone_abbreviations": "'India'",
    "lc_monetary": "'C.UTF-8'",
    "xmlbinary": "hex",
    "xmloption": "document",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "synchronous_commit": "off",
    "client_encoding": "'LATIN1'",
    "client_min_messages": "debug5",
    "exit_on_error": "on",
    "gin_fuzzy_search_limit": "1",
    "tcp_user_timeout": "1",
    "wal_sender_timeout": "1",
    "restrict_nonsystem_relation_kind": "'view, foreign-table'",
    "session_replication_role": "replica",
    "work_mem": "'64kB'",
    "logical_decoding_work_mem": "'64kB'",
    "temp_file_limit": "'1MB'",
    "default_toast_compression": "pglz",
    "jit": "on",
    "jit_above_cost": "0",
    "plan_cache_mode": "force_generic_plan",
    "constraint_exclusion": "on",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_partition_pruning": "off",
    "cursor_tuple_fraction": "0",
    "stats_fetch_consistency": "snapshot",
    "log_parameter_max_length_on_error": "0",
}
TABLES_OF_POSTGRES = (
    "CREATE TYPE mood AS ENUM ('ok', 'Ü')",
    "CREATE TABLE every (id serial PRIMARY KEY, word text, tz timestamptz, ts timestamp, day date, clock timetz,"
    " span interval, raw bytea, f real, g double precision, amount numeric, cash money, doc xml, js jsonb, list text[],"
    " mood mood, moods mood[], stretch tstzrange)",
    "CREATE TABLE texts (k text PRIMARY KEY, n int, doc text)",
    "CREATE TABLE sets (s mood, id int, doc text, PRIMARY KEY (s, id))",
)
FILL_OF_POSTGRES = (
    "INSERT INTO every SELECT id, 'Grüße \\ \"' || id || '\" 😀', '2024-03-31 01:30:00.125+00', '2024-07-01 12:00:00',"
    " '2024-02-29', '01:02:03+05', '1 mon -3 days 04:05:06.7', '\\x00ff5c27', id / 7.0, id / 3.0, id / 7.0, id * 1.1,"
    " '<a>1</a>', '{\"a\": null}', ARRAY['NULL', NULL, 'x'], 'Ü', ARRAY['ok', 'Ü']::mood[],"
    " '[2024-03-31 01:30+00,)' FROM generate_series(1, 40) AS id",
    "INSERT INTO texts SELECT repeat('k', 600) || lpad(id::text, 4, '0'), id, repeat(md5(id::text), 1200)"
    " FROM generate_series(1, 40) AS id",
    "INSERT INTO sets SELECT CASE id % 2 WHEN 0 THEN 'ok' ELSE 'Ü' END::mood, id, repeat('s', 40000)"
    " FROM generate_series(1, 40) AS id",
)
CHANGE_OF_POSTGRES = (
    "UPDATE every SET word = word || 'ß', tz = '2024-10-27 00:30:00.5+00' WHERE id < 5",
    "DELETE FROM texts WHERE n = 3",
    "INSERT INTO sets VALUES ('Ü', 1000, 'new')",
)

TABLES = (
    "CREATE TABLE every (id INT AUTO_INCREMENT PRIMARY KEY, fixed CHAR(8), word VARCHAR(40), ts TIMESTAMP(3) NULL,"
    " moment DATETIME, day DATE, clock TIME(2), amount DECIMAL(20,6), f FLOAT, g DOUBLE, label ENUM('a','ü','c'),"
    " some SET('x','y','z'), doc LONGTEXT, raw VARBINARY(20), bits BIT(12), y YEAR) CHARACTER SET utf8mb4",
    "CREATE TABLE texts (k VARCHAR(700) COLLATE utf8mb4_bin PRIMARY KEY, n INT, doc LONGTEXT) CHARACTER SET utf8mb4",
    "CREATE TABLE sets (s SET('x','y','z'), id INT, doc LONGTEXT, PRIMARY KEY (s, id)) CHARACTER SET utf8mb4",
)
FILL = (
    "INSERT INTO every SELECT id, CONCAT('c', id), CONCAT('Grüße \\\\ \"', id, '\" 😀'),"
    " '2024-03-31 01:30:00.125', '2024-07-01 12:00:00', '2024-02-29', '-100:59:59.25', id / 7, id / 3, id / 3,"
    " 1 + id % 3, id % 8, REPEAT('lang ', 2000), UNHEX('00ff5c27'), id, 2000 + id % 50 FROM ({numbers}) AS numbers",
    "INSERT INTO texts SELECT CONCAT(REPEAT('k', 600), LPAD(id, 4, '0')), id, REPEAT('t', 40000) FROM ({numbers}) AS n",
    "INSERT INTO sets SELECT 1 + id % 7, id, REPEAT('s', 40000) FROM ({numbers}) AS numbers",
)
CHANGE = (
    "UPDATE every SET word = CONCAT(word, 'ß'), ts = '2024-10-27 00:30:00.5' WHERE id < 5",
    "DELETE FROM texts WHERE n = 3",
    "INSERT INTO sets VALUES ('x,z', 1000, 'new')",
)
_NUMBERS = " UNION ALL ".join(f"SELECT {number} AS id" for number in range(1, 41))


@contextlib.contextmanager
def hostile_role(database: Database, wanted: dict[str, str]) -> Iterator[None]:
    """The server gives these to new sessions of our user in this database; those that it does not know are left out."""
    names = {str(name).lower() for (name,) in database.query("SELECT name FROM pg_settings")}
    role = f'ALTER ROLE "{database.account.user}" IN DATABASE "{database.name}"'
    for name, value in wanted.items():
        if name.lower() in names:
            database.execute(f"{role} SET {name} = {value}")
    try:
        yield
    finally:
        database.execute(f"{role} RESET ALL")


@contextlib.contextmanager
def hostile(database: Database, wanted: dict[str, str]) -> Iterator[None]:
    """The server gives these to new sessions; those that it does not know are left out."""
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = 28800")
        cursor.execute("SHOW GLOBAL VARIABLES")
        usual = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
        names = [name for name in wanted if name in usual]
        try:
            for name in names:
                cursor.execute(f"SET GLOBAL {name} = {wanted[name]}")
            yield
        finally:
            for name in names:
                value = "DEFAULT" if name == "system_versioning_asof" else _literal(usual[name])
                cursor.execute(f"SET GLOBAL {name} = {value}")


def _literal(value: str) -> str:
    return value if value.replace(".", "").isdigit() else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def run(database: Database, *statements: str) -> None:
    """In a session as a quiet server gives it, made before."""
    database.execute(
        "SET SESSION sql_mode = DEFAULT", *(statement.format(numbers=_NUMBERS) for statement in statements)
    )


def observe(config: Config, change: Callable[[], None]) -> dict[str, Any]:
    """All that is read of the source: by `check`, the log, a dump and the hashes of a verification."""
    source = wiring.open_source(config.source)
    found: dict[str, Any] = {"problems": [(p.what, p.fatal) for p in source.check()]}
    run_capture(config, stop=threading.Event(), until_current=True)
    change()
    stop = threading.Event()

    def capture() -> None:
        try:
            run_capture(config, stop=stop)
        finally:
            stop.set()  # without a capture the dump would wait

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        captured = pool.submit(capture)
        try:
            dump_id = submit(config, DumpRequest(tables=None))
            work_loop.work(config, stop=stop, once=True, dump_id=dump_id)
            found["dump"] = work_loop.wait(config, dump_id, stop=stop).state
        finally:
            stop.set()
        captured.result()
    staged = [line for line in lines(wiring.open_staging(config)) if line["op"] in "cudr"]
    for op in "cudr":
        rows = [
            (line["table"].partition(".")[2], line["key"], line.get("after")) for line in staged if line["op"] == op
        ]
        found[op] = sorted(rows, key=repr)
    with closing(source.open_reader(lock_seconds=2.0)) as reader:
        for schema in source.tables():
            table = TableName(schema.table.schema, schema.table.name)
            last = reader.last_key(schema)
            hashed = reader.range_hash(schema, after=None, upto=last, limit=1000)
            listed = reader.hashes(schema, after=None, upto=last, limit=1000)
            found[table.name] = (
                last,
                (hashed.rows, hashed.hash, hashed.last),
                listed.rows.to_pylist(),
                list(reader.boundaries(schema, after=None, upto=last, every=7)),
                reader.estimated_rows(schema.table) > 0,
                reader.key_order(schema),
            )
            if table.name == "every":
                passing = [Filter("word", "=", ('Grüße \\ "7" 😀',)), Filter("amount", ">=", ("1",))]
                found["filtered"] = reader.read(
                    schema, after=None, upto=last, limit=9, filters=passing
                ).rows.to_pylist()
    return found


@both
def test_no_limit_and_no_format_of_new_sessions_has_an_effect(
    database: Database, new_database: Callable[..., Database], tmp_path: Path
) -> None:
    other = new_database(database.server)
    observed = []
    for place, world, wanted in (
        ("quiet", database, {}),
        ("hostile", other, MYSQL if database.kind == "mysql" else MARIADB),
    ):
        run(world, *TABLES, *FILL, *(f"ANALYZE TABLE {name}" for name in ("every", "texts", "sets")))
        config = world.config(tmp_path / place, dump={"chunk_size": 10})
        with closing(world.connect()) as writer, writer.cursor() as cursor:
            cursor.execute("SET SESSION wait_timeout = 28800")

            def change(cursor: Any = cursor) -> None:
                for statement in CHANGE:
                    cursor.execute(statement)

            with hostile(world, wanted):
                observed.append(observe(config, change))
    quiet, under_limits = observed
    assert under_limits == quiet
    assert [len(quiet[op]) for op in "cudr"] == [1, 4, 1, 120]


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
def test_no_setting_of_a_role_has_an_effect(
    database: Database,
    new_database: Callable[..., Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plugin: str,
) -> None:
    other = new_database(database.server)
    observed = []
    for place, world, wanted in (("quiet", database, {}), ("hostile", other, POSTGRES)):
        world.execute(*TABLES_OF_POSTGRES, *FILL_OF_POSTGRES, "ANALYZE")
        usual = world.config(tmp_path / place).source.model_dump()
        config = world.config(tmp_path / place, dump={"chunk_size": 10}, source={**usual, "plugin": plugin})
        with (
            closing(world.connect()) as writer,
            writer.cursor() as cursor,
            hostile_role(world, wanted),
            monkeypatch.context() as environment,
        ):
            if wanted:
                environment.setenv("PGTZ", "Asia/Kolkata")
                environment.setenv("PGDATESTYLE", "German")
                environment.setenv("PGOPTIONS", "-c statement_timeout=1")
            observed.append(observe(config, lambda cursor=cursor: cursor.execute("; ".join(CHANGE_OF_POSTGRES))))
    quiet, under_limits = observed
    assert under_limits == quiet
    assert [len(quiet[op]) for op in "cudr"] == [1, 4, 1, 120]


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_every_session_of_postgres_has_every_setting(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path).source
    for replication in (False, True):
        with hostile_role(database, POSTGRES), closing(postgres.connect(config, replication=replication)) as session:
            present = dict(postgres.rows(session, settings.QUESTION, (list(settings.NAMES),)))
        assert not list(settings.deviating(present, settings.AT_START))
        assert set(settings.AT_START) <= set(present)


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_setting_of_postgres_that_we_may_not_change_is_named(database: Database, tmp_path: Path) -> None:
    source = wiring.open_source(database.config(tmp_path).source)
    with hostile_role(database, {"zero_damaged_pages": "on"}):
        problems = source.check()
        with pytest.raises(SourceRefused, match="have zero_damaged_pages = on"):
            source.tables()
    assert ["zero_damaged_pages" in p.what for p in problems] == [True]


@both
def test_a_session_has_every_setting(database: Database, tmp_path: Path) -> None:
    """Also one that a later version of a server gives under another name would show here, or in the next test."""
    config = database.config(tmp_path).source
    with (
        hostile(database, MYSQL if database.kind == "mysql" else MARIADB),
        closing(mysql.connect(config)) as session,
    ):
        present = {str(name).lower(): str(value) for name, value in mysql.rows(session, "SHOW SESSION VARIABLES")}
    assert not [s.name for s in session_settings.deviating(database.kind, present, None)]
    assert all(s.holds(present[s.name]) for s in session_settings.first(database.kind))


@both
def test_every_variable_of_a_session_is_set_or_known_to_change_nothing(database: Database) -> None:
    known = {*session_settings.names(), *EVERY_MYSQL, *MYSQL, *MARIADB, *" ".join(_UNTOUCHED.values()).split()}
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION VARIABLES")
        names = [str(name).lower() for name, _ in cursor.fetchall()]
        unknown = []
        for name in set(names) - known:
            with contextlib.suppress(Exception):  # a variable of the server has no value of a session
                cursor.execute(f"SELECT @@SESSION.{name}")
                unknown.append(name)
    assert not unknown, "add them to session_settings, or say here that they change nothing"


@both
def test_a_limit_that_we_may_not_lift_is_named(database: Database, tmp_path: Path) -> None:
    source = wiring.open_source(database.config(tmp_path).source)
    with hostile(database, {"max_allowed_packet": "1024"}):
        problems = source.check()
        with pytest.raises(SourceRefused, match=r"(?s)max_allowed_packet = 1024.*SET GLOBAL max_allowed_packet"):
            source.tables()
    assert [("max_allowed_packet" in p.what, "SET GLOBAL max_allowed_packet" in p.fix) for p in problems] == [
        (True, True)
    ]
