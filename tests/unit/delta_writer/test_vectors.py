"""Vectors on storage: Z85, files with size and CRC, and the three ways in which the log names one."""

from __future__ import annotations

import struct
import uuid
import zlib
from pathlib import Path

import numpy as np
import pytest

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.vectors import read_vector, unique_id, vector_file, z85_decode, z85_encode
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location

ID = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
ONE, OTHER = (RowSet().with_rows(np.array(rows)) for rows in ([3, 4, 7, 11, 18, 29], range(5000)))


@pytest.fixture
def files(tmp_path: Path) -> TableFiles:
    return TableFiles.at(Location(LocalStorage(tmp_path), "table"))


def inline(rows: RowSet) -> Json:
    data = rows.encode()
    text = z85_encode(data + b"\0" * (-len(data) % 4))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


def test_z85_is_that_of_its_rfc() -> None:
    data = bytes.fromhex("864fd26fb559f75b")
    assert z85_encode(data) == "HelloWorld" and z85_decode("HelloWorld") == data
    assert z85_encode(ID.bytes) == "^-aqEH.-t@S}K{vb[*k^", "the example of the protocol"
    for text in ("Hello World", "abc", "\x00aaaa", "#####"):
        with pytest.raises(ValueError, match="Z85"):
            z85_decode(text)


def test_vectors_share_a_file(files: TableFiles) -> None:
    file = vector_file([ONE, OTHER], ID)
    assert file.name == f"deletion_vector_{ID}.bin" and file.data[:1] == b"\1"
    files.create(file.name, file.data)
    assert [read_vector(files, vector) for vector in file.descriptors] == [ONE, OTHER]
    assert [vector["cardinality"] for vector in file.descriptors] == [6, 5000]
    at = file.descriptors[1]["offset"]
    size = file.descriptors[1]["sizeInBytes"]
    assert struct.unpack(">I", file.data[at : at + 4]) == (size,)
    assert struct.unpack(">I", file.data[at + 4 + size :]) == (zlib.crc32(file.data[at + 4 : at + 4 + size]),)


def test_a_vector_may_lie_inline_in_a_prefix_or_by_its_path(files: TableFiles) -> None:
    assert read_vector(files, inline(ONE)) == ONE
    file = vector_file([ONE], ID)
    vector = file.descriptors[0]
    files.create(f"ab/{file.name}", file.data)
    assert read_vector(files, {**vector, "pathOrInlineDv": "ab" + vector["pathOrInlineDv"]}) == ONE
    for path in (files.url(f"ab/{file.name}"), f"file:{files.url(f'ab/{file.name}')}"):
        assert read_vector(files, {**vector, "storageType": "p", "pathOrInlineDv": path}) == ONE


def test_the_id_of_a_vector_is_the_protocols() -> None:
    assert unique_id(None) is None
    assert unique_id({"storageType": "i", "pathOrInlineDv": "abc"}) == "iabc"
    assert unique_id({"storageType": "u", "pathOrInlineDv": "abc", "offset": 0}) == "uabc@0"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"storageType": "r"}, "storage type 'r'"),
        ({"storageType": "p", "pathOrInlineDv": "/elsewhere/deletion_vector.bin"}, "none that is read here"),
        ({"storageType": "p", "pathOrInlineDv": "s3://bucket/table/deletion_vector.bin"}, "none that is read here"),
        ({"cardinality": 7}, "the log says 7"),
        ({"sizeInBytes": 12}, "another size"),
        ({"offset": 9}, "another size"),
        ({"pathOrInlineDv": z85_encode(uuid.uuid4().bytes)}, "missing"),
        ({"pathOrInlineDv": "short"}, "cannot be read"),
    ],
)
def test_a_descriptor_that_lies_is_an_error(files: TableFiles, change: Json, reason: str) -> None:
    file = vector_file([ONE], ID)
    files.create(file.name, file.data)
    with pytest.raises(LakeError, match=reason):
        read_vector(files, {**file.descriptors[0], **change})


def test_each_flipped_bit_of_a_vector_is_seen(files: TableFiles) -> None:
    file = vector_file([ONE], ID)
    for at in range(1, len(file.data)):
        name = f"{at}/{file.name}"
        files.create(name, file.data[:at] + bytes([file.data[at] ^ 4]) + file.data[at + 1 :])
        text = f"{at}{file.descriptors[0]['pathOrInlineDv']}"
        with pytest.raises(LakeError):
            read_vector(files, {**file.descriptors[0], "pathOrInlineDv": text})
