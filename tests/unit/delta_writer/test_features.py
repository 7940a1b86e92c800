"""Which tables can be read by their data files and vectors alone."""

from __future__ import annotations

from typing import Any

import pytest

from dblog_core.delta_writer.features import TableRefused, check_rows_readable, protects_log

PLAIN: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
MAPPED: dict[str, Any] = {"configuration": {"delta.columnMapping.mode": "name"}}


@pytest.mark.parametrize(
    "protocol",
    [
        PLAIN,
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors", "columnMapping"]},
    ],
)
def test_rows_of_known_protocols_are_readable(protocol: dict[str, Any]) -> None:
    check_rows_readable(protocol, MAPPED, "table")


@pytest.mark.parametrize(
    ("protocol", "metadata", "reason"),
    [
        ({"minReaderVersion": 4}, {}, "protocol for readers is 4"),
        ({"minReaderVersion": 3, "readerFeatures": ["catalogManaged"]}, {}, "reader feature catalogManaged"),
        (PLAIN, {"configuration": {"delta.columnMapping.mode": "other"}}, "column mapping is other"),
    ],
)
def test_rows_that_stand_elsewhere_too_are_refused(
    protocol: dict[str, Any], metadata: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TableRefused, match=reason):
        check_rows_readable(protocol, metadata, "table")


@pytest.mark.parametrize(
    ("features", "is_protected"),
    [
        (["appendOnly", "invariants"], False),
        (["changeDataFeed", "deletionVectors", "domainMetadata", "rowTracking"], False),
        (["deletionVectors", "checkpointProtection"], True),
        (["catalogManaged"], True),
        (["a feature of tomorrow"], True),
    ],
)
def test_the_log_of_what_is_not_known_is_left_to_delta(features: list[str], is_protected: bool) -> None:
    assert protects_log(features) == is_protected
