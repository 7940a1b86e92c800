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
_INCOMPATIBLE, _INVALID, _MISSING = 409, 422, 404
_SERVER_ERRORS = 500
_NO_SUBJECT = range(40401, 40404)  # of error_code: no such subject, version or schema
_REASON = 600  # characters of an answer that are told


class Registry:
    """The registry of `[output.NAME]`. Methods raise OutputUnavailable and OutputRefused."""

    def __init__(self, settings: OutputConfig) -> None:
        self._url = settings.registry.rstrip("/")
        self._where = f"schema registry {self._url}"
        user, password = settings.registry_user, settings.registry_password.get_secret_value()
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
        answer = self._asked("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        if answer.status in (_INCOMPATIBLE, _INVALID):
            said = _said(answer)
            raise PoisonLine(f"subject {subject}: the schema is refused: {said}", where=self._where)
        return int(self._told(answer)["id"])

    def latest(self, subject: str) -> tuple[int, Json] | None:
        """Id and schema of the subject's newest version; None: there is no such subject."""
        answer = self._asked("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        if answer.status == _MISSING and _code(answer) in _NO_SUBJECT:
            return None
        told = self._told(answer)
        return int(told["id"]), orjson.loads(told["schema"])

    def reach(self) -> None:
        """Whether it answers, and us."""
        self.latest("dblog-check")  # which nobody needs to have

    def close(self) -> None:
        self._pool.clear()

    def _asked(self, method: str, path: str, body: Json | None = None) -> urllib3.BaseHTTPResponse:
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"} if body is not None else {}
        data = None if body is None else orjson.dumps(body)
        try:
            return self._pool.request(
                method, self._url + path, body=data, headers={**self._headers, **kind}, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            said = " ".join(str(error).split())
            if isinstance(error, urllib3.exceptions.SSLError) and tls.lasting(error.args[0]):
                fix = "registry_ca must have signed a certificate of the host"
                raise OutputRefused(said, where=self._where, fix=fix) from error
            fix = "check that the registry runs and can be reached from here"
            raise OutputUnavailable(said, where=self._where, fix=fix) from error

    def _told(self, answer: urllib3.BaseHTTPResponse) -> Json:
        if answer.status // 100 != 2:
            self._refuse(answer)
        try:
            found: Any = orjson.loads(answer.data)
            return {**found, "id": int(found["id"])}
        except (ValueError, KeyError, TypeError) as error:
            fix = "give the place below which /subjects lies as registry"
            raise OutputRefused("the answer is no registry's", where=self._where, fix=fix) from error

    def _refuse(self, answer: urllib3.BaseHTTPResponse) -> NoReturn:
        said = f"HTTP {answer.status} {_said(answer)}".strip()
        if answer.status in _LATER or answer.status >= _SERVER_ERRORS:
            raise OutputUnavailable(said, where=self._where, fix="see the registry's own log")
        raise OutputRefused(said, where=self._where, fix="correct registry, registry_user and registry_password")


def _said(answer: urllib3.BaseHTTPResponse) -> str:
    try:
        text = str(orjson.loads(answer.data)["message"])
    except (ValueError, KeyError, TypeError):
        text = answer.data.decode(errors="replace")
    return " ".join(text.split())[:_REASON]


def _code(answer: urllib3.BaseHTTPResponse) -> int:
    try:
        return int(orjson.loads(answer.data)["error_code"])
    except (ValueError, KeyError, TypeError):
        return 0
