"""`tools/check-prose`: what it counts, and that its limits only fall."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check-prose"
LONG_SENTENCE = " ".join(["word"] * 31) + "."


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("check_prose", str(TOOL))
    spec = importlib.util.spec_from_loader("check_prose", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "LIMITS", tmp_path / "limits.toml")
    return module


def run(prose: ModuleType, monkeypatch: pytest.MonkeyPatch, pages: dict[str, list[str]], *arguments: str) -> int:
    monkeypatch.setattr(prose, "all_pages", lambda: pages)
    monkeypatch.setattr(sys, "argv", ["check-prose", *arguments])
    code: int = prose.main()
    return code


def test_a_page_is_cut_into_sentences_without_its_code(prose: ModuleType) -> None:
    page = "# A title\n\nOne `a. b` here. Two.\nTwo goes on.\n\n- A point\n\n```\nnot told\n```\n\n| a | b. C |\n"
    sentences = [s for block in prose.blocks_of_page(page) for s in prose.sentences(block)]
    assert sentences == ["A title", "One `code` here.", "Two.", "Two goes on.", "A point", "a", "b.", "C"]


def test_docstrings_are_texts_of_modules_functions_and_attributes_but_no_values(prose: ModuleType) -> None:
    tree = ast.parse('"""A module."""\nLIMIT = 1\n"""Bytes of it."""\ndef read():\n    """Reads."""\n    return "no"\n')
    assert sorted(prose.docstrings(tree)) == ["A module.", "Bytes of it.", "Reads."]


def test_messages_are_what_is_raised_or_logged_and_the_texts_of_fixes_settings_and_options(prose: ModuleType) -> None:
    raised = 'raise Fault(f"{x} was told", where="w", fix="mend it")\nProblem("other", fix="go on")\n'
    others = (
        'log.warning("%s goes on", x)\nField(default="d", description="a unit")\nOption(help="a list")\nprint("no")\n'
    )
    texts = ["%s goes on", "`code` was told", "a list", "a unit", "go on", "mend it"]
    assert sorted(filter(None, prose.messages(ast.parse(raised + others)))) == texts


def test_a_page_beyond_its_limit_fails_and_names_the_page(
    prose: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prose.LIMITS.write_text('[dialect]\n"old.md" = 2\n')
    assert run(prose, monkeypatch, {"old.md": ["It was told.", "It was told."], "new.md": ["It says so."]}) == 0
    assert run(prose, monkeypatch, {"old.md": ["It was told."] * 3}) == 1
    assert run(prose, monkeypatch, {"new.md": ["It goes on."]}) == 1
    assert "new.md: 1 dialect, at most 0" in capsys.readouterr().err


def test_one_sentence_in_ten_may_be_long(prose: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    prose.LIMITS.write_text("")
    sentence = "This one is short enough."
    assert run(prose, monkeypatch, {"a.md": [LONG_SENTENCE, *[sentence] * 9]}) == 0
    assert run(prose, monkeypatch, {"a.md": [LONG_SENTENCE, *[sentence] * 8, "a label"]}) == 1


def test_limits_fall_and_never_rise(prose: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    prose.LIMITS.write_text('[dialect]\n"a.md" = 2\n"b.md" = 1\n"c.md" = 1\n')
    pages = {"a.md": ["It was told."], "b.md": ["It was told, told and told."], "c.md": []}
    assert run(prose, monkeypatch, pages, "--lower") == 1
    assert tomllib.loads(prose.LIMITS.read_text())["dialect"] == {"a.md": 1, "b.md": 1}
