"""What outputs send to in tests: each target opens its output, says what it holds, and can refuse a line."""

from __future__ import annotations

import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from dblog_core.config.output import OutputConfig
from dblog_core.interfaces import Json, Output
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.outputs import custom
from dblog_core.outputs.files import FilesOutput
from dblog_core.outputs.http import HttpOutput
from dblog_core.outputs.kafka import KafkaOutput
from dblog_core.outputs.mysql import MysqlDialect
from dblog_core.outputs.postgres import PostgresDialect
from dblog_core.outputs.sql_table import TableOutput
from dblog_core.signatures import verified
from dblog_core.storage.factory import open_storage
from tests.contract.memory_output import MemoryOutput, MemoryTarget
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "outputs.md"


class Target(Protocol):
    """Some place that lines go to; it outlives outputs and relays, as a server does."""

    settings: dict[str, Any]
    """Of `[output.NAME]`."""

    def open(self) -> Output:
        """Another process's output."""

    def lines(self) -> list[Json]:
        """All that is valid there, in the order in which it came."""

    def refuse(self, offset: int) -> None:
        """From now on it never takes the line."""

    def empty(self) -> None:
        """Forgets all, its place too."""


class MemoryOne:
    def __init__(self) -> None:
        self.settings: dict[str, Any] = {"kind": "files", "path": "/unused", "every": 0.0}
        self._target = MemoryTarget()

    def open(self) -> Output:
        return MemoryOutput(self._target)

    def lines(self) -> list[Json]:
        return self._target.lines

    def refuse(self, offset: int) -> None:
        self._target.refused.add(offset)

    def empty(self) -> None:
        self._target = MemoryTarget()


class FilesOne:
    def __init__(self, directory: Path, form: str) -> None:
        self.directory = directory
        self._form = form
        self.settings = {"kind": "files", "path": str(directory), "form": form, "every": 0.0}

    def open(self) -> Output:
        return FilesOutput(open_storage(str(self.directory), "shop/out", temporary="_tmp"), form=self._form)

    def lines(self) -> list[Json]:
        lines_sent: list[Json] = []
        for file in sorted((self.directory / "shop" / "out").glob(f"0*.{self._form}")):
            if self._form == "jsonl":
                lines_sent += [orjson.loads(line) for line in file.read_bytes().splitlines()]
            else:
                rows = pq.read_table(file).to_pylist()
                lines_sent += [orjson.loads(row["line"]) for row in rows]
                assert [row["offset"] for row in rows] == [line["offset"] for line in lines_sent[-len(rows) :]]
        return lines_sent

    def refuse(self, offset: int) -> None:
        raise AssertionError("a file takes every line")

    def empty(self) -> None:
        for file in (self.directory / "shop" / "out").glob("0*"):
            file.unlink()


class TableOne:
    """A table in a database that a test has for itself."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._kind = "postgres" if database.kind == "postgres" else "mysql"
        server = database.server
        self.settings = {
            "kind": self._kind,
            "host": server.host,
            "port": server.port,
            "user": server.admin.user,
            "password": server.admin.password,
            "database": database.name,
        }

    def open(self) -> Output:
        output_config = OutputConfig.model_validate(self.settings)
        dialect = PostgresDialect(output_config) if self._kind == "postgres" else MysqlDialect(output_config)
        return TableOutput(dialect, "shop.out")

    def lines(self) -> list[Json]:
        rows = self._query("SELECT line, row_key, op FROM dblog_changes ORDER BY line_offset")
        lines = [line if isinstance(line, dict) else orjson.loads(line) for line, _, _ in rows]
        assert [line["op"] for line in lines] == [op for _, _, op in rows]
        return lines

    def refuse(self, offset: int) -> None:
        output = self.open()
        output.open(0)  # makes the table
        output.close()
        self.database.execute(f"ALTER TABLE dblog_changes ADD CONSTRAINT refuse CHECK (line_offset <> {offset})")

    def empty(self) -> None:
        if self._exists():
            self.database.execute("DELETE FROM dblog_changes", "DELETE FROM dblog_changes_place")

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        output = self.open()
        output.open(0) if not self._exists() else None
        output.close()
        return self.database.query(statement)

    def _exists(self) -> bool:
        rows = self.database.query(
            f"SELECT 1 FROM information_schema.tables WHERE table_name = 'dblog_changes'"
            f" AND table_schema = '{self.database.schema}'"
        )
        return bool(rows)


class HttpOne:
    """A receiver that checks signatures and notes every request that it answers with 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[Json]]] = []
        self.answers: list[int] = []
        """What it answers next, before it looks at anything."""
        self._refused: set[int] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        port = self._server.server_address[1]
        self.settings: dict[str, Any] = {
            "kind": "http",
            "url": f"http://127.0.0.1:{port}/changes?user=x",
            "secret": "not for logs",
            "token": "nor this",
        }

    def open(self) -> Output:
        return HttpOutput(OutputConfig.model_validate(self.settings), "shop/out")

    def lines(self) -> list[Json]:
        return [line for _, lines in self.requests for line in lines]

    def refuse(self, offset: int) -> None:
        self._refused.add(offset)

    def empty(self) -> None:
        self.requests.clear()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def lines_sent(self, headers: Any, body: bytes) -> int:
        if self.answers:
            return self.answers.pop(0)
        if headers["Authorization"] != "Bearer nor this" or not verified(
            "not for logs", headers, body, now=time.time()
        ):
            return 401
        lines = [orjson.loads(text) for text in body.splitlines()]
        if self._refused & {line["offset"] for line in lines}:
            return 422
        self.requests.append((headers["Idempotency-Key"], lines))
        return 200

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(receiver.lines_sent(self.headers, body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        return Handler


class KafkaOne:
    """Topics of its own on a broker that tests share; read as a consumer of committed messages reads them."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self.settings: dict[str, Any] = {"kind": "kafka", "servers": server.address()}
        self.empty()

    def open(self) -> Output:
        return KafkaOutput(OutputConfig.model_validate(self.settings), "shop", self.name)

    def lines(self) -> list[Json]:
        lines_sent = [orjson.loads(m.value()) for m in self.messages() if m.value() is not None]
        return sorted(lines_sent, key=lambda line: line["offset"])

    def messages(self) -> list[Any]:
        """All that is committed, each partition in its order."""
        client = {"bootstrap.servers": self._server.address(), "group.id": secrets.token_hex(4)}
        more = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
        consumer = Consumer({**client, **more})
        try:
            topics = consumer.list_topics(timeout=PATIENCE_SECONDS).topics
            own_topics = [t for t in topics if t.startswith(self.settings["topic_prefix"]) and not t.endswith(".place")]
            partitions = [TopicPartition(t, p, 0) for t in own_topics for p in topics[t].partitions]
            consumer.assign(partitions)
            return list(self._read(consumer, len(partitions)))
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, partitions: int) -> Iterator[Any]:
        while partitions:
            message = consumer.poll(30)
            assert message is not None, "the broker does not answer"
            if message.error() is None:
                yield message
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                partitions -= 1

    def refuse(self, offset: int) -> None:
        raise AssertionError("a topic refuses by size: that has tests of its own")

    def limit(self, table: str, size: int) -> None:
        """The table's topic takes no larger messages from now on."""
        topic = ConfigResource(ConfigResource.Type.TOPIC, f"{self.settings['topic_prefix']}{table}")
        topic.add_incremental_config(
            ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        )
        admin = AdminClient({"bootstrap.servers": self._server.address()})
        for done in admin.incremental_alter_configs([topic]).values():
            done.result()

    def empty(self) -> None:
        """Other topics from now on, of another relay."""
        self.name = f"t_{secrets.token_hex(4)}"
        self.settings["topic_prefix"] = f"{self.name}."


class ExampleOne:
    """The worked example of docs/outputs.md, taken from there."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "lines.db"
        (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
        self._module = f"sqlite_output_{directory.name.replace('-', '_')}"
        (directory / f"{self._module}.py").write_text(code)
        self.settings: dict[str, Any] = {
            "kind": "python",
            "class": f"{self._module}:SqliteOutput",
            "options": {"file": str(self._file)},
        }

    def open(self) -> Output:
        output_config = OutputConfig.model_validate(self.settings)
        return custom.load_output(
            output_config.implementation, source="shop", output="out", options=output_config.options
        )

    def lines(self) -> list[Json]:
        if not self._file.exists():
            return []
        with closing(sqlite3.connect(self._file)) as connection:
            rows = connection.execute("SELECT line FROM lines ORDER BY line_offset").fetchall()
        return [orjson.loads(line) for (line,) in rows]

    def refuse(self, offset: int) -> None:
        raise AssertionError("the example takes every line")

    def empty(self) -> None:
        self._file.unlink(missing_ok=True)
