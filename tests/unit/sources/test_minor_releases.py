"""Which releases of servers lose what: by the text or the number that a server gives as its version."""

from __future__ import annotations

import pytest

from dblog_core.sources import minor_releases
from dblog_core.sources.minor_releases import LATE_PUBLICATION, LATE_XA_COMMIT


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (150000, 4), (150005, 4), (150006, 2), (150007, 2), (150008, 1), (150012, 1), (150013, 0), (150020, 0),
        (160001, 3), (160002, 2), (160003, 2), (160004, 1), (160008, 1), (160009, 0),
        (170000, 1), (170004, 1), (170005, 0), (170010, 0), (180000, 0), (180006, 0), (190000, 0),
    ],
)  # fmt: skip
def test_check_warns_of_each_fault_of_a_release_of_postgres(number: int, told: int) -> None:
    version = minor_releases.of_postgres(number)
    problems = list(minor_releases.problems("postgres", version))
    assert len(problems) == told
    assert not any(problem.fatal for problem in problems)
    release = f"{number // 10_000}.{number % 10_000}"
    assert all(problem.what.startswith(f"PostgreSQL {release}: ") for problem in problems)
    assert all("update the server to " in problem.fix for problem in problems)
    assert LATE_PUBLICATION.concerns("postgres", version) == (told > 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8.0.0-dmr", 1), ("8.0.28", 1), ("8.0.29", 2), ("8.0.29-21", 2), ("8.0.29-0ubuntu0.22.04.3", 2),
        ("8.0.30", 0), ("8.0.46-0ubuntu0.24.04.5", 0), ("8.4.0", 0), ("9.7.4-2", 0), ("8.0", 1),
    ],
)  # fmt: skip
def test_check_warns_of_each_fault_of_a_release_of_mysql(text: str, told: int) -> None:
    version = minor_releases.parse(text)
    assert len(list(minor_releases.problems("mysql", version))) == told
    assert LATE_XA_COMMIT.concerns("mysql", version) == (told > 0)


def test_mariadb_is_no_mysql() -> None:
    assert list(minor_releases.problems("mariadb", minor_releases.parse("8.0.1-MariaDB"))) == []


def test_a_text_without_numbers_is_no_version() -> None:
    assert minor_releases.parse("unknown") == ()


def test_the_page_of_the_module_has_a_row_for_each_fault() -> None:
    page = minor_releases.__doc__ or ""
    for fault in minor_releases.FAULTS:
        for fixed in fault.fixed:
            assert ".".join(map(str, fixed[-2:] if len(fixed) == 2 else fixed)) in page
