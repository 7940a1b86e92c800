"""The two jars of Delta Lake, which its Python package lacks: fetched once, checked by digest, kept in the cache.

Spark itself would ask its resolvers again at every start.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dblog_core.local import cache
from dblog_core.local.errors import LocalError
from dblog_core.local.zookeeper import java


@dataclass(frozen=True, slots=True)
class Jar:
    """A Maven artifact and what it must be."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


DELTA = (
    Jar(
        "io.delta", "delta-spark_4.2_2.13", "4.4.0", "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    Jar("io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)


def jars() -> list[Path]:
    """The jars to start Spark with; fetched first where the cache lacks them. Raises LocalError."""
    digest = hashlib.sha256("".join(jar.sha256 for jar in DELTA).encode()).hexdigest()[:12]
    directory = cache.entry(f"jars-{digest}", _fill)
    return [directory / jar.file for jar in DELTA]


def _fill(directory: Path) -> None:
    fetch = _by_maven if shutil.which("mvn") else _by_spark
    cache.say(f"fetching {len(DELTA)} jars of Delta Lake")
    work = directory / "work"
    work.mkdir()
    fetch(directory, work)
    shutil.rmtree(work)
    for jar in DELTA:
        _check(directory / jar.file, jar)


def _check(path: Path, jar: Jar) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise LocalError(
            f"{jar.coordinates} has the digest {found} in place of {jar.sha256}",
            fix="the repository that this machine uses serves another file under that name: do not use it",
        )


def _by_maven(directory: Path, work: Path) -> None:
    for jar in DELTA:
        what = [f"-Dartifact={jar.coordinates}", f"-DoutputDirectory={directory}"]
        _run(["mvn", "-B", "-q", "dependency:copy", *what], cwd=work, env={})


def _by_spark(directory: Path, work: Path) -> None:
    """Spark's own resolver, through an empty job. In a home of its own: a half-filled repository makes it fail."""
    job = work / "empty.py"
    job.touch()
    packages = ",".join(jar.coordinates for jar in DELTA)
    options = ["--master", "local[1]", "--conf", f"spark.jars.ivy={work / 'ivy'}", "--packages", packages]
    submit = [str(Path(sys.executable).with_name("spark-submit")), *options]
    env = {"JAVA_HOME": str(Path(java()).resolve().parent.parent), "PYSPARK_PYTHON": sys.executable}
    _run([*submit, "--driver-java-options", f"-Duser.home={work}", str(job)], cwd=work, env=env)
    for jar in DELTA:
        shutil.copyfile(work / "ivy" / "jars" / f"{jar.group}_{jar.file}", directory / jar.file)


def _run(command: list[str], *, cwd: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run(command, check=False, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise LocalError(f"`{command[0]}` could not fetch Delta's jars:\n{said}", fix="is a Maven repository in reach?")
