"""The tables of TPC-H, made here: their columns, numbers of rows, keys and the rules between their values.

The same scale and seed give the same rows. Texts are words of a small vocabulary, in the lengths of the specification;
all else follows its rules for keys, prices and dates (TPC-H 3.0.1, sections 1.4 and 4.2). Scale 1 has 8,660,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SEED = 19_920_101
BATCH = 50_000  # rows of the table that others hang on
STATEMENT = 1_000  # rows of one INSERT

Ints = npt.NDArray[np.int64]

_VOCABULARY = """furiously quickly carefully blithely slyly regular final express special pending ironic even bold
silent unusual packages requests accounts deposits foxes ideas theodolites pinto beans instructions dependencies excuses
platelets asymptotes courts dolphins sleep wake are cajole haggle nag use boost affix detect integrate"""
_WORDS = np.array(_VOCABULARY.split())
_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_COUNTRIES = """ALGERIA ARGENTINA BRAZIL CANADA EGYPT ETHIOPIA FRANCE GERMANY INDIA INDONESIA IRAN IRAQ JAPAN JORDAN
KENYA MOROCCO MOZAMBIQUE PERU CHINA ROMANIA SAUDI_ARABIA VIETNAM RUSSIA UNITED_KINGDOM UNITED_STATES"""
_NATIONS = _COUNTRIES.split()
_NATION_REGIONS = (0, 1, 1, 1, 4, 0, 3, 3, 2, 2, 4, 4, 2, 4, 0, 0, 0, 1, 2, 3, 4, 2, 3, 3, 1)
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
_MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
_CONTAINERS = tuple(f"{a} {b}" for a in ("SM", "LG", "MED", "JUMBO", "WRAP") for b in ("CASE", "BOX", "BAG", "JAR"))
_TYPES = tuple(
    f"{a} {b} {c}"
    for a in ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO")
    for b in ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED")
    for c in ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER")
)
_FIRST_DAY, _LAST_DAY, _TODAY = 8_035, 10_591, 9_298  # 1992-01-01, 1998-12-31 and 1995-06-17, since 1970-01-01
_LINES = 7  # of one order at most

_MONEY = "decimal(15,2)"

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "region": {"r_regionkey": "int", "r_name": "char(25)", "r_comment": "varchar(152)"},
    "nation": {"n_nationkey": "int", "n_name": "char(25)", "n_regionkey": "int", "n_comment": "varchar(152)"},
    "supplier": {
        "s_suppkey": "int",
        "s_name": "char(25)",
        "s_address": "varchar(40)",
        "s_nationkey": "int",
        "s_phone": "char(15)",
        "s_acctbal": _MONEY,
        "s_comment": "varchar(101)",
    },
    "customer": {
        "c_custkey": "int",
        "c_name": "varchar(25)",
        "c_address": "varchar(40)",
        "c_nationkey": "int",
        "c_phone": "char(15)",
        "c_acctbal": _MONEY,
        "c_mktsegment": "char(10)",
        "c_comment": "varchar(117)",
    },
    "part": {
        "p_partkey": "int",
        "p_name": "varchar(55)",
        "p_mfgr": "char(25)",
        "p_brand": "char(10)",
        "p_type": "varchar(25)",
        "p_size": "int",
        "p_container": "char(10)",
        "p_retailprice": _MONEY,
        "p_comment": "varchar(23)",
    },
    "partsupp": {
        "ps_partkey": "int",
        "ps_suppkey": "int",
        "ps_availqty": "int",
        "ps_supplycost": _MONEY,
        "ps_comment": "varchar(199)",
    },
    "orders": {
        "o_orderkey": "bigint",
        "o_custkey": "int",
        "o_orderstatus": "char(1)",
        "o_totalprice": _MONEY,
        "o_orderdate": "date",
        "o_orderpriority": "char(15)",
        "o_clerk": "char(15)",
        "o_shippriority": "int",
        "o_comment": "varchar(79)",
    },
    "lineitem": {
        "l_orderkey": "bigint",
        "l_partkey": "int",
        "l_suppkey": "int",
        "l_linenumber": "int",
        "l_quantity": _MONEY,
        "l_extendedprice": _MONEY,
        "l_discount": _MONEY,
        "l_tax": _MONEY,
        "l_returnflag": "char(1)",
        "l_linestatus": "char(1)",
        "l_shipdate": "date",
        "l_commitdate": "date",
        "l_receiptdate": "date",
        "l_shipinstruct": "char(25)",
        "l_shipmode": "char(10)",
        "l_comment": "varchar(44)",
    },
}
KEYS = {"partsupp": ("ps_partkey", "ps_suppkey"), "lineitem": ("l_orderkey", "l_linenumber")}
"""Of the tables whose key is not their first column."""

Rows = tuple[str, pa.Table]
"""A table's name, and rows of it."""


def create(table: str) -> str:
    """The statement that makes the table; the same for MySQL and PostgreSQL."""
    columns = COLUMNS[table]
    key = KEYS.get(table, (next(iter(columns)),))
    definitions = [f"{name} {kind} NOT NULL" for name, kind in columns.items()]
    return f"CREATE TABLE {table} ({', '.join(definitions)}, PRIMARY KEY ({', '.join(key)}))"


def inserts(table: str, rows: pa.Table) -> Iterator[str]:
    """Statements that insert the rows. No text of theirs has a quote or a backslash."""
    columns = [pc.binary_join_element_wise("'", rows[name].cast(pa.string()), "'", "") for name in rows.column_names]
    texts = pc.binary_join_element_wise(*columns, ",").to_pylist()
    for start in range(0, len(texts), STATEMENT):
        yield f"INSERT INTO {table} VALUES ({'),('.join(texts[start : start + STATEMENT])})"


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of each table but `lineitem`, which has four an order on average."""

    supplier: int
    customer: int
    part: int
    orders: int

    @classmethod
    def at(cls, scale: float) -> Counts:
        """Those of a scale. Raises ValueError for one that is too small for a supplier of each part."""
        if scale < 0.0005:
            raise ValueError(f"a scale of {scale} has not enough suppliers")
        return cls(*(round(scale * count) for count in (10_000, 150_000, 200_000, 1_500_000)))


def generate(scale: float, *, seed: int = SEED) -> Iterator[Rows]:
    """All rows of all tables, in batches; orders and their items in turn."""
    counts = Counts.at(scale)
    dice = np.random.default_rng(seed)
    yield "region", _region(dice)
    yield "nation", _nation(dice)
    for first, count in _batches(counts.supplier):
        yield "supplier", _supplier(dice, first, count)
    for first, count in _batches(counts.customer):
        yield "customer", _customer(dice, first, count)
    for first, count in _batches(counts.part):
        yield "part", _part(dice, first, count)
        yield "partsupp", _part_suppliers(dice, first, count, counts.supplier)
    for first, count in _batches(counts.orders):
        orders, items = _orders(dice, first, count, counts)
        yield "orders", orders
        yield "lineitem", items


def _batches(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, BATCH):
        yield start + 1, min(BATCH, count - start)


# Values ---------------------------------------------------------------------------------------------------------------


def _numbers(values: Ints) -> pa.Array:
    return pa.array(values)


def _money(cents: Ints) -> pa.Array:
    """Amounts of so many cents."""
    whole = pa.array(cents).cast(pa.decimal128(19, 0))
    return pa.Array.from_buffers(pa.decimal128(19, 2), len(whole), whole.buffers())


def _days(days: Ints) -> pa.Array:
    return pa.array(days.astype(np.int32)).cast(pa.date32())


def _choose(dice: np.random.Generator, choices: tuple[str, ...] | npt.NDArray[np.str_], count: int) -> pa.Array:
    return pa.array(np.array(choices)[dice.integers(0, len(choices), count)].tolist(), pa.string())


def _text(dice: np.random.Generator, count: int, most: int) -> pa.Array:
    """Words, from 40 to 100 percent of the longest text."""
    words = [_choose(dice, _WORDS, count) for _ in range(most // 8 + 1)]
    text = pc.binary_join_element_wise(*words, " ")
    lengths = dice.integers(most * 2 // 5, most + 1, 8)
    parts = dice.integers(0, len(lengths), count)
    cut = pc.utf8_slice_codeunits(text, 0, int(lengths[0]))
    for number, length in enumerate(lengths.tolist()[1:], 1):
        cut = pc.if_else(pa.array(parts == number), pc.utf8_slice_codeunits(text, 0, length), cut)
    return pc.utf8_rtrim_whitespace(cut)


def _named(prefix: str, keys: Ints) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pc.utf8_lpad(pa.array(keys).cast(pa.string()), 9, "0"), "#")


def _phone(dice: np.random.Generator, nations: Ints) -> pa.Array:
    parts = [pa.array(part).cast(pa.string()) for part in _phone_numbers(dice, nations)]
    return pc.binary_join_element_wise(*parts, "-")


def _phone_numbers(dice: np.random.Generator, nations: Ints) -> Iterator[Ints]:
    yield nations + 10
    for low, high in ((100, 1000), (100, 1000), (1000, 10_000)):
        yield dice.integers(low, high, len(nations))


def _price_cents(parts: Ints) -> Ints:
    """The retail price of a part."""
    return 90_000 + (parts // 10) % 20_001 + 100 * (parts % 1_000)


def _supplier_of(parts: Ints, number: Ints, suppliers: int) -> Ints:
    """The supplier `number` (0 to 3) of each part."""
    # Below 240 suppliers the specification's step would name one of them twice.
    step = suppliers // 4 + (parts - 1) // suppliers % max(1, suppliers // 12)
    return (parts + number * step) % suppliers + 1


# Tables ---------------------------------------------------------------------------------------------------------------


def _table(name: str, *columns: pa.Array) -> pa.Table:
    return pa.table(dict(zip(COLUMNS[name], columns, strict=True)))


def _region(dice: np.random.Generator) -> pa.Table:
    count = len(_REGIONS)
    return _table("region", _numbers(np.arange(count)), pa.array(_REGIONS), _text(dice, count, 152))


def _nation(dice: np.random.Generator) -> pa.Table:
    count = len(_NATIONS)
    names = pa.array([name.replace("_", " ") for name in _NATIONS])
    regions = _numbers(np.array(_NATION_REGIONS))
    return _table("nation", _numbers(np.arange(count)), names, regions, _text(dice, count, 152))


def _supplier(dice: np.random.Generator, first: int, count: int) -> pa.Table:
    keys = np.arange(first, first + count)
    nations = dice.integers(0, len(_NATIONS), count)
    return _table(
        "supplier",
        _numbers(keys),
        _named("Supplier", keys),
        _text(dice, count, 40),
        _numbers(nations),
        _phone(dice, nations),
        _money(dice.integers(-99_999, 1_000_000, count)),
        _text(dice, count, 101),
    )


def _customer(dice: np.random.Generator, first: int, count: int) -> pa.Table:
    keys = np.arange(first, first + count)
    nations = dice.integers(0, len(_NATIONS), count)
    return _table(
        "customer",
        _numbers(keys),
        _named("Customer", keys),
        _text(dice, count, 40),
        _numbers(nations),
        _phone(dice, nations),
        _money(dice.integers(-99_999, 1_000_000, count)),
        _choose(dice, _SEGMENTS, count),
        _text(dice, count, 117),
    )


def _part(dice: np.random.Generator, first: int, count: int) -> pa.Table:
    keys = np.arange(first, first + count)
    makers = dice.integers(1, 6, count)
    brands = makers * 10 + dice.integers(1, 6, count)
    return _table(
        "part",
        _numbers(keys),
        _text(dice, count, 55),
        pc.binary_join_element_wise("Manufacturer", pa.array(makers).cast(pa.string()), "#"),
        pc.binary_join_element_wise("Brand", pa.array(brands).cast(pa.string()), "#"),
        _choose(dice, _TYPES, count),
        _numbers(dice.integers(1, 51, count)),
        _choose(dice, _CONTAINERS, count),
        _money(_price_cents(keys)),
        _text(dice, count, 23),
    )


def _part_suppliers(dice: np.random.Generator, first: int, count: int, suppliers: int) -> pa.Table:
    parts = np.repeat(np.arange(first, first + count), 4)
    return _table(
        "partsupp",
        _numbers(parts),
        _numbers(_supplier_of(parts, np.tile(np.arange(4), count), suppliers)),
        _numbers(dice.integers(1, 10_000, len(parts))),
        _money(dice.integers(100, 100_001, len(parts))),
        _text(dice, len(parts), 199),
    )


def _orders(dice: np.random.Generator, first: int, count: int, counts: Counts) -> tuple[pa.Table, pa.Table]:
    numbers = np.arange(first - 1, first - 1 + count)
    keys = numbers // 8 * 32 + numbers % 8 + 1  # 8 of each 32 keys are used
    days = dice.integers(_FIRST_DAY, _LAST_DAY - 151, count)
    lines = dice.integers(1, _LINES + 1, count)
    at = np.repeat(np.arange(count), lines)
    line_numbers = np.arange(len(at)) - np.repeat(np.cumsum(lines) - lines, lines) + 1
    parts = dice.integers(1, counts.part + 1, len(at))
    quantities = dice.integers(1, 51, len(at))
    prices = quantities * _price_cents(parts)
    discounts = dice.integers(0, 11, len(at))
    taxes = dice.integers(0, 9, len(at))
    shipped = days[at] + dice.integers(1, 122, len(at))
    received = shipped + dice.integers(1, 31, len(at))
    is_open = shipped > _TODAY
    returned = np.where(received > _TODAY, "N", np.where(dice.integers(0, 2, len(at)) > 0, "R", "A"))
    items = _table(
        "lineitem",
        _numbers(keys[at]),
        _numbers(parts),
        _numbers(_supplier_of(parts, dice.integers(0, 4, len(at)), counts.supplier)),
        _numbers(line_numbers),
        _money(quantities * 100),
        _money(prices),
        _money(discounts),
        _money(taxes),
        pa.array(returned.tolist()),
        pa.array(np.where(is_open, "O", "F").tolist()),
        _days(shipped),
        _days(days[at] + dice.integers(30, 91, len(at))),
        _days(received),
        _choose(dice, _INSTRUCTIONS, len(at)),
        _choose(dice, _MODES, len(at)),
        _text(dice, len(at), 44),
    )
    totals = np.bincount(at, prices * (100 + taxes) * (100 - discounts) / 10_000, count).round().astype(np.int64)
    open_lines = np.bincount(at, is_open, count)
    status = np.where(open_lines == 0, "F", np.where(open_lines == lines, "O", "P"))
    customers = dice.integers(1, counts.customer + 1, count)
    customers -= (customers % 3 == 0) & (customers > 1)  # a third of the customers never orders
    orders = _table(
        "orders",
        _numbers(keys),
        _numbers(customers),
        pa.array(status.tolist()),
        _money(totals),
        _days(days),
        _choose(dice, _PRIORITIES, count),
        _named("Clerk", dice.integers(1, max(2, counts.supplier // 10 + 1), count)),
        _numbers(np.zeros(count, np.int64)),
        _text(dice, count, 79),
    )
    return orders, items
