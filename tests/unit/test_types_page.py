"""docs/types.md says what the code does: its tables are made of the mapping itself."""

from __future__ import annotations

import pytest

from dblog_core.sources.mysql.values import types
from tests import types_page
from tests.types_page import MARIADB, MYSQL, MYSQL_ROWS, NAMES, catalogue_entry


def test_the_page_is_what_the_code_does() -> None:
    page = types_page.PAGE.read_text()
    assert page == types_page.write_tables(page), "run `python -m tests.types_page`, and read what has changed"


@pytest.mark.parametrize("kind", [MYSQL, MARIADB])
def test_every_type_of_the_manual_is_on_the_page(kind: str) -> None:
    listed = {catalogue_entry(declared)[0] for row in MYSQL_ROWS if kind in row.on for declared in row.declared}
    assert listed == NAMES[kind]


def test_no_other_type_is_taken() -> None:
    """The code knows no type that the page does not have; `geometrycollection` is one, by either server's name."""
    for name in types._BY_NAME:
        assert name in NAMES[MYSQL] | NAMES[MARIADB]
    with pytest.raises(types.UnsupportedType, match="is not supported"):
        types.from_catalogue("xmltype", "xmltype", None, None, None)
