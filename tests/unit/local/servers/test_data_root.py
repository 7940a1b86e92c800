"""Where the local servers' data lies, nobody but their user may write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dblog_core.errors import LocalError
from dblog_core.local.servers import data_root


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is taken by root, who this test is for the code."""
    monkeypatch.delenv("DBLOG_DATA_DIR", raising=False)
    monkeypatch.setattr(data_root, "ROOTS_PARENT", tmp_path / "shared")
    users = iter([0])
    real_user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: next(users, real_user))
    return tmp_path / "shared"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000], ids=oct)
def test_root_makes_directories_that_others_may_enter_and_not_change(parent: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        root = data_root.data_root("stack")
    finally:
        os.umask(before)
    assert root.parent.parent == parent
    assert [oct(directory.stat().st_mode & 0o777) for directory in (parent, root.parent, root)] == ["0o755"] * 3


def make_open(parent: Path) -> None:
    parent.mkdir()
    parent.chmod(0o777)


def make_link(parent: Path) -> None:
    (parent.parent / "elsewhere").mkdir()
    parent.symlink_to(parent.parent / "elsewhere")


@pytest.mark.parametrize("make", [make_open, make_link])
def test_a_directory_that_somebody_else_has_put_there_is_refused(parent: Path, make: Callable[[Path], None]) -> None:
    make(parent)
    with pytest.raises(LocalError, match="another user can write") as refusal:
        data_root.data_root("stack")
    assert str(parent) in str(refusal.value) and "DBLOG_DATA_DIR" in refusal.value.fix


def test_a_directory_of_another_user_is_refused(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent.mkdir()
    users = iter([0])
    monkeypatch.setattr("os.geteuid", lambda: next(users, parent.stat().st_uid + 1))
    with pytest.raises(LocalError, match="another user can write"):
        data_root.data_root("stack")
