"""What the files in docker/ say: services, objects of Kubernetes, and the commands of ours in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dblog_core import __version__

ROOT = Path(__file__).parents[2]


DOCKER = ROOT / "docker"


TEXT = (DOCKER / "compose.yaml").read_text()


COMPOSE = yaml.safe_load(TEXT)


SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


KUBERNETES = [
    entry for file in sorted((DOCKER / "kubernetes").glob("*.yaml")) for entry in yaml.safe_load_all(file.read_text())
]


def our_commands() -> Iterator[tuple[str, list[str]]]:
    """What is run by our command: by a service, or by an object of Kubernetes."""
    for name, service in SERVICES.items():
        if service["image"] == f"dblog/dblog:{__version__}" and "entrypoint" not in service:
            yield name, service["command"]
    for entry in KUBERNETES:
        if entry["kind"] == "Deployment":
            yield entry["metadata"]["name"], entry["spec"]["template"]["spec"]["containers"][0]["args"]
