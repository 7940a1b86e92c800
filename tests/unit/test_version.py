"""The version stands in `dblog_core.__version__`; whatever must repeat it says the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from dblog_core import __version__

ROOT = Path(__file__).parents[2]
OUR_IMAGE = re.compile(r"\bdblog(?:/dblog|/airflow|-airflow)?:(\d[\w.]*)")
LABEL = re.compile(r'\borg\.opencontainers\.image\.version="([^"]*)"')


def test_the_package_takes_its_version_from_the_module() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in pyproject["project"] and "version" in pyproject["project"]["dynamic"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dblog_core.__version__"}


def test_every_image_carries_the_version() -> None:
    files = [file for folder in ("docker", "docs") for file in (ROOT / folder).rglob("*") if file.is_file()]
    texts = [file.read_text() for file in files if file.suffix not in {".png", ".svg"}]
    versions = [version for text in texts for version in OUR_IMAGE.findall(text)]
    assert len(versions) >= 6  # two in the compose file, and those of Kubernetes
    labels = LABEL.findall((ROOT / "docker" / "Dockerfile").read_text())
    assert len(labels) == 2 and {*versions, *labels} == {__version__}


def test_the_changelog_names_the_version_in_its_first_entry_or_in_development() -> None:
    """As in Keep a Changelog: `Unreleased` first, then versions with their dates, the newest first."""
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    assert all(released)
    assert f"`{__version__}`" in text or [entry and entry[1] for entry in released][:1] == [__version__]
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
