"""Database servers and a browser from Debian packages, unpacked into trees in the cache: nothing is installed or run.

A tree of the machine's own suite runs on the machine's loader and C library; one of another suite brings its own. Both
are hidden behind one small script per program in `TREE/run/`. A program may start another by its place, as initdb does
with postgres: there another suite's tree has the script too.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from dblog_core import user_cache
from dblog_core.errors import LocalError
from dblog_core.local.packages.apt import PrivateApt, UbuntuApt, unpack

_FORMAT = "1"  # grows when the layout of a tree changes
_UNUSED = ("libllvm", "libz3", "libperl", "libdbi-perl")  # PostgreSQL's JIT, which is off; the scripts of packages
_C_LIBRARY = re.compile(r"libc6$|libc-bin$")


@dataclass(frozen=True, slots=True)
class Package:
    """A server to unpack."""

    name: str
    roots: tuple[str, ...]
    """What is asked of apt; regular expressions are allowed where they begin with ^."""
    keep: str
    """Beside libraries, what is unpacked of the closure (no debconf, perl, adduser: no script of a package is run)."""
    programs: tuple[str, ...]
    """Globs below the tree of what gets a script in run/."""
    suite: str | None = None
    """None: the machine's own."""
    libraries: tuple[str, ...] = ()
    """Globs below the tree of directories with libraries, beside the usual ones."""
    environment: tuple[str, ...] = ()
    """What the scripts set, as the shell reads it; $tree is the tree."""
    started_in_place: bool = False
    """Whether its programs start each other where the package has them."""
    apt: type[PrivateApt] = PrivateApt
    """Debian's archive, or Ubuntu's."""

    @property
    def directory(self) -> str:
        special = (self.libraries, self.environment) if self.libraries or self.environment else ()
        if self.started_in_place:
            special = (*special, "started in place")
        spec = repr((_FORMAT, self.roots, self.keep, self.programs, self.suite, *special)).encode()
        return f"{self.name}-{hashlib.sha256(spec).hexdigest()[:12]}"


MYSQL = Package(
    name="mysql",
    roots=("mysql-server-core", "mysql-client"),
    keep=r"mysql-(server-core|client|client-core)$",
    programs=("usr/sbin/mysqld", "usr/bin/mysql", "usr/bin/mysqladmin", "usr/bin/mysqlbinlog", "usr/bin/mysqldump"),
    suite="sid",  # the only suite that has MySQL itself
)
MYSQL_84 = replace(MYSQL, name="mysql-8.4", suite="resolute", apt=UbuntuApt)
MYSQL_80 = replace(
    MYSQL_84,
    name="mysql-8.0",
    roots=("mysql-server-core-8.0", "mysql-client-8.0"),
    keep=r"mysql-(server-core|client|client-core)-8\.0$",
    suite="noble",
)
MARIADB = Package(
    name="mariadb",
    roots=("mariadb-server-core", "mariadb-client", "mariadb-server"),  # the last one for its plugins
    keep=r"mariadb-(server|server-core|client|client-core)$",
    programs=(
        "usr/sbin/mariadbd",
        "usr/bin/mariadb",
        "usr/bin/mariadb-admin",
        "usr/bin/mariadb-binlog",
        "usr/bin/mariadb-dump",
    ),
)
NEWEST_MARIADB = replace(MARIADB, name="newest-mariadb", suite="sid")
"""Its log has other forms than that of the machine's own."""
MARIADB_114 = replace(MARIADB, name="mariadb-11.4", suite="plucky", apt=UbuntuApt)
POSTGRES = Package(
    name="postgres",
    roots=("^postgresql-[0-9]+-wal2json$",),  # a suite has one major version, and this needs its server and client
    keep=r"postgresql-(client-)?\d+(-wal2json)?$",
    programs=("usr/lib/postgresql/*/bin/*",),
)
POSTGRES_18 = replace(POSTGRES, name="postgres-18", suite="sid", started_in_place=True)
POSTGRES_17 = replace(POSTGRES_18, name="postgres-17", suite="trixie")
POSTGRES_16 = replace(POSTGRES_18, name="postgres-16", suite="noble", apt=UbuntuApt)
CHROMIUM = Package(
    name="chromium",
    roots=("chromium", "fonts-dejavu-core"),
    keep=r"(chromium|chromium-common|fontconfig-config|fonts-dejavu-core|shared-mime-info)$",
    programs=("usr/lib/chromium/chromium",),
    libraries=("usr/lib/*-linux-gnu*/pulseaudio",),
    environment=('FONTCONFIG_SYSROOT="$tree"',),
)
OF_A_DEMO = {package.name: package for package in (MYSQL, MARIADB, POSTGRES)}
"""The servers whose tables the demo captures, each by the kind of its source."""
ALL = (MYSQL, MARIADB, NEWEST_MARIADB, POSTGRES, CHROMIUM)
"""What the set-up fetches. The other versions are for tests that are run on them, which fetch them."""


def tree(package: Package) -> Path:
    """The unpacked server; fetched first where the cache lacks it. Raises LocalError."""
    return user_cache.cache_entry(package.directory, lambda part: _fill(package, part))


def program(package: Package, name: str) -> Path:
    """The script that runs a program of the package."""
    return tree(package) / "run" / name


def _fill(package: Package, tree: Path) -> None:
    work = tree / "apt"
    work.mkdir()
    apt = package.apt(work, suite=package.suite)
    user_cache.print_progress(f"{package.name}: reading the package lists of {package.suite or 'this release'}")
    apt.prepare()
    chosen = {n: v for n, v in apt.closure(package.roots).items() if _is_wanted(package, n)}
    user_cache.print_progress(f"{package.name}: fetching {len(chosen)} packages")
    debs = apt.download(chosen)
    user_cache.print_progress(f"{package.name}: unpacking {sum(d.stat().st_size for d in debs) >> 20} MB")
    for deb in debs:
        unpack(deb, tree)
    # Lists and archives, which nobody needs now.
    shutil.rmtree(work)
    _write_scripts(package, tree)


def _is_wanted(package: Package, name: str) -> bool:
    if re.match(package.keep, name):
        return True
    # A newer suite's programs need its own C library; the machine's own suite must not have a second one.
    if _C_LIBRARY.match(name):
        return package.suite is not None
    return (name.startswith("lib") and not name.startswith(_UNUSED)) or name == "zlib1g"


def _write_scripts(package: Package, tree: Path) -> None:
    run = tree / "run"
    run.mkdir()
    patterns = ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*", *package.libraries)
    libraries = [d.relative_to(tree) for pattern in patterns for d in tree.glob(pattern)]
    path = ":".join(f"$tree/{d}" for d in libraries if (tree / d).is_dir())
    start = " ".join([*package.environment, f'LD_LIBRARY_PATH="{path}" exec'])
    if package.suite is not None:
        # Started by its own loader, which finds the C library that belongs to it.
        start = f'exec "$tree/{_loader(tree)}" --library-path "{path}"'
    for pattern in package.programs:
        binaries = list(tree.glob(pattern))
        if not binaries:
            raise LocalError(
                f"its packages hold no {pattern}",
                where=package.name,
                fix="report it: the distribution has moved the file",
            )
        for binary in binaries:
            program = binary
            if package.started_in_place:
                program = binary.rename(binary.with_name(f"{binary.name}.program"))
                _write_script(binary, tree, start, program)
            _write_script(run / binary.name, tree, start, program)


def _write_script(script: Path, tree: Path, start: str, program: Path) -> None:
    up = "/".join([".."] * len(script.parent.relative_to(tree).parts))
    script.write_text(f'#!/bin/sh\ntree="${{0%/*}}/{up}"\n{start} "$tree/{program.relative_to(tree)}" "$@"\n')
    # Servers may run as another user.
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _loader(tree: Path) -> Path:
    for pattern in (
        "lib64/ld-linux*",
        "usr/lib64/ld-linux*",
        "lib/ld-linux*",
        "usr/lib/ld-linux*",
        "usr/lib/*/ld-linux*",
    ):
        for loader in sorted(tree.glob(pattern)):
            return loader.relative_to(tree)
    raise LocalError("the C library's package holds no loader", where=str(tree), fix="report it")
