"""The jars that Spark lacks, fetched once, checked by digest, kept in the cache: Delta Lake's, and those for S3.

Spark itself would ask its resolvers again at every start. Those for S3 (659 MB) are fetched when they are first needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dblog_core import user_cache
from dblog_core.errors import LocalError
from dblog_core.lake.spark_submit import find_java


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
S3 = (
    Jar("org.apache.hadoop", "hadoop-aws", "3.5.0", "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa"),
    Jar(  # S3A names its classes even where another kind of stream is asked for
        "software.amazon.s3.analyticsaccelerator",
        "analyticsaccelerator-s3",
        "1.3.1",
        "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    ),
    Jar(
        "software.amazon.awssdk", "bundle", "2.35.4", "db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677"
    ),
)


_unchanged: set[tuple[object, ...]] = set()
"""Files of which this process has checked the digest."""


def fetch_delta_jars() -> list[Path]:
    """Delta's jars; fetched first where the cache lacks them. Raises LocalError."""
    return fetch_jars(DELTA, "Delta Lake")


def fetch_s3_jars() -> list[Path]:
    """The jars with which Spark reads and writes s3:// paths; fetched like the others. Raises LocalError."""
    return fetch_jars(S3, "Hadoop for S3 (659 MB)")


def fetch_jars(jars: Sequence[Jar], what: str) -> list[Path]:
    """Those jars; fetched first where the cache lacks them. Raises LocalError, also for one that has changed since."""
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()[:12]
    directory = user_cache.cache_entry(f"jars-{digest}", lambda part: _fill(part, jars, what))
    for jar in jars:
        _check_unchanged(directory / jar.file, jar)
    return [directory / jar.file for jar in jars]


def _check_unchanged(path: Path, jar: Jar) -> None:
    """A jar is a program: what it was when it was fetched does not say what it is now. Once for each file, since it may
    have hundreds of megabytes."""
    try:
        state = path.stat()
        identity = (path, jar.sha256, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        if identity not in _unchanged:
            user_cache.check_digest(path, jar.sha256, jar.coordinates)
            _unchanged.add(identity)
    except (OSError, LocalError) as error:
        raise LocalError(
            f"{path} is not the jar that was fetched: {error.reason if isinstance(error, LocalError) else error}",
            where=str(path.parent),
            fix="look who may write there; then remove the directory, and it is fetched again",
        ) from error


def _fill(directory: Path, jars: Sequence[Jar], what: str) -> None:
    fetch = _by_maven if shutil.which("mvn") else _by_spark
    user_cache.print_progress(f"fetching {len(jars)} jars of {what}")
    # Inside the part directory: what is left of it goes with it.
    work = directory / "work"
    work.mkdir()
    fetch(directory, work, jars)
    shutil.rmtree(work)
    for jar in jars:
        user_cache.check_digest(directory / jar.file, jar.sha256, jar.coordinates)


def _by_maven(directory: Path, work: Path, jars: Sequence[Jar]) -> None:
    """One start of Maven, through a project that depends on just these."""
    items = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.name}</artifactId><version>{jar.version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for jar in jars
    )
    (work / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>dblog</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><dependencies>{items}</dependencies></project>"
    )
    what = [f"-DoutputDirectory={directory}", "-DincludeScope=runtime"]
    _run(["mvn", "-B", "-q", "dependency:copy-dependencies", *what], cwd=work, env={})


def _by_spark(directory: Path, work: Path, jars: Sequence[Jar]) -> None:
    """Spark's own resolver, through an empty job. In a home of its own: a half-filled repository makes it fail."""
    job = work / "empty.py"
    job.touch()
    packages = ",".join(jar.coordinates for jar in jars)
    options = ["--master", "local[1]", "--conf", f"spark.jars.ivy={work / 'ivy'}", "--packages", packages]
    submit = [str(Path(sys.executable).with_name("spark-submit")), *options]
    env = {"JAVA_HOME": str(Path(find_java()).resolve().parent.parent), "PYSPARK_PYTHON": sys.executable}
    _run([*submit, "--driver-java-options", f"-Duser.home={work}", str(job)], cwd=work, env=env)
    for jar in jars:
        shutil.copyfile(work / "ivy" / "jars" / f"{jar.group}_{jar.file}", directory / jar.file)


def _run(command: list[str], *, cwd: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run(command, check=False, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise LocalError(f"`{command[0]}` could not fetch the jars:\n{output}", fix="is a Maven repository in reach?")
