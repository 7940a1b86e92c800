"""A schema registry from a Maven repository: Apicurio, which speaks as Confluent does, in memory, on loopback alone.

For the tests.
"""

from __future__ import annotations

import shutil
import tarfile
import urllib.request
from pathlib import Path

import orjson

from dblog_core import user_cache
from dblog_core.errors import LocalError
from dblog_core.lake.spark_submit import find_java
from dblog_core.local.servers import ports
from dblog_core.local.servers.daemon import Daemon
from dblog_core.local.set_up_programs import run_to_end

VERSION = "2.6.13.Final"  # the newest that Java 17 runs
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"


class RegistryServer:
    """One registry; what it knows ends with it. New versions must be able to read what older ones wrote (BACKWARD)."""

    name = "registry"

    def __init__(self, directory: Path, *, detached: bool = False) -> None:
        self._dir = directory.absolute()
        self._daemon = Daemon(self.name, self._dir, detached=detached)

    @property
    def port(self) -> int:
        return ports.remember_port(self._dir / "port")

    def start(self) -> None:
        self._dir.mkdir(parents=True, exist_ok=True)
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        http = [f"-Dquarkus.http.host={ports.HOST}", f"-Dquarkus.http.port={self.port}"]
        command = [find_java(), *small, *http, "-jar", str(program())]
        self._daemon.start(command, ready=self.ready, timeout=180)
        self._ask("PUT", "/config", {"compatibility": "BACKWARD"})  # as Confluent's own begins

    def ready(self) -> bool:
        try:
            self._ask("GET", "/subjects")
        except OSError:
            return False  # not up yet, or down
        return True

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def address(self) -> str:
        """What a configuration names as its registry."""
        return f"http://{ports.HOST}:{self.port}/apis/ccompat/v7"

    def _ask(self, method: str, path: str, body: object = None) -> None:
        headers = {"Content-Type": "application/json"}
        data = None if body is None else orjson.dumps(body)
        request = urllib.request.Request(self.address() + path, data, headers, method=method)  # noqa: S310  # our own
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            answer.read()


def program() -> Path:
    """Its runnable jar, with the libraries beside it; fetched first where the cache lacks it. Raises LocalError."""
    return user_cache.cache_entry(f"apicurio-{VERSION}", _fill) / f"apicurio-registry-app-{VERSION}-runner.jar"


def _fill(directory: Path) -> None:
    if (maven := shutil.which("mvn")) is None:
        raise LocalError("there is no Maven to fetch the schema registry with", where="registry", fix="install Maven")
    user_cache.print_progress(f"fetching Apicurio {VERSION}, a schema registry (142 MB, once)")
    goal = ["dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={directory}"]
    run_to_end([maven, "-B", "-q", *goal], where="registry", cwd=directory)
    packed = directory / f"apicurio-registry-app-{VERSION}-all.tar.gz"
    user_cache.check_digest(packed, _SHA256, _ARTIFACT)
    with tarfile.open(packed) as tree:
        # The filter refuses names that lead out of the directory.
        tree.extractall(directory, filter="data")
    packed.unlink()
