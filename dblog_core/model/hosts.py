"""Which addresses mean this machine: what is sent there crosses no network, so it may go in clear text."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def host_of(place: Any) -> str:
    """The host of HOST or HOST:PORT; one of IPv6 stands in brackets. Empty for what is no text."""
    if not isinstance(place, str):
        return ""
    return place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]


def hosts_of(servers: Any) -> list[str]:
    """The hosts of HOST:PORT,HOST:PORT, or of a URL of such: SCHEME://HOST:PORT,HOST:PORT/PATH."""
    if not isinstance(servers, str):
        return []
    return [host_of(server) for server in servers.rpartition("://")[2].partition("/")[0].split(",")]


def are_all_loopback(*hosts: str) -> bool:
    """Whether all of them are this machine."""
    return all(host in LOOPBACK for host in hosts)


def in_the_clear(url: Any) -> bool:
    """Whether what is sent to the URL goes over a network, and not encrypted."""
    if not isinstance(url, str) or not url.startswith("http://"):
        return False
    try:
        return not are_all_loopback(urlsplit(url).hostname or "")
    except ValueError:  # its form is told elsewhere
        return True
