"""`tools/check-commit-title`, as git's hook `commit-msg` calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check-commit-title"


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "title",
    [
        "Rename a VARIANT column together with its text column",
        "Address a slow start",
        'Revert "Told whom"',
        "Add " + "a" * 68,
    ],
)
def test_an_imperative_title_of_72_characters_passes(title: str) -> None:
    assert check("--title", title).returncode == 0


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        ("Add " + "a" * 69, "73 characters"),
        ("Adds a check", "'Adds' is not an imperative"),
        ("Added a check", "'Added' is not an imperative"),
        ("A VARIANT is renamed as its text is", "'A' is not"),
        ("add a check", "not a capitalised verb"),
        ("Add a check.", "full stop"),
        ("", "not a capitalised verb"),
    ],
)
def test_another_title_is_refused_with_its_reason(title: str, reason: str) -> None:
    done = check("--title", title)
    assert done.returncode == 1 and reason in done.stderr


def test_the_hook_reads_the_first_line_that_is_no_comment(tmp_path: Path) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("# a comment of git's\n\nAdd a check\n\nIt was told to whoever asked.\n")
    assert check(str(message)).returncode == 0
    message.write_text("Told whoever asked\n\nAdd a check\n")
    assert check(str(message)).returncode == 1


def test_another_use_is_refused() -> None:
    assert check().returncode == 2
