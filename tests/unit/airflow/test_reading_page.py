"""What our texts say of reading the lake, and of installing what we made, holds."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaProtocolError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A table with deletion vectors, as those of the lake are."""
    path = tmp_path / "LAKE" / "shop" / "orders"
    path.parent.mkdir(parents=True)
    rows = pa.table({"id": [1, 200], "amount": [5, 6]})
    write_deltalake(path, rows, configuration={"delta.enableDeletionVectors": "true"})
    return path


def test_the_example_of_the_page_reads_a_table_with_deletion_vectors(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?QueryBuilder.*?)```", (ROOT / "docs" / "lake.md").read_text(), re.DOTALL)
    monkeypatch.chdir(orders.parents[2])
    names: dict[str, pa.Table] = {}
    exec(compile(example, "docs/lake.md", "exec"), names)
    assert names["rows"].to_pylist() == [{"id": 1, "amount": 5}]


@pytest.mark.parametrize("way", ["to_pandas", "to_pyarrow_table", "to_pyarrow_dataset"])
def test_the_ways_that_the_page_says_refuse_the_tables_do(orders: Path, way: str) -> None:
    assert f"{way}()" in (ROOT / "docs" / "lake.md").read_text()
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        getattr(DeltaTable(orders), way)()


def test_no_text_installs_another_projects_package() -> None:
    """`dblog` on PyPI is not ours, and `dblog-cdc` is not there yet: our wheel is given by its file or URL."""
    texts = [p for folder in ("dblog_core", "spark_jobs", "docs", "docker") for p in (ROOT / folder).rglob("*")]
    texts = [
        p for p in (*texts, *ROOT.glob("*.md")) if p.suffix in {".py", ".md", ".yaml", ".html", ""} and p.is_file()
    ]
    by_name = re.compile(r"pip install ['\"]?dblog\b(?!-cdc\[[a-z0-9,{}]+\] @ )")
    assert [str(p) for p in texts if by_name.search(p.read_text(encoding="utf-8", errors="ignore"))] == []
    assert by_name.search("pip install 'dblog[airflow]'") and by_name.search("pip install dblog-cdc")
    assert not by_name.search("pip install 'dblog-cdc[airflow] @ file:///dist/dblog_cdc.whl'")
