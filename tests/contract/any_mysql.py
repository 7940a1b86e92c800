"""Values of every column type of MySQL and MariaDB by a seed, as SQL: for the columns of `mysql_types`."""

# ruff: noqa: DTZ001  (DATETIME has no zone)
from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Callable

from tests.contract.any_value import (
    DATETIMES,
    LETTERS,
    MOST,
    Make,
    days,
    decimals,
    document,
    floating,
    hex_literal,
    inet4,
    inet6,
    integers,
    moments,
    octets,
    one_of,
    text,
    uuid,
)


def _charset(name: str, longest: int, letters: str, codec: str = "utf-8") -> Make:
    make = text(longest, letters)
    return lambda r: f"_{name} x'{make(r).encode(codec, 'surrogatepass').hex()}'"


def _latin(longest: int) -> Make:
    """Any bytes: each stands for a character of latin1."""
    return hex_literal(octets(longest), "_latin1 ")


def _clock(scale: int) -> Make:
    def other(r: random.Random) -> str:
        fraction = f".{r.randrange(10**scale):0{scale}d}" if scale else ""
        return f"'{r.choice(('', '-'))}{r.randint(0, 837)}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}{fraction}'"

    return one_of("'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:01'", "'24:00:00'", other=other)


def _bits(width: int) -> Make:
    return lambda r: f"b'{r.choice((0, 1, 2**width - 1, r.getrandbits(width))):b}'"


def _members(count: int) -> Make:
    """A SET by its bits."""
    return lambda r: str(r.choice((0, 2**count - 1, 1 << r.randrange(count), r.getrandbits(count))))


def _labels(count: int) -> Make:
    return lambda r: str(r.choice((1, count, r.randint(1, count))))


def _scale(make: Callable[[random.Random], float], longest: float) -> Make:
    return lambda r: repr(math.fmod(make(r), longest))


def _point(r: random.Random) -> str:
    make = floating("<d")
    return f"{make(r)!r} {make(r)!r}"


def _shape(r: random.Random) -> str:
    points = [_point(r) for _ in range(r.randint(3, 6))]
    wkt = r.choice(
        (
            f"POINT({points[0]})",
            f"LINESTRING({','.join(points)})",
            f"MULTIPOINT({','.join(points)})",
            f"POLYGON(({','.join([*points, points[0]])}))",
            f"GEOMETRYCOLLECTION(POINT({points[0]}),LINESTRING({points[1]},{points[2]}))",
        )
    )
    return f"ST_GeomFromText('{wkt}')"


def _json_text(r: random.Random) -> str:
    return f"_utf8mb4 x'{document(r).encode().hex()}'"


def _binary_json(r: random.Random, depth: int = 3) -> str:
    """A document made by the server of values that no JSON text holds: decimals, dates, times, bytes, bits."""
    if depth and r.random() < 0.5:
        inner = [_binary_json(r, depth - 1) for _ in range(r.choice((0, 1, 3, 9)))]
        if r.random() < 0.5:
            return f"JSON_ARRAY({', '.join(inner)})"
        return f"JSON_OBJECT({', '.join(f'{_utf8(9)(r)}, {value}' for value in inner)})"
    precision = r.randint(1, 65)
    scale = r.randint(0, min(30, precision))
    make: Make = r.choice(
        (
            lambda r: f"CAST({decimals(precision, scale)(r)} AS DECIMAL({precision},{scale}))",
            lambda r: f"CAST({BOTH['da'](r)} AS DATE)",
            lambda r: f"CAST({BOTH['dt6'](r)} AS DATETIME(6))",
            lambda r: f"CAST({BOTH['ti6'](r)} AS TIME(6))",
            lambda r: f"CAST({_json_text(r)} AS JSON)",
            lambda r: f"CAST({integers(0, 2**64 - 1)(r)} AS UNSIGNED)",
            lambda r: f"CAST({hex_literal(octets(200))(r)} AS BINARY)",
            lambda r: f"CAST({floating('<d')(r)!r} AS DOUBLE)",
            _utf8(300),
        )
    )
    return make(r)


def _utf8(longest: int) -> Make:
    return _charset("utf8mb4", longest, LETTERS)


def _vector(r: random.Random) -> str:
    make = floating("<f")
    return f"x'{struct.pack('<3f', make(r), make(r), make(r)).hex()}'"


_WIDE = LETTERS.replace("\uffff", "")
_BMP = _WIDE.replace("😀", "")
_STAMPS = (dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(2038, 1, 19, 3, 14, 7, 999999))

BOTH: dict[str, Make] = {
    "i1": integers(-(2**7), 2**7 - 1),
    "u1": integers(0, 2**8 - 1),
    "i2": integers(-(2**15), 2**15 - 1),
    "u2": integers(0, 2**16 - 1),
    "i3": integers(-(2**23), 2**23 - 1),
    "u3": integers(0, 2**24 - 1),
    "i4": integers(-(2**31), 2**31 - 1),
    "u4": integers(0, 2**32 - 1),
    "i8": integers(-(2**63), 2**63 - 1),
    "u8": integers(0, 2**64 - 1),
    "filled": integers(0, 2**32 - 1),
    "d10": decimals(10, 2),
    "d18": decimals(18, 9),
    "d38": decimals(38, 10),
    "d65": decimals(65, 30),
    "d0": decimals(5, 0),
    "d20": decimals(20, 20),
    "dz": decimals(50, 5, signed=False),
    "f": lambda r: repr(floating("<f")(r)),
    "g": lambda r: repr(floating("<d")(r)),
    "c": _utf8(10),
    "c255": _utf8(255),
    "c_latin1": _latin(10),
    "v": _utf8(300),
    "v_latin1": _latin(20),
    "v_ucs2": _charset("ucs2", 20, _BMP, "utf-16-be"),
    "v_utf16": _charset("utf16", 20, _WIDE, "utf-16-be"),
    "v_utf16le": _charset("utf16le", 20, _WIDE, "utf-16-le"),
    "v_utf32": _charset("utf32", 20, _WIDE, "utf-32-be"),
    "v_ascii": _charset("ascii", 20, "".join(map(chr, range(128))), "ascii"),
    "v_cp1251": _charset("cp1251", 20, "aПривет ёЁЂ№\u00a0", "cp1251"),
    "t1": _utf8(63),
    "t2": _utf8(5000),
    "t3": _utf8(20_000),
    "t4": _utf8(300),
    "b": hex_literal(octets(16)),
    "b255": hex_literal(octets(255)),
    "vb": hex_literal(octets(300)),
    "b1": hex_literal(octets(255)),
    "b2": hex_literal(octets(3000)),
    "b3": hex_literal(octets(9000)),
    "b4": hex_literal(octets(60)),
    "da": days(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "dt": moments(*DATETIMES, 0),
    "dt3": moments(*DATETIMES, 3),
    "dt6": moments(*DATETIMES, 6),
    "ts": moments(*_STAMPS, 0),
    "ts1": moments(*_STAMPS, 1),
    "ts6": moments(*_STAMPS, 6),
    "ti": _clock(0),
    "ti1": _clock(1),
    "ti3": _clock(3),
    "ti6": _clock(6),
    "y": one_of("'0000'", "1901", "2155", other=lambda r: str(r.randint(1901, 2155))),
    "e": _labels(3),
    "e_latin1": _labels(2),
    "s": _members(3),
    "e_odd": _labels(8),
    "s_odd": _members(7),
    "s_empty": _members(3),
    "e_ucs2": _labels(2),
    "s_utf16": _members(2),
    "e_binary": _labels(2),
    "e300": _labels(300),
    "s64": _members(64),
    "bit1": _bits(1),
    "bit20": _bits(20),
    "bit64": _bits(64),
    "j": one_of(other=_json_text),
    "ge": _shape,
    "po": lambda r: f"ST_GeomFromText('POINT({_point(r)})')",
    "d65_0": decimals(65, 0),
    "d30": decimals(30, 30),
    "f74": _scale(floating("<f"), 999),
    "g103": _scale(floating("<d"), 9_999_999),
    "national": _charset("utf8mb4", 5, _BMP),
    "unseen": integers(-(2**31), 2**31 - 1),
}


def _uuid(r: random.Random) -> str:
    """MariaDB takes those of known versions and of the usual variant alone, beside the ends."""
    if r.random() < MOST:
        return r.choice(("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"))
    uuid_text = uuid(r)
    return f"'{uuid_text[:14]}{r.choice('1457')}{uuid_text[15:19]}{r.choice('89ab')}{uuid_text[20:]}'"


OF_MYSQL: dict[str, Make] = {
    "vec": _vector,
    "j": lambda r: _json_text(r) if r.random() < 0.5 else f"JSON_ARRAY({_binary_json(r)})",
}
OF_MARIADB: dict[str, Make] = {
    "inet4_": inet4,
    "inet6_": inet6,
    "uuid_": _uuid,
    "uuid1_": _uuid,
}
