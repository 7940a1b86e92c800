"""A schema registry, by the HTTP interface that Confluent's has and others offer too: register, and ask."""

from __future__ import annotations

import base64
from typing import Any, NoReturn
from urllib.parse import quote

import orjson
import urllib3

from dblog_core import tls
from dblog_core.config.output import OutputConfig
from dblog_core.errors import OutputRefused, OutputUnavailable, PoisonLine
from dblog_core.interfaces import Json

_LATER = {408, 429}
_INCOMPATIBLE = 409
_INVALID = 422
_MISSING = 404
_SERVER_ERRORS = 500
_NO_SUBJECT = range(40401, 40404)  # of error_code: no such subject, version or schema
_MAX_REASON_CHARS = 600  # characters of an answer that are told


class Registry:
    """The registry of `[output.NAME]`. Methods raise OutputUnavailable and OutputRefused."""

    def __init__(self, settings: OutputConfig) -> None:
        self._url = settings.registry.rstrip("/")
        self._where = f"schema registry {self._url}"
        user = settings.registry_user
        password = settings.registry_password.get_secret_value()
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json", "User-Agent": "dblog"}
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        authority: dict[str, Any] = {"ca_certs": str(settings.registry_ca)} if settings.registry_ca else {}
        self._pool = urllib3.PoolManager(retries=False, timeout=settings.timeout, **authority)

    def register(self, subject: str, schema: Json) -> int:
        """The id of the schema, which is the subject's newest version from now on, or one that it had already.

        Raises PoisonLine where the registry refuses it, as incompatible or for any other fault of its own.
        """
        body = {"schema": orjson.dumps(schema).decode(), "schemaType": "AVRO"}
        answer = self._request("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        # The registry's compatibility rule forbids this shape: the table's owner has to decide.
        if answer.status in (_INCOMPATIBLE, _INVALID):
            reason = _message_of(answer)
            raise PoisonLine(f"subject {subject}: the schema is refused: {reason}", where=self._where)
        return int(self._parse_answer(answer)["id"])

    def read_latest(self, subject: str) -> tuple[int, Json] | None:
        """Id and schema of the subject's newest version; None: there is no such subject."""
        answer = self._request("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        # A 404 of a proxy has no error code of a registry, and is no answer.
        if answer.status == _MISSING and _error_code(answer) in _NO_SUBJECT:
            return None
        newest = self._parse_answer(answer)
        return int(newest["id"]), orjson.loads(newest["schema"])

    def reach(self) -> None:
        """Raises where the registry does not answer, or not us."""
        self.read_latest("dblog-check")  # which nobody needs to have

    def close(self) -> None:
        self._pool.clear()

    def _request(self, method: str, path: str, body: Json | None = None) -> urllib3.BaseHTTPResponse:
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"} if body is not None else {}
        data = None if body is None else orjson.dumps(body)
        try:
            return self._pool.request(
                method, self._url + path, body=data, headers={**self._headers, **kind}, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            reason = " ".join(str(error).split())
            if isinstance(error, urllib3.exceptions.SSLError) and tls.is_lasting(error.args[0]):
                fix = "registry_ca must have signed a certificate of the host"
                raise OutputRefused(reason, where=self._where, fix=fix) from error
            fix = "check that the registry runs and can be reached from here"
            raise OutputUnavailable(reason, where=self._where, fix=fix) from error

    def _parse_answer(self, answer: urllib3.BaseHTTPResponse) -> Json:
        if answer.status // 100 != 2:
            self._refuse(answer)
        try:
            content: Any = orjson.loads(answer.data)
            return {**content, "id": int(content["id"])}
        except (ValueError, KeyError, TypeError) as error:
            fix = "give the place below which /subjects lies as registry"
            raise OutputRefused("the answer is no registry's", where=self._where, fix=fix) from error

    def _refuse(self, answer: urllib3.BaseHTTPResponse) -> NoReturn:
        reason = f"HTTP {answer.status} {_message_of(answer)}".strip()
        if answer.status in _LATER or answer.status >= _SERVER_ERRORS:
            raise OutputUnavailable(reason, where=self._where, fix="see the registry's own log")
        raise OutputRefused(reason, where=self._where, fix="correct registry, registry_user and registry_password")


def _message_of(answer: urllib3.BaseHTTPResponse) -> str:
    try:
        text = str(orjson.loads(answer.data)["message"])
    except (ValueError, KeyError, TypeError):
        text = answer.data.decode(errors="replace")
    return " ".join(text.split())[:_MAX_REASON_CHARS]


def _error_code(answer: urllib3.BaseHTTPResponse) -> int:
    try:
        return int(orjson.loads(answer.data)["error_code"])
    except (ValueError, KeyError, TypeError):
        return 0
