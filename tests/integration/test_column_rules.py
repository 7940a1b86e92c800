"""Columns under a rule on real servers: nothing that a capture, a dump or a merge writes holds what the source has in
them, and a value has one form wherever it comes from."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import zstandard
from pyspark.sql import SparkSession

from dblog_core.capture import config_reload
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.output import OutputConfig
from dblog_core.config.settings import Config, StateConfig
from dblog_core.config.source import ColumnRules
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError, SourceRefused
from dblog_core.lake.lake_status import history_location, table_location
from dblog_core.model.schema import TableName
from dblog_core.monitoring import held_tables
from dblog_core.monitoring.preflight import findings
from dblog_core.monitoring.status import read_source_status
from dblog_core.outputs.relay import run_relay
from dblog_core.staging import segment
from dblog_core.staging.reader import lines
from dblog_core.wiring import open_lake, open_source, open_staging, open_state
from tests.fix_servers import Database
from tests.integration.test_read_only import capturing, run_dump
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing as capturing_until
from tests.integration.test_swapped_tables import copies
from tests.marked import read_nodes
from tests.plain_judge import PlainLake
from tests.waiting import wait_until

pytestmark = pytest.mark.one_of(4)

MARK = "qZx7marked"
NUMBER = "77315577315577.25"
"""What rows hold in columns under a rule: in texts and binary values, and as a number."""
OPEN = "qZx7open"
"""What they hold in a column without one, which the search must see everywhere."""
NEEDLES = (MARK.encode(), MARK.encode().hex().encode(), base64.b64encode(MARK.encode()[:9]), NUMBER[:-3].encode())
BIG = MARK * 300
"""A value that PostgreSQL stores apart: the log leaves it out where another column changes."""
RULES = ColumnRules(exclude=("note", "photo"), mask=("iban", "income"), hash=("email", "token"))
STAGED = ("id", "open", "iban", "income", "email", "token")
EMAIL = f"{BIG}@mail"
OTHER = f"{MARK}@other"
TOKEN = f"{MARK} token"
HASHES = {text: hashlib.sha256(text.encode()).hexdigest() for text in (EMAIL, OTHER, TOKEN)}
MANY = 1_000
"""Rows of a transaction whose part of the log is a file of its own."""
PLACES = ("/manifests/", "/log/", "/chunks/", "lake/{}/people/", "lake/{}/people__history/", "lines")
"""Where the search must see the open values."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """Tables with columns under rules, and the directory of all that is written of them."""

    database: Database
    config: Config
    directory: Path

    @property
    def tables(self) -> list[TableName]:
        """PostgreSQL logs whole old rows of a second one, as the others do of each."""
        names = ("people", "whole") if self.database.kind == "postgres" else ("people",)
        return [TableName(self.database.schema, name) for name in names]

    def create(self) -> None:
        postgres = self.database.kind == "postgres"
        text, binary = ("text", "bytea") if postgres else ("longtext", "longblob")
        columns = f"open varchar(40), iban varchar(40), income decimal(20,2), email {text}, token {binary}"
        apart = ", ".join(f"ALTER {name} SET STORAGE EXTERNAL" for name in ("email", "note", "photo"))
        for table in self.tables:
            self.database.execute(
                f"CREATE TABLE {table.name} (id int PRIMARY KEY, {columns}, note {text}, photo {binary})",
                *([f"ALTER TABLE {table.name} {apart}"] if postgres else []),
                self._insert(table, *range(1, 5)),
            )
        if postgres:
            self.database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")

    def _insert(self, table: TableName, *keys: int) -> str:
        values = f"'{MARK}', {NUMBER}, '{EMAIL}', '{TOKEN}', '{BIG}', '{BIG}'"
        rows = ", ".join(f"({key}, '{OPEN} {key}', {values})" for key in keys)
        return f"INSERT INTO {table.name} VALUES {rows}"

    def change(self) -> None:
        """Inserts, updates of columns with a rule and without, deletes, changes of keys."""
        for table in self.tables:
            name = table.name
            self.database.execute(
                self._insert(table, 11, 12),
                f"UPDATE {name} SET open = '{OPEN} again' WHERE id IN (1, 11)",
                f"UPDATE {name} SET iban = '{MARK} new', note = '{MARK} new' WHERE id = 2",
                f"UPDATE {name} SET id = 13 WHERE id = 3",
                f"UPDATE {name} SET email = '{OTHER}', income = NULL WHERE id = 12",
                f"DELETE FROM {name} WHERE id IN (4, 11)",
            )

    def change_many(self) -> None:
        for table in self.tables:
            insert = self._insert(table, *range(1000, 1000 + MANY)).replace(EMAIL, OTHER).replace(BIG, MARK)
            self.database.execute(insert, f"DELETE FROM {table.name} WHERE id >= 1000")

    def written_files(self) -> Iterator[tuple[str, bytes]]:
        """Every file by its name, as it is and unpacked."""
        for file in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            name = str(file.relative_to(self.directory))
            data = file.read_bytes()
            yield name, data
            yield name, unpack(data)
        yield "lines", b"\n".join(orjson.dumps(line) for line in self.lines())

    def lines(self) -> list[dict[str, Any]]:
        return list(lines(open_staging(self.config)))


def unpack(data: bytes) -> bytes:
    """The values of a Parquet file, or what is packed with zstd anywhere in another one."""
    if data.startswith(b"PAR1"):
        return repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    frames = data.split(zstandard.FRAME_HEADER)[1:]
    return b"".join(zstandard.ZstdDecompressor().decompressobj().decompress(zstandard.FRAME_HEADER + f) for f in frames)


@pytest.fixture
def ruled_tables(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ruled:
    monkeypatch.setattr(segment, "INLINE_BYTES", 100_000)  # else the log of so few rows lies in manifests alone
    directory = tmp_path / "written"
    directory.mkdir()
    config = database.config(directory, lake={"path": str(directory / "lake"), "history": True})
    ruled_source = Ruled(database, config, directory)
    source = config.source.model_copy(update={"columns": {str(table): RULES for table in ruled_source.tables}})
    return replace(ruled_source, config=config.model_copy(update={"source": source}))


def test_nothing_that_is_written_holds_a_value_of_a_column_under_a_rule(
    ruled_tables: Ruled,
    merge_here: Callable[[Config], None],
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Staging, the state store's file, lake and history; logs at every level, and what a merge prints."""
    ruled_tables.create()
    with caplog.at_level(logging.INFO, "py4j"), caplog.at_level(logging.DEBUG):
        with capturing(ruled_tables.config):
            ruled_tables.change()
            run_dump(ruled_tables.config, tables=tuple(map(str, ruled_tables.tables)))
            run_dump(ruled_tables.config, tables=(str(ruled_tables.tables[0]),), keys=(1, 4))
            ruled_tables.change_many()
        run_capture(ruled_tables.config, stop=threading.Event(), until_current=True)
        merge_here(ruled_tables.config)
    log_text = "".join((caplog.text, *capfd.readouterr())).encode()
    assert b"people: " in log_text, "what the merge says is looked at"
    assert [needle for needle in NEEDLES if needle in log_text] == []
    search(ruled_tables)
    check_lines(ruled_tables.lines())
    for table in ruled_tables.tables:
        check_lake(ruled_tables, table, spark)


def search(ruled: Ruled) -> None:
    """No file and no line has a marked value, and the search sees the open ones in every place."""
    places = [place.format(ruled.database.schema) for place in PLACES]
    seen = set[str]()
    for name, data in ruled.written_files():
        assert [needle for needle in NEEDLES if needle in data] == [], name
        if OPEN.encode() in data:
            seen.update(place for place in places if place in name)
    assert seen == set(places)


@dataclass
class Receiver:
    """A receiver of an HTTP output that refuses every line, and repeats what it was sent."""

    bodies: list[bytes] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Iterator[str]:
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(400)
                self.end_headers()
                self.wfile.write(bodies[-1])

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/lines"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.mark.in_turn
def test_nothing_that_is_passed_on_or_told_holds_a_value_of_a_column_under_a_rule(
    ruled_tables: Ruled,
    verify_plainly: Callable[[Config], tuple[Any, PlainLake]],
    caplog: pytest.LogCaptureFixture,
    zookeeper_url: str,
) -> None:
    """Outputs, dead letters, certificates, logs at every level, a state store on ZooKeeper and `status`."""
    ruled_tables = replace(
        ruled_tables, config=ruled_tables.config.model_copy(update={"state": StateConfig(url=zookeeper_url)})
    )
    ruled_tables.create()
    directory = ruled_tables.directory
    receiver = Receiver()
    certificate = ruled_tables.directory / "certificate.json"
    verify, _ = verify_plainly(ruled_tables.config)
    with caplog.at_level(logging.DEBUG), receiver.serving() as url:
        post = {"kind": "http", "url": url, "secret": "of the receiver", "poison": "dead_letter"}
        outputs = {
            "out": {"kind": "files", "path": str(directory / "out"), "every": 0.0},
            "post": {**post, "dead_letter": str(directory / "letters"), "batch_rows": 50},
        }
        output_config = {
            name: OutputConfig.model_validate({"start": "earliest", **keys}) for name, keys in outputs.items()
        }
        config = ruled_tables.config.model_copy(update={"output": output_config})
        with capturing(config):
            ruled_tables.change()
            run_dump(config, tables=tuple(map(str, ruled_tables.tables)))
            assert verify(config, certificate=certificate).equal
        for name in output_config:
            assert run_relay(config, name, stop=threading.Event(), once=True)
        status_text = repr(read_source_status(config).to_json())
    places = {
        "log": caplog.text.encode(),
        "status": status_text.encode(),
        "bodies": b"\n".join(receiver.bodies),
        "certificate": certificate.read_bytes(),
        "letters": (directory / "letters").read_bytes(),
        "out": b"\n".join(file.read_bytes() for file in (directory / "out").rglob("*") if file.is_file()),
        "nodes": b"\n".join(path.encode() + data for path, data in read_nodes(zookeeper_url)),
    }
    assert b"people" in places["nodes"], "the state store is looked at"
    seen = {name for name, data in places.items() if OPEN.encode() in data}
    assert seen == {"bodies", "letters", "out", "log"}, "what the receiver says is told, and it says what it was sent"
    for name, data in (*places.items(), *ruled_tables.written_files()):
        assert [needle for needle in NEEDLES if needle in data] == [], name


def check_lines(lines: list[dict[str, Any]]) -> None:
    """Lines of all kinds, by the log and by dumps, have the columns that are left, with one form of each value."""
    rows = [line for line in lines if line["op"] in "cudr"]
    assert {(line["op"], line["origin"]) for line in rows} == {
        *(("c", "log"), ("u", "log"), ("d", "log")),
        *(("r", "dump"), ("d", "dump")),
    }
    assert any(line.get("moved_from") for line in rows)
    images = [(line["origin"], image) for line in rows for image in (line["before"], line["after"]) if image]
    for _, image in images:
        check_image(image)
    for origin in ("log", "dump"):
        hashes = {image[name] for of, image in images if of == origin for name in ("email", "token") if name in image}
        assert hashes == set(HASHES.values()), f"of the same values, by {origin}"
    schemas = [line["schema"] for line in lines if line["op"] == "s"]
    assert schemas and {tuple(column["name"] for column in schema) for schema in schemas} == {STAGED}
    assert {name for line in rows for name in line["unchanged"]} <= set(STAGED)


def check_image(image: dict[str, Any]) -> None:
    """A row, or as much of it as the log has."""
    assert set(image) <= set(STAGED)
    assert image.get("iban", "*****") == "*****"
    assert image.get("income") in (None, "0.00", Decimal(0))
    assert image.get("email", HASHES[EMAIL]) in (HASHES[EMAIL], HASHES[OTHER])
    assert image.get("token", HASHES[TOKEN]) == HASHES[TOKEN]


def check_lake(ruled: Ruled, table: TableName, spark: SparkSession) -> None:
    lake = open_lake(ruled.config)
    rows = spark.read.format("delta").load(str(table_location(lake, table)))
    history = spark.read.format("delta").load(str(history_location(lake, table)))
    for frame in (rows, history):
        assert {name for name in frame.columns if not name.startswith("_dblog")} == set(STAGED)
    by_key = {row["id"]: row.asDict() for row in rows.select(*STAGED).collect()}
    source = dict(ruled.database.query(f"SELECT id, open FROM {table.name}"))
    assert {key: row["open"] for key, row in by_key.items()} == source
    emails = {key: HASHES[OTHER if key == 12 else EMAIL] for key in by_key}
    assert {key: row["email"] for key, row in by_key.items()} == emails
    assert [key for key, row in by_key.items() if row["income"] is None] == [12]
    for row in by_key.values():
        check_image(row)


RENAMED = "ALTER TABLE t RENAME COLUMN v TO w"
SWAPPED = "CREATE TABLE _new (id int PRIMARY KEY, w varchar(40))", "DROP TABLE t", "ALTER TABLE _new RENAME TO t"


@pytest.mark.in_turn
def test_a_table_whose_ruled_column_goes_away_stops_alone_and_leaves_nothing_in_the_open(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)
    name = f"{database.schema}.t"
    directory = tmp_path / "written"
    names = [f"{database.schema}.{table}" for table in "tu"]
    columns = {name: {"mask": ["v"]}}
    config = database.config(directory, source={"tables": names, "columns": columns})
    database.execute(*(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(40))" for table in "tu"))
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(f"INSERT INTO t VALUES (1, '{MARK}')")
    masked = {"t": {1: "*****"}}
    with capturing_until(config) as wait:
        wait(masked)
        database.execute(RENAMED, f"INSERT INTO t VALUES (2, '{MARK}')", "INSERT INTO u VALUES (1, 'goes on')")
        wait({**masked, "u": {1: "goes on"}})
        # The catalogue and the guard both find out: what is held counts before all else.
        wait_until(lambda: "is held, since columns" in stop_reasons(config).get("t", ""), "the table is held")
        problems = [finding.problem for finding in findings(config) if finding.problem.fatal]
        assert {problem.table for problem in problems} == {name}
        assert any(f"{name} has no column v" in p.what and "its columns are id, w" in p.fix for p in problems)
        database.execute("ALTER TABLE t RENAME COLUMN w TO v")
        with closing(open_state(config)) as state:
            held_tables.accept(config, open_source(config.source), open_staging(config), state, [name])
        masked = {"t": {1: "*****", 2: "*****"}}
        wait({**masked, "u": {1: "goes on"}})
        assert stop_reasons(config) == {}
        database.execute(*SWAPPED, f"INSERT INTO t VALUES (3, '{MARK}')", "INSERT INTO u VALUES (2, 'goes on')")
        wait_until(lambda: copies(config).get("u") == {1: "goes on", 2: "goes on"}, "the other table goes on")
        wait_until(lambda: "t" in stop_reasons(config), "the table is stopped")
    for file in (path for path in directory.rglob("*") if path.is_file()):
        assert MARK.encode() not in file.read_bytes() + unpack(file.read_bytes()), file


@pytest.mark.in_turn
def test_check_capture_and_dump_refuse_rules_that_fit_nothing(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(40))")
    schema = database.schema
    columns = {f"{schema}.t": {"mask": ["V"], "hash": ["id"]}, f"{schema}.tt": {"exclude": ["v"]}}
    config = database.config(tmp_path, source={"columns": columns})
    finding = {p.what: p.fix for p in (f.problem for f in findings(config)) if p.fatal}
    assert sorted(what.partition("] ")[2] or what for what in finding) == sorted(
        [
            f'[source.columns."{schema}.tt"]: the source has no table {schema}.tt among those that it captures',
            f"hash: id belongs to the key of {schema}.t",
            f"mask: {schema}.t has no column V",
        ]
    )
    assert any(f"(to {schema}.t?)" in fix for fix in finding.values()) and any(
        "(to v?)" in fix for fix in finding.values()
    )
    with pytest.raises(SourceRefused, match="3 problem"):
        run_capture(config, stop=threading.Event(), until_current=True)
    with pytest.raises(RequestError, match="has no column V"):
        submit(config, DumpRequest((f"{schema}.t",)))
    assert open_staging(config).head() is None
