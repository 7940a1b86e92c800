"""How columns are stored, and which changes of that keep each value, and its text in the lake.

The servers log no row for a conversion, and some lose something without an error, also in strict mode: digits behind
the point are rounded, blanks at the end are cut, a fraction of a second is dropped. So this is a closed list: a change
that it does not hold may give other values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dblog_core.sources.mysql.values.types import LARGEST_DECIMAL

UTF8_OLD = "utf8mb3"
UTF8_NEW = "utf8mb4"
_EITHER_UTF8 = "utf8"
"""In a statement: by a setting of the server it is either of the two."""
_WIDTHS = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INT": 4, "BIGINT": 8}
_TEXTS = {"TINYTEXT": 2**8 - 1, "TEXT": 2**16 - 1, "MEDIUMTEXT": 2**24 - 1, "LONGTEXT": 2**32 - 1}
"""The most bytes of a value; the next too."""
_BLOBS = {"TINYBLOB": 2**8 - 1, "BLOB": 2**16 - 1, "MEDIUMBLOB": 2**24 - 1, "LONGBLOB": 2**32 - 1}
_LONGEST_CHARACTER = 4
"""Bytes, in any character set of the servers."""
_SYNONYMS = {"INTEGER": "INT", "NUMERIC": "DECIMAL", "BOOL": "TINYINT", "BOOLEAN": "TINYINT"}
_USUAL_NUMBERS = {
    "DECIMAL": (10, 0),
    "BIT": (1,),
    "CHAR": (1,),
    "BINARY": (1,),
    **dict.fromkeys(("DATETIME", "TIMESTAMP", "TIME"), (0,)),
}
"""What a type has where its definition gives no number."""
WITH_CHARSET = frozenset({"CHAR", "VARCHAR", "ENUM", "SET", *_TEXTS})
_UNLABELLED = re.compile(r"(\w+)(?:\(([0-9,]+)\))?((?: unsigned| zerofill)*)", re.IGNORECASE)
_LABELLED = re.compile(r"(?:enum|set)\((.*)\)", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"'((?:[^'\\]|'')*)'(?:,|$)")


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """How a column is stored.

    `type` as the catalogue's DATA_TYPE, in upper case; `numbers`: the length, the digits, or the digits of a fraction;
    `nullable`: whether NULL is certainly kept; `is_numbered`: AUTO_INCREMENT.
    """

    type: str
    numbers: tuple[int, ...] = ()
    unsigned: bool = False
    charset: str = ""
    labels: tuple[str, ...] = ()
    nullable: bool = True
    is_numbered: bool = False


@dataclass(frozen=True, slots=True)
class TableForm:
    """The columns of a table by their names in lower case; None: nobody knows how it is stored.

    `charset`: of a column whose definition names none; empty: it is not known. `computed`: columns whose values the
    server computes from others, or may compute.
    """

    columns: Mapping[str, ColumnForm | None]
    charset: str = ""
    computed: frozenset[str] = field(default_factory=frozenset)


def charset_of(collation: str) -> str:
    """The character set of a collation: the servers' names of collations begin with it. Where MariaDB's do not, this is
    the name of none."""
    return collation.partition("_")[0].lower()


def is_same_charset(before: str, after: str) -> bool:
    """Whether both are certainly one."""
    return before == after != _EITHER_UTF8


def keeps_text(before: str, after: str) -> bool:
    """Whether text has the same characters, and the same bytes, in both character sets."""
    either = {_EITHER_UTF8: (UTF8_OLD, UTF8_NEW)}
    pairs = [(old, new) for old in either.get(before, (before,)) for new in either.get(after, (after,))]
    return all(old == new != "" or (old, new) == (UTF8_OLD, UTF8_NEW) for old, new in pairs)


def make_form(
    type_name: str,
    numbers: tuple[int, ...] = (),
    *,
    unsigned: bool = False,
    charset: str = "",
    labels: tuple[str, ...] = (),
    nullable: bool = True,
    is_numbered: bool = False,
) -> ColumnForm | None:
    """The form of a column with this definition; None where it is not certain."""
    kind = _SYNONYMS.get(type_name, type_name)
    # TEXT(n) is the smallest of the four that holds so much, and FLOAT(n) either of the two.
    if numbers and (kind in _TEXTS or kind in _BLOBS or (kind in ("FLOAT", "DOUBLE") and len(numbers) != 2)):
        return None
    if kind in WITH_CHARSET and not charset:
        return None
    if kind in _WIDTHS or kind == "YEAR":
        numbers = ()  # how many digits are printed
    usual = _USUAL_NUMBERS.get(kind, ())
    numbers = numbers + usual[len(numbers) :]
    return ColumnForm(kind, numbers, unsigned, charset if kind in WITH_CHARSET else "", labels, nullable, is_numbered)


def read_catalogue(
    data_type: str, column_type: str, charset: str | None, *, nullable: bool, is_numbered: bool
) -> ColumnForm | None:
    """The form of a column of the catalogue; None where its text says more than is known here."""
    kind = data_type.upper()
    form = make_form(kind, charset=stored_charset(charset), nullable=nullable, is_numbered=is_numbered)
    if (labelled := _LABELLED.fullmatch(column_type)) is not None and form is not None:
        labels = _read_labels(labelled[1])
        return replace(form, labels=labels) if labels is not None else None
    match = _UNLABELLED.fullmatch(column_type)
    if match is None or match[1].upper() != kind:
        return None
    numbers = tuple(map(int, match[2].split(","))) if match[2] else ()
    unsigned = bool(match[3])  # what is printed with zeros has no sign
    return make_form(
        kind, numbers, unsigned=unsigned, charset=stored_charset(charset), nullable=nullable, is_numbered=is_numbered
    )


def stored_charset(charset: str | None) -> str:
    """As the catalogue names it, of which older ones call the older UTF-8 so."""
    return UTF8_OLD if charset == _EITHER_UTF8 else charset or ""


def _read_labels(text: str) -> tuple[str, ...] | None:
    """None where the catalogue may print a label otherwise than it is: it has a question mark for some characters."""
    labels = [match[1].replace("''", "'") for match in _LABEL.finditer(text)]
    is_whole = sum(len(match[0]) for match in _LABEL.finditer(text)) == len(text)
    return None if not is_whole or "?" in text or not text.isascii() else tuple(labels)


def keeps_values(before: ColumnForm | None, after: ColumnForm | None, *, strict: bool, plain: bool) -> bool:
    """Whether each value, and its text in the lake, is proven to be the same after the change.

    `strict`: of the session that makes it; `plain`: the values are staged as they are, under no rule of
    [source.columns].
    """
    if before is None or after is None or (after.is_numbered and not before.is_numbered):  # then each 0 gets a number
        return False
    # A strict session refuses NULL; a TIMESTAMP has the present time then.
    if before.nullable and not after.nullable and (not strict or after.type == "TIMESTAMP"):
        return False
    same = replace(after, nullable=before.nullable, is_numbered=before.is_numbered) == before
    if same and is_same_charset(before.charset, after.charset):
        return True
    return any(keeps(before, after) for keeps in _SAME_TEXTS) or (
        plain and any(keeps(before, after) for keeps in _WIDENED_IN_THE_LAKE)
    )


def _is_wider_integer(before: ColumnForm, after: ColumnForm) -> bool:
    old, new = _WIDTHS.get(before.type), _WIDTHS.get(after.type)
    if old is None or new is None:
        return False
    if before.unsigned == after.unsigned:
        return new >= old
    return before.unsigned and new > old


def _has_more_digits(before: ColumnForm, after: ColumnForm) -> bool:
    """Of the same scale: the lake has the text of decimals of many digits, with each digit of the scale."""
    if not before.type == after.type == "DECIMAL" or (after.unsigned and not before.unsigned):
        return False
    (old, old_scale), (new, new_scale) = before.numbers, after.numbers
    is_one_type = (old > LARGEST_DECIMAL) == (new > LARGEST_DECIMAL)
    return new_scale == old_scale and new >= old and is_one_type


def _is_longer_text(before: ColumnForm, after: ColumnForm) -> bool:
    """A CHAR keeps its form: blanks at its end are no part of a value, and of all others they are."""
    if not keeps_text(before.charset, after.charset):
        return False
    if before.type == after.type and before.type in ("CHAR", "VARCHAR"):
        return after.numbers >= before.numbers
    if after.type not in _TEXTS:
        return False
    if before.type == "VARCHAR":
        return before.numbers[0] * _LONGEST_CHARACTER <= _TEXTS[after.type]
    return before.type in _TEXTS and _TEXTS[before.type] <= _TEXTS[after.type]


def _is_longer_binary(before: ColumnForm, after: ColumnForm) -> bool:
    if before.type == after.type == "VARBINARY":
        return after.numbers >= before.numbers
    if after.type not in _BLOBS:
        return False
    if before.type == "VARBINARY":
        return before.numbers[0] <= _BLOBS[after.type]
    return before.type in _BLOBS and _BLOBS[before.type] <= _BLOBS[after.type]


def _has_more_labels(before: ColumnForm, after: ColumnForm) -> bool:
    """Values are stored as numbers of labels, so that those which were there have to be the first."""
    if before.type != after.type or before.type not in ("ENUM", "SET"):
        return False
    are_first = after.labels[: len(before.labels)] == before.labels
    return are_first and bool(before.labels) and keeps_text(before.charset, after.charset)


def _has_longer_fraction(before: ColumnForm, after: ColumnForm) -> bool:
    """Not TIME: the lake has its text, with each digit."""
    return before.type == after.type and before.type in ("DATETIME", "TIMESTAMP") and after.numbers >= before.numbers


def _has_larger_scale(before: ColumnForm, after: ColumnForm) -> bool:
    if not before.type == after.type == "DECIMAL" or (after.unsigned and not before.unsigned):
        return False
    (old, old_scale), (new, new_scale) = before.numbers, after.numbers
    is_wider = new_scale >= old_scale and new - new_scale >= old - old_scale
    return is_wider and new <= LARGEST_DECIMAL


def _is_double_of_float(before: ColumnForm, after: ColumnForm) -> bool:
    is_signed = not before.unsigned and not after.unsigned
    return is_signed and (before.type, before.numbers, after.type, after.numbers) == ("FLOAT", (), "DOUBLE", ())


def _is_midnight_of_date(before: ColumnForm, after: ColumnForm) -> bool:
    return (before.type, after.type) == ("DATE", "DATETIME")


_Proof = Callable[[ColumnForm, ColumnForm], bool]
_SAME_TEXTS: tuple[_Proof, ...] = (
    _is_wider_integer,
    _has_more_digits,
    _is_longer_text,
    _is_longer_binary,
    _has_more_labels,
)
"""What keeps the text of each value too, so that it is the same under every rule."""
_WIDENED_IN_THE_LAKE: tuple[_Proof, ...] = (
    _has_longer_fraction,
    _has_larger_scale,
    _is_double_of_float,
    _is_midnight_of_date,
)
"""What keeps the values alone: the lake widens the type of its column, or has the same type."""
