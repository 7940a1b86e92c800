"""A configuration whose source nothing listens at, and the command line that runs with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dblog_core.cli import app
from tests.unit.commands.shop_file import PASSWORD


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration whose source nothing listens at."""
    path = tmp_path / "shop.toml"
    path.write_text(
        f"""
        [source]
        name = "shop"
        kind = "mysql"
        port = 9
        password = "{PASSWORD}"
        database = "shop"
        tables = ["shop.*"]
        [staging]
        path = "staging"
        [state]
        url = "sqlite://{tmp_path}/state.db"
        [lake]
        path = "lake"
        """
    )
    return path


@pytest.fixture
def run(file: Path) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["--config", str(file), *arguments])
        assert PASSWORD not in result.output
        assert "Traceback" not in result.output
        return result

    return run
