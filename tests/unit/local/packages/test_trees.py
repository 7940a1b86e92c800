"""Where packages are asked for, and the cache that they are kept in."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dblog_core import user_cache
from dblog_core.local.packages import apt
from dblog_core.local.packages.apt import repositories

STANZAS = """\
Types: deb deb-src
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Trusted: yes

Types: deb
URIs: http://other.example/apt
Suites: bookworm-other
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""
LINES = """\
# deb http://old.example/debian bookworm main
deb http://third.example/linux bookworm stable
deb-src http://mirror.example/debian bookworm main
deb http://security.example/debian-security bookworm-security main
deb [arch=amd64,arm64 signed-by=/etc/keys/debian.gpg] http://mirror.example/debian/ bookworm main contrib # note
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_stanzas_of_the_distribution_are_found_with_all_that_is_said_of_them(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(STANZAS)
    archive, security = repositories(etc, "bookworm")
    assert archive.stanza(["sid"]).splitlines() == [
        "Types: deb",
        "URIs: http://mirror.example/debian",
        "Suites: sid",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]
    assert (security.suites, security.fields) == (("bookworm-security",), {"Trusted": "yes"})


def test_a_key_inside_a_stanza_is_kept_whole(etc: Path) -> None:
    key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY\n -----END PGP PUBLIC KEY BLOCK-----\n"
    stanza = f"Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n{key}"
    (etc / "sources.list.d" / "debian.sources").write_text(stanza)
    assert " .\n mDMEY\n -----END" in repositories(etc, "bookworm")[0].stanza(["sid"])


def test_lines_of_the_distribution_are_found_and_the_archive_comes_first(etc: Path) -> None:
    (etc / "sources.list").write_text(LINES)
    archive, security = repositories(etc, "bookworm")
    assert archive.uri == "http://mirror.example/debian/"
    assert archive.fields == {"Architectures": "amd64 arm64", "Signed-By": "/etc/keys/debian.gpg"}
    assert security.suites == ("bookworm-security",)


@pytest.mark.parametrize(
    ("architecture", "mirror"), [("amd64", "http://main.example"), ("arm64", "http://ports.example")]
)
def test_ubuntus_archive_and_keys_are_those_that_debian_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, mirror: str
) -> None:
    def answer(command: list[str], *, env: dict[str, str], cwd: Path | None = None) -> str:
        if command[0] == "dpkg":
            return architecture + "\n"
        if "install" in command:
            return "Inst debootstrap (1.0 Debian:sid)\nInst ubuntu-keyring (2.0 Debian:sid)\nInst wget (3 Debian:sid)\n"
        if "download" in command:
            assert cwd is not None and command[-2:] == ["debootstrap=1.0", "ubuntu-keyring=2.0"]
            (cwd / "debootstrap.deb").touch()
        if command[0] == "dpkg-deb":
            scripts = Path(command[-1]) / "usr/share/debootstrap/scripts"
            scripts.mkdir(parents=True)
            (scripts / "gutsy").write_text("default_mirror http://main.example\ndefault_mirror http://ports.example\n")
        return ""

    monkeypatch.setattr(apt, "_run_command", answer)
    monkeypatch.setattr(apt, "repositories", lambda: [apt.Repository("http://debian.example", ("bookworm",), {})])
    apt.UbuntuApt(tmp_path, suite="noble").prepare()
    assert (tmp_path / "sources" / "distribution.sources").read_text().splitlines() == [
        "Types: deb",
        f"URIs: {mirror}",
        "Suites: noble noble-updates noble-security",
        "Components: main universe",
        f"Signed-By: {tmp_path}/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    ]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DBLOG_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_an_entry_is_made_once_however_many_ask(own_cache: Path) -> None:
    filled: list[Path] = []
    gate = threading.Barrier(4)

    def ask() -> None:
        gate.wait()
        user_cache.cache_entry("thing", filled.append)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(filled) == 1
    assert (own_cache / "thing").is_dir()


def test_what_failed_or_was_killed_half_way_is_never_seen(own_cache: Path) -> None:
    def fail(part: Path) -> None:
        (part / "half").touch()
        raise OSError("mirror away")

    with pytest.raises(OSError, match="mirror away"):
        user_cache.cache_entry("thing", fail)
    killed = own_cache / ".thing.part-left"
    killed.mkdir()
    entry = user_cache.cache_entry("thing", lambda part: (part / "whole").touch())
    assert [path.name for path in entry.iterdir()] == ["whole"]
    assert not killed.exists()


def test_what_an_image_ships_is_taken_from_there_and_nothing_is_written_beside_it(
    own_cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path_factory.mktemp("shipped")
    (shipped / "thing").mkdir()
    monkeypatch.setenv("DBLOG_SHIPPED_DIR", str(shipped))
    filled: list[Path] = []
    assert user_cache.cache_entry("thing", filled.append) == shipped / "thing"
    assert filled == [] and list(own_cache.iterdir()) == []
    assert user_cache.cache_entry("other", filled.append) == own_cache / "other"
    assert [path.name for path in shipped.iterdir()] == ["thing"]
