"""Texts of the lake with a VARIANT beside them: which of them have the VARIANT of another text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.rows.variant_encoding import encode_texts
from dblog_core.verify.judge import lake_columns
from dblog_core.verify.judge.lake_columns import OTHER


def test_a_text_whose_variant_is_not_its_own_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A VARIANT of a NULL or of a text that has none, too; a NULL is right where a text has none, or is too large."""
    monkeypatch.setattr(lake_columns, "_LARGEST", 20)
    right: list[str | None] = ['{"a": 1}', None, '{"a": 1, "a": 2}', "1e1", "null"]
    large = f'"{"x" * 20}"'
    texts = pa.array([*right, *right, '{"a": 1}', "[]", large, large], pa.string())
    others = ['{"a": 2}', "null", '{"a": 2}', "10", None, '{"a": 1}', None, None, '"y"']
    marked = lake_columns._mark_other_variants(texts, encode_texts(pa.array([*right, *others], pa.string())))
    expected = [*right, *(f"{text or ''}{OTHER}" for text in right), '{"a": 1}', f"[]{OTHER}", large, large + OTHER]
    assert marked.to_pylist() == expected
