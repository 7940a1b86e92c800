"""Topics in Avro as a consumer has them: schemas from the registry by id, read by Apache's own library."""

from __future__ import annotations

import base64
import datetime as dt
import io
import ssl
import struct
import threading
import urllib.error
import urllib.request
import warnings
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import avro.errors
import avro.io
import avro.schema
import orjson

from dblog_core.interfaces import Json
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.local.servers.schema_registry import RegistryServer
from dblog_core.model.values import to_json
from tests.contract.targets import KafkaOne
from tests.waiting import PATIENCE_SECONDS

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class AvroOne(KafkaOne):
    """Topics of its own, in Avro."""

    def __init__(self, server: KafkaServer, registry: RegistryServer) -> None:
        super().__init__(server)
        self._registry = registry
        self._schemas: dict[int, Any] = {}
        self.settings |= {"form": "avro", "registry": registry.address()}

    def subject(self, table: str, part: str = "value") -> str:
        return f"{self.settings['topic_prefix']}{table}-{part}"

    def get_json(self, path: str) -> Any:
        with urllib.request.urlopen(self._registry.address() + path, timeout=PATIENCE_SECONDS) as answer:
            return orjson.loads(answer.read())

    def versions(self, subject: str) -> list[Json]:
        """The schemas of a subject, oldest first."""
        numbers = self.get_json(f"/subjects/{subject}/versions")
        return [orjson.loads(self.get_json(f"/subjects/{subject}/versions/{n}")["schema"]) for n in numbers]

    def values(self) -> list[tuple[Any, Json]]:
        """Messages and what their values say, by offset."""
        messages_and_lines = [(m, self.decode(m.value())) for m in self.messages() if m.value() is not None]
        return sorted(messages_and_lines, key=lambda message_and_line: message_and_line[1]["source"]["offset"])

    def decode(self, data: bytes, *, reader: Json | None = None) -> Json:
        """`reader`: the schema that a consumer has in its program."""
        magic, number = struct.unpack_from(">bI", data)
        assert magic == 0
        if number not in self._schemas:
            self._schemas[number] = _parse_schema(self.get_json(f"/schemas/ids/{number}")["schema"])
        reader_schema = None if reader is None else _parse_schema(orjson.dumps(reader).decode())
        rest = io.BytesIO(data[5:])
        decoded_value = avro.io.DatumReader(self._schemas[number], reader_schema).read(avro.io.BinaryDecoder(rest))
        assert rest.read() == b"", "nothing is left over"
        assert isinstance(decoded_value, dict)
        return decoded_value

    def lines(self) -> list[Json]:
        """As `dblog log` prints them: the form keeps all that they say."""
        return [self._line(message, value) for message, value in self.values()]

    def _line(self, message: Any, value: Json) -> Json:
        source = value["source"]
        before = value["before"]
        after = value["after"]
        key = self.decode(message.key()) if message.key() else None
        if before is not None and value["key_only"]:
            before = {name: before[name] for name in key or ()}
        if after is not None:
            after = {name: value_after for name, value_after in after.items() if name not in value["unchanged"]}
        time = (EPOCH + dt.timedelta(microseconds=source["ts_us"])).isoformat().replace("+00:00", "Z")
        line = {
            "offset": source["offset"],
            "op": value["op"],
            "table": f"{source['schema']}.{source['table']}",
            "key": _json(key),
            "before": _json(before),
            "after": _json(after),
            "unchanged": value["unchanged"],
            "position": source["position"],
            "transaction": source["txId"],
            "commit_time": time,
            "origin": "dump" if source["snapshot"] == "true" else "log",
        }
        if (moved := value["moved_from"]) is not None:
            line["moved_from"] = _json({name: moved[name] for name in key or ()})
        if (finished := value["finished"]) is not None:
            ends = {name: orjson.loads(finished[name]) for name in ("key_from", "key_to") if finished[name]}
            line |= {"dump": finished["dump"], "since": finished["since"], **ends}
        return line


def _parse_schema(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)  # a local timestamp: it is read as its number
        return avro.schema.parse(text)


def _json(row: Json | None) -> Json | None:
    return None if row is None else {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    return format(value, "f") if isinstance(value, Decimal) else to_json(value)


class Front:
    """What stands before a registry: asks for user and password, over TLS, and is away when it is told to be."""

    def __init__(self, registry: RegistryServer, *, certificate: tuple[str, str] | None = None) -> None:
        self.answers: list[int] = []
        """What it says next before it asks the registry; 0: nothing, the connection ends."""
        self.users: set[str] = set()
        """USER:PASSWORD of those that may ask; empty: all."""
        self._registry = registry
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        scheme = "https" if certificate else "http"
        self.address = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        if self.answers:
            return self.answers.pop(0), b'{"message": "not now"}'
        credentials = base64.b64decode(headers.get("Authorization", "Basic ").removeprefix("Basic ")).decode()
        if self.users and credentials not in self.users:
            return 401, b'{"error_code": 401, "message": "who are you?"}'
        kind = {"Content-Type": "application/json"} if body else {}
        request = urllib.request.Request(self._registry.address() + path, body or None, kind, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, data = front._answer(self.command, self.path, self.headers, body)
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET  # noqa: N815  # the base class calls it that

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        return Handler
