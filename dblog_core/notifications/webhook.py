"""A webhook: each notice is one POST of its JSON, signed, and taken when the receiver answers with 2xx.

Headers: `X-Dblog-Id`, the notice's id, by which a receiver drops repeats; `Dblog-Signature` under the secret, where
there is one (`signatures`). Redirects are not followed: they would have the notice, and its signature, go where nobody
has said.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from dblog_core import signatures, tls
from dblog_core.config.notify import ChannelConfig
from dblog_core.errors import NotToldYet
from dblog_core.notifications.changes import NoticeMessage


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """One receiver. `now`: seconds UTC."""

    def __init__(self, config: ChannelConfig, *, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._now = now
        self._opener: urllib.request.OpenerDirector | None = None

    def tell(self, message: NoticeMessage) -> None:
        body = message.encode()
        headers = self._headers(message.notice.id, body)
        try:
            # The configuration lets no other scheme than http and https through.
            request = urllib.request.Request(self._config.url, data=body, headers=headers)  # noqa: S310
            with self._open().open(request, timeout=self._config.timeout) as answer:
                if not 200 <= answer.status < 300:
                    raise self._not_told(f"answers {answer.status}")
        except urllib.error.HTTPError as error:
            # The error is the answer too: closing it gives the connection back.
            with error:
                raise self._not_told(f"answers {error.code}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._not_told(f"does not answer: {getattr(error, 'reason', error)}") from error

    def _headers(self, notice_id: str, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "dblog", signatures.NOTICE: notice_id}
        if secret := self._config.secret.get_secret_value():
            headers |= signatures.header(secret, self._now(), notice_id, body)
        return headers

    def _open(self) -> urllib.request.OpenerDirector:
        if self._opener is None:
            context = tls.verifying_context(self._config.tls_ca)
            self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect)
        return self._opener

    def _not_told(self, what: str) -> NotToldYet:
        return NotToldYet(
            f"the receiver {what}",
            where=f"[[notify]] {self._config.name}",
        )
