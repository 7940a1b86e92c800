"""VARIANT columns: their parts are carried as they are through every rewrite, and filled from the texts beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dblog_core.delta_writer.changes import Changes, Upserted
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.rewriting.purge_files import purge_file
from dblog_core.delta_writer.rewriting.update_rows import fill_variants, update_rows
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.rows.variant_encoding import VARIANT, encode_texts
from tests.unit.delta_writer.tables import APP, FIELDS, OFFSET, Table, commit_of, newest, write_commit

TEXTS = ['{"b": 1, "a": [1.50]}', None, "no JSON", "null", '"x"', '{"a": 1, "a": 2}', "[]"]


class Documents:
    """A table of texts and their VARIANTs, and what its rows should be."""

    def __init__(self, path: Path, *, vectors: bool) -> None:
        fields = {**FIELDS, "j": "string", "j_variant": "variant"}
        self.table = Table.create_at(path, fields=fields, vectors=vectors, reader=["variantType"])
        self.writer = self.table.writer()
        self.texts: dict[int, str | None] = {}
        self.merges = 0

    def change(
        self, texts: Mapping[int, str | None], *, is_filled: bool = True, unchanged: bool = False, dump: bool = False
    ) -> Upserted:
        """`unchanged`: the log leaves out the texts, which stay."""
        self.merges += 1
        count = len(texts)
        documents = pa.array([None] * count if unchanged else list(texts.values()), pa.string())
        variants = encode_texts(documents if is_filled else pa.nulls(count, pa.string()))
        rows = {
            "id": pa.array(list(texts)),
            "note": pa.nulls(count, pa.string()),
            "j": documents,
            "j_variant": variants,
        }
        rows |= {"amount": pa.nulls(count, pa.decimal128(20, 4)), OFFSET: pa.array([self.merges] * count)}
        changes = Changes(
            pa.table(rows),
            np.zeros(count, np.bool_),
            np.full(count, dump),
            same=["j", "j_variant"] if dump else [],
            unchanged_toast=dict.fromkeys(["j", "j_variant"], np.ones(count, np.bool_)) if unchanged else {},
        )
        self.texts |= {} if unchanged else dict(texts)
        return upsert(self.writer, changes, APP, self.merges)

    def stored(self) -> list[dict[str, Any]]:
        """The rows, by the files themselves."""
        rows = []
        for live in (table := self.table.writer(), table.refresh())[0].snapshot.files.values():
            stored = pq.read_table(self.table.path / live.path, partitioning=None).select(["id", "j", "j_variant"])
            assert stored.schema.field("j_variant").type == VARIANT
            alive = ~table.dead_rows(live).contains(np.arange(len(stored)))
            rows += stored.filter(pa.array(alive)).to_pylist()
        return sorted(rows, key=lambda row: row["id"])

    def check(self) -> None:
        numbers = sorted(self.texts)
        texts = [self.texts[number] for number in numbers]
        variants = encode_texts(pa.array(texts, pa.string())).to_pylist()
        rows = zip(numbers, texts, variants, strict=True)
        assert self.stored() == [{"id": n, "j": text, "j_variant": variant} for n, text, variant in rows]


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def documents(tmp_path: Path, request: pytest.FixtureRequest) -> Documents:
    return Documents(tmp_path, vectors=request.param)


def open_table(documents: Documents) -> OpenTable:
    documents.writer.refresh()
    return documents.writer


def test_variants_stay_the_same_through_changes_and_rewrites(documents: Documents) -> None:
    documents.change(dict(enumerate(TEXTS)))
    documents.change({0: "[0]", 3: None, 20: "{}"})
    documents.change({1: "[1]", 4: '"y"'})
    documents.check()
    (nulls, *_) = [a["add"]["stats"] for a in commit_of(documents.table.path, 1) if "add" in a]
    assert '"j_variant":3' in nulls, "readers know how many are NULL, and no more"
    documents.change({0: None, 2: None}, unchanged=True)
    documents.check()
    while purge_file(open_table(documents)) or join_files(open_table(documents)):
        documents.check()


def test_a_dump_that_brings_the_same_document_writes_nothing(documents: Documents) -> None:
    documents.change(dict(enumerate(TEXTS)))
    assert documents.change(dict(enumerate(TEXTS)), dump=True).unchanged == len(TEXTS)
    done = documents.change({0: "[0]", 4: '"x"'}, dump=True)
    assert (done.updated, done.unchanged) == (1, 1)
    documents.check()


def test_rows_without_a_variant_are_filled_once(documents: Documents) -> None:
    documents.change(dict(enumerate(TEXTS)), is_filled=False)
    documents.change({0: "[0]", 10: "[10]"})
    version = newest(documents.table.path)
    done = update_rows(documents.table.writer(), fill_variants({"j": "j_variant"}))
    assert (done.updated, newest(documents.table.path)) == (3, version + 1)
    documents.check()
    assert update_rows(documents.table.writer(), fill_variants({"j": "j_variant"})).already
    assert newest(documents.table.path) == version + 1, "nothing was left to fill"


def add_file(documents: Documents, variants: pa.Array) -> None:
    """As another program writes it."""
    fields = {"id": pa.array([99]), "note": pa.array(["x"]), "j": pa.array(["[1]"]), "j_variant": variants}
    rows = pa.table(fields | {"amount": pa.nulls(1, pa.decimal128(20, 4)), OFFSET: pa.array([0])})
    pq.write_table(rows, documents.table.path / "other.parquet")
    add = {"path": "other.parquet", "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    size = (documents.table.path / "other.parquet").stat().st_size
    write_commit(documents.table.path, newest(documents.table.path) + 1, {"add": {**add, "size": size}})


def test_parts_in_another_order_are_read(documents: Documents) -> None:
    documents.change({1: "[1]", 2: "[2]"})
    value = encode_texts(pa.array(["[1]"]))
    add_file(documents, pa.StructArray.from_arrays([value.field(1), value.field(0)], ["metadata", "value"]))
    assert join_files(documents.table.writer()) == 2
    documents.texts[99] = "[1]"
    documents.check()


def test_shredded_values_are_refused(documents: Documents) -> None:
    documents.change({1: "[1]", 2: "[2]"})
    value = encode_texts(pa.array(["[1]"]))
    parts = [value.field(0), value.field(1), pa.array([1])]
    add_file(documents, pa.StructArray.from_arrays(parts, ["value", "metadata", "typed_value"]))
    with pytest.raises(TableRefused, match=r"column j_variant of file .* has shredded VARIANTs"):
        join_files(documents.table.writer())
