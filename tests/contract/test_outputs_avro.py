"""The output to Kafka in Avro: what a consumer reads, shapes that change, a schema registry's troubles."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from dblog_core.errors import OutputRefused, OutputUnavailable
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.local.servers.schema_registry import RegistryServer
from dblog_core.staging.manifest import LogMark
from tests.certificates import authority
from tests.contract import changelog
from tests.contract.avro_target import AvroOne, Front
from tests.contract.relayed import Death, Faulty, World, offsets
from tests.unit.staged import MICROSECONDS, log_rows, table

pytestmark = [
    pytest.mark.usefixtures("no_thread_is_left"),
]  # the first one fetches a registry

SECRET = "hunter2secret"
ALL_TYPES = table(
    "shop.all types",
    key=("2nd", "größe"),
    **{"2nd": pa.int32(), "größe": pa.decimal128(5, 2)},
    flag=pa.bool_(),
    tiny=pa.int8(),
    long=pa.int64(),
    single=pa.float32(),
    double=pa.float64(),
    text=pa.string(),
    data=pa.binary(),
    day=pa.date32(),
    local=pa.timestamp("us"),
    instant=pa.timestamp("us", tz="UTC"),
    wide=pa.decimal128(38, 10),
)
EARLIEST = dt.datetime.fromisoformat("0001-01-01T00:00:00")
LATEST = dt.datetime.fromisoformat("9999-12-31T23:59:59.999999")
MOST_DIGITS = Decimal("-1234567890123456789012345678.0123456789")
ALL_VALUES = {
    "2nd": -5,
    "größe": Decimal("-1.50"),
    "flag": True,
    "tiny": -128,
    "long": -(2**63),
    "single": 0.1,
    "double": float("-inf"),
    "text": "Ω\0",
    "data": b"\x00\xff",
    "day": dt.date(1, 1, 1),
    "local": EARLIEST,
    "instant": LATEST.replace(tzinfo=dt.UTC),
    "wide": MOST_DIGITS,
}


@pytest.fixture
def target(kafka: KafkaServer, registry: RegistryServer) -> AvroOne:
    return AvroOne(kafka, registry)


@pytest.fixture
def front(registry: RegistryServer) -> Iterator[Front]:
    registry_front = Front(registry)
    yield registry_front
    registry_front.close()


def lines_with_message(world: World) -> list[Any]:
    """The lines that have a message: a new shape is told by its schema's id."""
    return [line for line in world.all() if line["op"] != "s"]


def test_every_line_can_be_read_back_from_the_registrys_schemas(world: World, target: AvroOne) -> None:
    assert world.relay()
    assert target.lines() == lines_with_message(world)
    (orders,) = target.versions(target.subject("shop.orders"))
    assert (orders["namespace"], orders["name"]) == ("shop.orders", "Envelope")
    (key,) = target.versions(target.subject("shop.orders", "key"))
    assert [(f["name"], f["type"]) for f in key["fields"]] == [("id", "long")]
    tombstones = [target.decode(m.key()) for m in target.messages() if m.value() is None]
    assert tombstones == [{"id": 3}]


def test_a_death_at_a_call_neither_loses_nor_repeats_a_line(world: World, target: AvroOne) -> None:
    for number in (3, 8):

        def die(_: str, call: int, late: bool, number: int = number) -> None:
            if (call, late) == (number, True):
                raise Death

        with pytest.raises(Death):
            world.relay(Faulty(target.open(), die))
    assert world.relay()
    assert target.lines() == lines_with_message(world)


def test_every_staged_type_is_the_value_that_the_source_has(world: World, target: AvroOne) -> None:
    nothing = {**dict.fromkeys(ALL_VALUES), "2nd": 1, "größe": Decimal("0.00")}
    batch = log_rows(
        ALL_TYPES,
        {"offset": 15, "op": "c", "after": ALL_VALUES},
        {"offset": 16, "op": "c", "after": nothing},
        {"offset": 17, "op": "d", "before": ALL_VALUES, "key_only": True},
        {"offset": 18, "op": "c", "after": nothing, "moved_from": {"2nd": -5, "größe": Decimal("-1.50")}},
    )
    changelog.publish(world.staging, 5, 15, 18, (ALL_TYPES, batch))
    target.settings["topics"] = {"shop.all types": f"{target.settings['topic_prefix']}all"}
    world.relay(tables=("shop.all*",))
    (message, first), (_, second), (_, third), (_, fourth) = target.values()
    read = first["after"]
    assert target.decode(message.key()) == {"_2nd": -5, "gr_u00f6_u00dfe": Decimal("-1.50")}
    assert read.pop("single") == pytest.approx(0.1)
    assert read.pop("instant") == LATEST.replace(tzinfo=dt.UTC)
    local = dt.timedelta(microseconds=read.pop("local"))  # which the library does not know
    assert dt.datetime.fromisoformat("1970-01-01T00:00:00") + local == EARLIEST
    assert read == {
        "_2nd": -5,
        "gr_u00f6_u00dfe": Decimal("-1.50"),
        "flag": True,
        "tiny": -128,
        "long": -(2**63),
        "double": float("-inf"),
        "text": "Ω\0",
        "data": b"\x00\xff",
        "day": dt.date(1, 1, 1),
        "wide": MOST_DIGITS,
    }
    assert set(second["after"].values()) == {1, Decimal("0.00"), None}
    assert third["key_only"] and third["before"]["_2nd"] == -5 and third["before"]["text"] is None
    assert (fourth["moved_from"]["_2nd"], fourth["moved_from"]["flag"]) == (-5, None)
    (schema,) = target.versions(target.subject("all"))
    fields = {f["name"]: f for f in schema["fields"][0]["type"][1]["fields"]}
    assert fields["local"]["type"] == ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]
    assert fields["gr_u00f6_u00dfe"]["doc"] == "größe" and all(f["default"] is None for f in fields.values())


def shape_changes(world: World, segment: int, offset: int, kind: pa.DataType) -> None:
    """`orders` gets a column of that type: its mark, and a row."""
    shape = table(id=pa.int64(), name=pa.string(), big=pa.string(), more=kind)
    world.staging.put_schema(shape)
    mark = LogMark(offset, "s", "shop.orders", "p9", MICROSECONDS, schema=shape.fingerprint)
    value = {"id": 1, "name": "n", "more": 7 if pa.types.is_integer(kind) else "seven"}
    row = log_rows(shape, {"offset": offset + 1, "op": "c", "after": value})
    changelog.publish(world.staging, segment, offset, offset + 1, (shape, row), marks=(mark,))


def test_an_added_and_a_widened_column_are_new_versions_by_which_old_messages_are_read(
    world: World, target: AvroOne
) -> None:
    world.relay()
    shape_changes(world, 5, 15, pa.int32())
    shape_changes(world, 6, 17, pa.int64())
    changelog.go_on(world.staging, 7, 19, 1)  # a chunk that was read before: its shape has a version already
    world.relay()
    versions = target.versions(target.subject("shop.orders"))
    columns = [[f["name"] for f in v["fields"][0]["type"][1]["fields"]] for v in versions]
    assert columns == [["id", "name", "big"], *[["id", "name", "big", "more"]] * 2]
    decoded_lines = [
        target.decode(m.value(), reader=versions[-1]) for m, v in target.values() if v["source"]["table"] == "orders"
    ]
    after = {v["source"]["offset"]: v["after"] for v in decoded_lines}
    assert [after[o]["more"] for o in (2, 16, 18, 19)] == [None, 7, 7, None]


def test_a_shape_that_the_registry_refuses_is_a_poison_line(world: World, target: AvroOne) -> None:
    shape_changes(world, 5, 15, pa.int64())
    world.relay()
    shape_changes(world, 6, 17, pa.string())
    with pytest.raises(OutputRefused, match="refuses the line") as caught:
        world.relay()
    assert "offset 17, shop.orders" in caught.value.where
    assert f"subject {target.subject('shop.orders')}" in caught.value.message
    assert "union lacking writer type" in caught.value.message, "the registry's own reason"
    assert offsets(target.lines())[-1] == 16
    changelog.go_on(world.staging, 7, 19)
    assert world.relay(poison="dead_letter", dead_letter=str(world.letters))
    notes = [orjson.loads(text) for text in world.letters.read_bytes().splitlines()]
    assert [note["line"]["offset"] for note in notes] == [17, 18]
    assert offsets(target.lines())[-3:] == [16, 19, 20]


def test_a_mark_has_the_schema_that_its_table_had_last(world: World, target: AvroOne) -> None:
    """Also from a relay that has seen no row of it, and where nobody has."""
    world.relay()
    marks = [LogMark(15 + n, "t", t, "p9", MICROSECONDS) for n, t in enumerate(("shop.orders", "shop.unseen"))]
    changelog.publish(world.staging, 5, 15, 16, marks=tuple(marks))
    shape = table("shop.unseen")
    changelog.publish(world.staging, 6, 17, 17, (shape, log_rows(shape, {"offset": 17, "op": "c", "after": {"id": 1}})))
    world.relay()
    ids = {v["source"]["offset"]: struct.unpack_from(">bI", m.value())[1] for m, v in target.values()}
    assert ids[15] == ids[10] and ids[16] != ids[17]
    assert [len(v["fields"][0]["type"][1]["fields"]) for v in target.versions(target.subject("shop.unseen"))] == [0, 3]
    assert target.lines() == lines_with_message(world)


def test_a_registry_that_is_away_is_waited_for(world: World, target: AvroOne, front: Front) -> None:
    target.settings["registry"] = front.address
    front.answers = [503, 0, 429]
    assert world.relay()
    assert not front.answers and target.lines() == lines_with_message(world)
    target.empty()
    front.answers = [0] * 1000
    with pytest.raises(OutputUnavailable, match=r"(?s)schema registry http://127.0.0.1.*can be reached from here"):
        world.relay(give_up_after="1s", restart=True)


@pytest.mark.parametrize("answer", [403, 404, 302, 200])
def test_an_address_that_is_no_registrys_ends_the_relay(
    world: World, target: AvroOne, front: Front, answer: int
) -> None:
    target.settings["registry"] = front.address
    front.answers = [answer]
    with pytest.raises(OutputRefused, match=f"schema registry {front.address}"):
        world.relay()


def test_a_registry_is_asked_over_tls_by_one_whom_it_knows(
    world: World, target: AvroOne, registry: RegistryServer, tmp_path: Path
) -> None:
    own_authority = authority(tmp_path / "ca", "ours")
    others = authority(tmp_path / "other", "others")
    front = Front(registry, certificate=own_authority.sign("registry", "127.0.0.1"))
    try:
        front.users = {f"dblog:{SECRET}"}
        registry_settings = {"registry": front.address, "registry_user": "dblog", "registry_password": SECRET}
        for wrong, what in (
            ({"registry_ca": others.file}, "CERTIFICATE_VERIFY_FAILED"),
            ({"registry_ca": own_authority.file, "registry_password": f"{SECRET}not"}, "HTTP 401 who are you"),
        ):
            target.settings |= registry_settings | wrong
            with pytest.raises(OutputRefused, match=what) as caught:
                world.relay()
            assert SECRET not in str(caught.value)
        target.settings |= registry_settings
        assert world.relay()
    finally:
        front.close()
    assert target.lines() == lines_with_message(world)
