"""A real S3-compatible server for the run, a bucket of its own for each test. One that is missing fails the test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dblog_core.config.settings import S3Config
from dblog_core.local.servers.s3 import S3Server
from dblog_core.storage.s3 import S3Storage


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket."""

    server: S3Server
    name: str

    @property
    def settings(self) -> S3Config:
        return self.server.settings

    def storage(self, prefix: str = "") -> S3Storage:
        return S3Storage(self.name, prefix, settings=self.settings)

    def sections(self) -> dict[str, dict[str, Any]]:
        """Sections of a configuration with staging and lake in it."""
        secret = self.settings.secret_key.get_secret_value()
        return {
            "staging": {"path": f"s3://{self.name}/staging"},
            "lake": {"path": f"s3://{self.name}/the lake"},
            "s3": {**self.settings.model_dump(), "secret_key": secret},
        }


@pytest.fixture(scope="session")
def s3_server(server_root: Path) -> Iterator[S3Server]:
    server = S3Server(server_root / "s3")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    name = f"t-{secrets.token_hex(4)}"
    s3_server.make_bucket(name)
    return Bucket(s3_server, name)
