"""Passwords that are awkward in every place that they pass through, and the search for them in all that is written."""

from __future__ import annotations

import base64
import gzip
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from kazoo.client import KazooClient

AWKWARD = "${{HOME}} '%s'{core}\"#\\ %41 +"
"""A shell's, TOML's, SQL's, JAAS's and a URL's special characters around the part that a search finds."""

WITHOUT_BRACES = AWKWARD.replace("${{HOME}}", "$HOME")
"""For a list of users of Java, which expands `${…}`."""
BEYOND_LATIN_1 = "é€"


@dataclass(frozen=True, slots=True)
class Secret:
    """A password. `core`: random letters and digits in it, which no way of escaping changes."""

    text: str
    core: str

    def traces(self) -> list[bytes]:
        """What shows that the secret was written, in clear text or in base64 at any place of a longer text."""
        core = self.core.encode()
        shifted = [base64.b64encode(b"x" * pad + core)[4 : -4 or None] for pad in range(3)]
        return [core, *shifted]


def new_secret(*, form: str = AWKWARD) -> Secret:
    """A password of this form; it has a place for the `core`."""
    core = f"qZx7{secrets.token_hex(10)}"
    return Secret(form.format(core=core), core)


def plain_secret() -> Secret:
    """A secret of letters and digits only: for tokens, which travel in HTTP headers."""
    core = f"qZx7{secrets.token_hex(16)}"
    return Secret(core, core)


def shown_in(data: bytes | str, wanted_secrets: Iterable[Secret]) -> list[str]:
    """The cores of the secrets that the data shows."""
    raw = data.encode() if isinstance(data, str) else data
    return [secret.core for secret in wanted_secrets if any(trace in raw for trace in secret.traces())]


def files_with_secrets(root: Path, wanted_secrets: Iterable[Secret]) -> list[str]:
    """All files below the directory that hold a secret in their name, their bytes, or what is compressed in them."""
    wanted_secrets = list(wanted_secrets)
    offending: list[str] = []
    for path in sorted(root.rglob("*")):
        texts = [str(path).encode()]
        if path.is_file():
            texts += _contents(path)
        if any(shown_in(text, wanted_secrets) for text in texts):
            offending.append(str(path))
    return offending


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if path.suffix == ".gz":
        yield gzip.decompress(data)
    if data.startswith(b"PAR1") and data.endswith(b"PAR1"):
        table = pq.ParquetFile(path, arrow_extensions_enabled=False).read()
        for column in table.columns:
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                yield b"\n".join(
                    value.encode() if isinstance(value, str) else value or b"" for value in _values(column)
                )


def _values(column: pa.ChunkedArray) -> Iterator[str | bytes | None]:
    for chunk in column.chunks:
        yield from chunk.to_pylist()


@dataclass(frozen=True, slots=True)
class ZookeeperLogin:
    """A ZooKeeper that lets nobody in without a login by SASL, and one login of its list."""

    address: str
    user: str
    password: Secret

    def nodes(self, path: str) -> Iterator[tuple[str, bytes]]:
        """Each node below the path with its data."""
        options = {"mechanism": "DIGEST-MD5", "username": self.user, "password": self.password.text}
        client = KazooClient(self.address, sasl_options=options, timeout=10)
        client.start(timeout=30)
        try:
            yield from _below(client, path)
        finally:
            client.stop()
            client.close()


def _below(client: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    if client.exists(path) is None:
        return
    data, _ = client.get(path)
    yield path, data or b""
    for child in client.get_children(path):
        yield from _below(client, f"{path.rstrip('/')}/{child}")
