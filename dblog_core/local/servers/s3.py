"""An S3-compatible server: versitygw, built once by Go, whose objects are files; without Go moto's, in memory.

For the tests.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from dblog_core.config.settings import S3Config
from dblog_core.errors import LocalError
from dblog_core.local.packages import versitygw
from dblog_core.local.servers import ports
from dblog_core.local.servers.daemon import Daemon
from dblog_core.local.servers.server import remembered_password

ACCESS_KEY = "dblog"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM: of a server's certificate and key, and of the authority that has signed it."""

    file: str
    key: str
    authority: str


class S3Server:
    """One server. With moto the objects end with it; `mock` chooses that one where Go is installed too. With a
    `certificate` it speaks TLS."""

    name = "s3"

    def __init__(
        self,
        directory: Path,
        *,
        detached: bool = False,
        mock: bool | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        self.host = ports.HOST
        self._dir = directory.absolute()
        # moto is for machines without Go.
        self._mock = not versitygw.can_be_built() if mock is None else mock
        self._certificate = certificate
        self._daemon = Daemon(self.name, self._dir, detached=detached)

    @property
    def port(self) -> int:
        return ports.remember_port(self._dir / "port")

    @property
    def settings(self) -> S3Config:
        """What a configuration says of it, as `[s3]`."""
        return S3Config.model_validate(
            {
                "endpoint": f"{'https' if self._certificate else 'http'}://{self.address()}",
                "tls_ca": self._certificate.authority if self._certificate else None,
                "region": "us-east-1",
                "access_key": ACCESS_KEY,
                "secret_key": self._secret(),
            }
        )

    def start(self) -> None:
        (self._dir / "objects").mkdir(parents=True, exist_ok=True)
        env = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": self._secret(), "VGW_REGION": "us-east-1"}
        self._daemon.start(self._command(), ready=self.ready, env=env)

    def ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=2):
                return True
        except OSError:
            return False  # not up yet, or down

    def make_bucket(self, name: str) -> None:
        """A new, empty bucket."""
        import botocore.session

        settings = self.settings
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key.get_secret_value(),
            verify=str(settings.tls_ca) if settings.tls_ca else None,
        )
        client.create_bucket(Bucket=name)
        client.close()

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def _secret(self) -> str:
        return remembered_password(self._dir / "secret")

    def _command(self) -> list[str | Path]:
        certificate = self._certificate
        if self._mock:
            # moto is a dependency of the tests, not of the package.
            if importlib.util.find_spec("moto") is None:
                raise LocalError("neither Go nor moto is installed", where=self.name, fix="make setup")
            tls = ["-c", certificate.file, "-k", certificate.key] if certificate else []
            return [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port), *tls]
        tls = ["--cert", certificate.file, "--key", certificate.key] if certificate else []
        return [versitygw.program(), "--port", self.address(), "--quiet", *tls, "posix", self._dir / "objects"]
