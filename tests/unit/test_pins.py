"""What set-up and images fetch is fixed by its version, and by a digest or a signature: it is one file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dblog_core.local.packages import kafka_jars, spark_jars, versitygw

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    ROOT / "Makefile",
    *sorted(file for file in (ROOT / "tools").iterdir() if file.read_bytes().startswith(b"#!/usr/bin/env bash")),
    *sorted((ROOT / "docker" / "steps").iterdir()),
    ROOT / "docker" / "Dockerfile",
]
LOCKS = (
    "requirements.txt",
    "tools/demo-requirements.txt",
    "tools/lock-requirements.txt",
    "tests/benchmarks/requirements.txt",
)
IMAGE_LOCKS = ("docker/dblog/requirements.txt", "docker/airflow/requirements.txt")
_FETCH = re.compile(
    r"\b(pip(3(\.\d+)?)?\b.* (install|download)|pipx|uvx|curl|wget|git clone|npm|go (install|get)|mvn)\b"
)


def commands(script: Path) -> list[str]:
    """Its lines with those that continue them, without comments."""
    text = re.sub(r"^\s*#.*$|\s#\s.*$", "", script.read_text(), flags=re.MULTILINE)
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def is_pinned(command: str) -> bool:
    """By the hashes of a lock; or it installs the checkout itself, and nothing that this needs."""
    if "--require-hashes" in command and re.search(r" -r (\S+)", command):
        return True
    ours = re.search(r"--no-deps --no-build-isolation( --editable)? \.$", command)
    return ours is not None


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_a_script_fetches_only_what_a_lock_names(script: Path) -> None:
    fetches = [command for command in commands(script) if _FETCH.search(command)]
    assert [command for command in fetches if not is_pinned(command)] == []


def test_the_scripts_that_fetch_are_found() -> None:
    """Otherwise a test above would pass because it sees nothing."""
    names = {script.name for script in SCRIPTS if any(_FETCH.search(command) for command in commands(script))}
    assert names == {"setup", "setup-bench", "lock", "environment", "package"}
    assert not is_pinned('"$work/bin/pip" install --quiet uv==0.13.9') and _FETCH.search("pip3.11 -q install uv")


@pytest.mark.parametrize("lock", [*LOCKS, *IMAGE_LOCKS])
def test_a_lock_has_one_version_and_hashes_for_each_package(lock: str) -> None:
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    unpinned = [e.split()[0] for e in entries if not re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", e)]
    assert entries and unpinned == []


def test_what_builds_the_package_comes_from_the_lock() -> None:
    """`--no-build-isolation` takes it from the environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = [re.split(r"[<>=!~ ]", requirement)[0] for requirement in project["build-system"]["requires"]]
    for lock in ("requirements.txt", *IMAGE_LOCKS):
        assert [name for name in names if f"\n{name}==" not in "\n" + (ROOT / lock).read_text()] == [], lock


def test_each_image_is_fixed_by_its_digest() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    images = re.findall(r"^FROM (\S+)", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    fetched = [image for image in images if image not in stages]
    assert fetched and [image for image in fetched if not re.search(r":\S+@sha256:[0-9a-f]{64}$", image)] == []


def test_each_jar_and_the_s3_server_are_of_one_version() -> None:
    jars = [*spark_jars.DELTA, *spark_jars.S3, *kafka_jars.JARS]
    assert [jar.coordinates for jar in jars if not re.fullmatch(r"[0-9a-f]{64}", jar.sha256)] == []
    assert [jar.coordinates for jar in jars if re.search(r"SNAPSHOT|LATEST|RELEASE|[\[\](,]", jar.version)] == []
    # Go refuses a module that differs from what the public record of checksums says of this version.
    assert re.fullmatch(r"\d+\.\d+\.\d+", versitygw.VERSION)
