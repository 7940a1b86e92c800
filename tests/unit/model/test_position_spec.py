"""How places in a log are written, and what is none."""

from __future__ import annotations

import pytest

from dblog_core.model import position_spec
from dblog_core.model.position_spec import Form

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
AT_TEN = 1_763_632_800_000_000  # 2025-11-20T10:00:00Z


@pytest.mark.parametrize(
    ("kind", "text", "form"),
    [
        ("mysql", "earliest", Form.EARLIEST),
        ("mysql", "binlog.000012:4567", Form.FILE),
        ("mariadb", "maria-bin.1000000:4", Form.FILE),
        ("mysql", f"{UUID}:1-77", Form.GTIDS),
        ("mysql", f"{UUID}:1-5:7, {UUID.upper()}:9", Form.GTIDS),
        ("mysql", f"{UUID}:tag_a:1-3", Form.GTIDS),
        ("mysql", f"{UUID}:1-5:tag_a:1-3", Form.GTIDS),
        ("mariadb", "0-1-77", Form.GTIDS),
        ("mariadb", "0-1-77,1-3-9", Form.GTIDS),
        ("postgres", "0/16B3748", Form.LSN),
        ("postgres", "2025-11-20T10:00:00Z", Form.TIME),
    ],
)
def test_each_kind_has_its_forms(kind: str, text: str, form: Form) -> None:
    assert position_spec.parse(text, kind).form is form


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mysql", "0/16B3748"),
        ("mysql", "0-1-77"),
        ("mariadb", f"{UUID}:1-77"),
        ("postgres", "binlog.000012:4567"),
        ("mysql", "binlog.000012"),
        ("mysql", "binlog.000012:"),
        ("mysql", "../binlog.000012:4"),
        ("mysql", f"{UUID}"),
        ("mysql", "newest"),
        ("postgres", ""),
        ("postgres", "2025-11-20T10:00:00"),
        ("postgres", "2025-11-20"),
        ("postgres", "2025-13-20T10:00:00Z"),
    ],
)
def test_what_is_no_place_of_the_kind_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^is (no place|no time|a time without its zone)"):
        position_spec.parse(text, kind)


@pytest.mark.parametrize("text", ["2025-11-20T10:00:00Z", "2025-11-20T11:00:00+01:00", "2025-11-20 10:00:00.000000Z"])
def test_a_time_is_that_moment_in_any_zone(text: str) -> None:
    assert position_spec.parse(text, "mysql").time == AT_TEN
    assert position_spec.in_words(AT_TEN) == "2025-11-20T10:00:00Z"


def test_a_file_and_its_offset_are_told_apart() -> None:
    assert position_spec.parse("my.log.000012:4567", "mysql").file == ("my.log.000012", 4567)
