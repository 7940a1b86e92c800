"""Labels of ENUM and SET keys by the catalogue's text of their type, which has no characters beyond 16 bits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.errors import RequestError
from dblog_core.model.schema import Column
from dblog_core.sources.mysql.sql.where_clause import equal_value


def column(source_type: str) -> Column:
    return Column("k", source_type, pa.string())


def test_a_label_is_found_by_what_the_catalogue_prints_of_it() -> None:
    assert [equal_value(label, column("enum('é','?','a?b')")) for label in ("é", "😀", "a😀b")] == [1, 2, 3]
    assert equal_value("", column("enum('a')")) == 0
    with pytest.raises(RequestError, match="column k: a value that is not one of its labels"):
        equal_value("😀😀", column("enum('?')"))


def test_members_of_a_set_stand_in_the_order_of_its_labels() -> None:
    assert equal_value("x y,😀,a", column("set('a','?','x y')")) == "a,😀,x y"
    assert equal_value("", column("set('a')")) == ""
    with pytest.raises(RequestError, match="column k: a value that is not one of its labels"):
        equal_value("a,c", column("set('a','b')"))


@pytest.mark.parametrize("label", ["😀", "?"])
def test_labels_that_the_catalogue_prints_alike_are_refused(label: str) -> None:
    """Two of them, or one and a question mark: to guess would read another range than was asked for."""
    for kind in ("enum", "set"):
        with pytest.raises(RequestError, match=r"prints several of its labels as '\?'"):
            equal_value(label, column(f"{kind}('?','?','b')"))
