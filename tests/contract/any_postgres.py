"""Values of every column type of PostgreSQL by a seed, as SQL: for the columns of `postgres_types`."""

# ruff: noqa: DTZ001  (a timestamp has no zone)
from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from typing import Any

from tests.contract.any_value import (
    DATETIMES,
    Make,
    days,
    decimals,
    document,
    floating,
    inet4,
    inet6,
    integers,
    moments,
    octets,
    one_of,
    text,
    uuid,
)


def quote_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _text(longest: int) -> Make:
    make = text(longest)
    return lambda r: quote_text(make(r))


def _float(form: str) -> Make:
    return one_of("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "'0'", other=lambda r: f"'{floating(form)(r)!r}'")


def _numeric(r: random.Random) -> str:
    digits = str(r.getrandbits(r.choice((1, 8, 64, 400))))
    sign = r.choice(("", "-"))
    zeros = "0" * r.choice((0, 0, 1, 4, 30))
    return f"'{sign}{digits}{r.choice(('', '.' + zeros + digits, f'e{r.randint(-300, 300)}', '.' + zeros))}'"


def _interval(r: random.Random) -> str:
    months = r.randint(-(10**6), 10**6) * r.choice((0, 1))
    day = r.randint(-(10**5), 10**5) * r.choice((0, 1))
    return f"'{months} mons {day} days {r.randint(-(10**12), 10**12) * r.choice((0, 1))} microseconds'"


def _with_zone(r: random.Random) -> str:
    offset = f"{r.choice('+-')}{r.randint(0, 15):02d}:{r.randint(0, 59):02d}"
    return f"'{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}.{r.randrange(10**6):06d}{offset}'"


def _array(make: Make, kind: str) -> Make:
    def other(r: random.Random) -> str:
        items = ["NULL" if r.random() < 0.2 else make(r) for _ in range(r.choice((1, 3, 50)))]
        return f"ARRAY[{', '.join(items)}]::{kind}[]"

    return one_of("'{}'", other=other)


def _range(make: Callable[[random.Random], Any], kind: str) -> Make:
    def other(r: random.Random) -> str:
        low, high = sorted((make(r), make(r)))
        ends = (repr(low) if r.random() < 0.8 else "NULL", repr(high) if r.random() < 0.8 else "NULL")
        return f"{kind}({ends[0]}, {ends[1]}, '{r.choice('[(')}{r.choice(')]')}')"

    return one_of("'empty'", other=other)


def _pairs(r: random.Random) -> str:
    items = {text(9)(r): None if r.random() < 0.2 else text(20)(r) for _ in range(r.randint(1, 5))}
    keys = ", ".join(quote_text(key) for key in items)
    values = ", ".join("NULL" if value is None else quote_text(value) for value in items.values())
    return f"hstore(ARRAY[{keys}], ARRAY[{values}]::text[])"


def _any_json(r: random.Random) -> str:
    return quote_text(document(r))


def _jsonb(r: random.Random) -> str:
    """Numbers of any digits and size besides."""
    number = _numeric(r)[1:-1].removesuffix(".")
    more = f"[{number}, {document(r)}]"
    return quote_text(more if json.loads('"\\u0000"') not in more else "1").replace("\\u0000", "")


def _plain_json(r: random.Random) -> str:
    return _any_json(r).replace("\\u0000", "")


def _row(*parts: Make) -> Make:
    return lambda r: f"ROW({', '.join('NULL' if r.random() < 0.2 else part(r) for part in parts)})"


_two = _row(integers(-(2**31), 2**31 - 1), _text(30))
_fair = decimals(10, 2, signed=False, least=1)
_nest = _row(lambda r: f"{_two(r)}::two", _array(integers(-9, 9), "int"), _fair, _numeric)
_zonedtime = moments(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), 6)
_bytea = lambda r: f"'\\x{octets(5000)(r).hex()}'"  # noqa: E731

COLUMNS: dict[str, Make] = {
    "bo": lambda r: r.choice(("true", "false")),
    "i2": integers(-(2**15), 2**15 - 1),
    "i4": integers(-(2**31), 2**31 - 1),
    "i8": lambda r: f"'{integers(-(2**63), 2**63 - 1)(r)}'",
    "f4": _float("<f"),
    "f8": _float("<d"),
    "n": one_of("'NaN'", "'Infinity'", "'-Infinity'", other=_numeric),
    "n12": decimals(12, 2),
    "n20": decimals(20, 0),
    "n38": decimals(38, 38),
    "n60": decimals(60, 5),
    "by": _bytea,
    "da": days(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "ts": moments(*DATETIMES, 6),
    "ts3": moments(*DATETIMES, 3),
    "tz": lambda r: f"{_zonedtime(r)[:-1]}{r.choice(('', '+00', '+05:30', '-11'))}'",
    "ti": one_of("'24:00:00'", "'00:00'", other=lambda r: _with_zone(r).partition(".")[0] + f".{r.randrange(10**6)}'"),
    "tiz": one_of("'24:00-15:59'", other=_with_zone),
    "iv": _interval,
    "t": _text(4000),
    "v": _text(9),
    "c": _text(5),
    '"C "" 1"': _text(1),
    "nm": _text(20),
    "j": _plain_json,
    "jb": _jsonb,
    "u": lambda r: f"'{uuid(r)}'",
    "m6": lambda r: f"'{r.getrandbits(48):012x}'",
    "m8": lambda r: f"'{r.getrandbits(64):016x}'",
    "ine": lambda r: f"'{r.choice((inet4, inet6))(r)[1:-1]}/{r.randint(0, 32)}'",
    "ci": lambda r: f"network(set_masklen({inet4(r)}::inet, {r.randint(0, 32)}))",
    "ints": _array(integers(-(2**31), 2**31 - 1), "int"),
    "texts": _array(_text(30), "text"),
    "p": _two,
    "e": lambda r: r.choice(("'sad'", "'ok'", "'happy, very'")),
    "b5": lambda r: f"B'{r.getrandbits(5):05b}'",
    "vb": lambda r: f"B'{r.getrandbits(70):b}'" if r.random() < 0.9 else "''",
    "x": lambda r: f"xmlelement(name a, {_text(90)(r).translate({1: None, 0xFFFF: None})})",
    "rg": _range(lambda r: r.randrange(-(2**30), 2**30), "int4range"),
    "mo": lambda r: f"'{r.randrange(-(2**62), 2**62) / 100:.2f}'",
    "q": lambda r: f'({r.randint(-128, 127)})::"char"',
    "o": integers(0, 2**32 - 1),
    "tsv": lambda r: f"array_to_tsvector(ARRAY[{', '.join(quote_text(text(20)(r) + 'x') for _ in range(3))}])",
    "pt": lambda r: f"point({_float('<d')(r)}, {_float('<d')(r)})",
    "odd": lambda r: f"(enum_range(NULL::odd))[{r.randint(1, 8)}]",
    "odds": lambda r: f"(enum_range(NULL::odd))[{r.randint(1, 8)}:{r.randint(1, 8)}]",
    "fair": _fair,
    "fairs": _array(_fair, "fair_price"),
    "nest": _nest,
    "nests": _array(lambda r: f"{_nest(r)}::nest", "nest"),
    "egg": _nest,
    "dims": lambda r: f"array_fill({r.randint(-9, 9)}, ARRAY[{r.randint(1, 4)}, 2], ARRAY[{r.randint(-3, 3)}, 1])",
    "stretch": _range(floating("<d"), "stretch"),
    "ns": _array(one_of("'NaN'", "'-Infinity'", other=_numeric), "numeric"),
    "f8s": _array(_float("<d"), "float8"),
    "tzs": _array(one_of("'infinity'", "'0044-03-15 BC'", other=_zonedtime), "timestamptz"),
    "bys": _array(_bytea, "bytea"),
    "n5": decimals(5, -2),
    "n2": decimals(2, 5),
    "mr": lambda r: f"int4multirange({_range(lambda r: r.randrange(99), 'int4range')(r)}::int4range, '[200,300)')",
    "tzr": lambda r: f"tstzrange({min(a := _zonedtime(r), b := _zonedtime(r))}, {max(a, b)}, '[]')",
    "h": _pairs,
    "l": lambda r: quote_text(".".join("".join(r.choices("aZ_9", k=r.randint(1, 9))) for _ in range(r.randint(0, 4)))),
    "cit": _text(30),
}
