"""What the pages name exists: links and headings, options of commands, settings with their defaults, keys of JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, SecretStr
from typer.main import get_command

from dblog_core.cli import app
from dblog_core.config.settings import Config
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.maintenance.schedule import TableSize
from dblog_core.monitoring.metrics import GAUGES
from dblog_core.monitoring.source_status import MergeProgress, OpenWindow, OutputInStatus, SourceStatus, TableInStatus

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
COMMANDS = (ROOT / "docs" / "command-line.md").read_text()
SETTINGS = (ROOT / "docs" / "configuration.md").read_text()
_CODE = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)
_EVERYWHERE = {"--config", "--help", "--json"}


def _anchors(page: Path) -> set[str]:
    """The headings as GitHub links them."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?[^)]*\)", _CODE.sub("", page.read_text())):
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor[1:] not in _anchors(file)):
            dead.append(target + anchor)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_example_has_lost_its_lines(page: Path) -> None:
    # A tool that wraps paragraphs takes an example's lines for one.
    joined = [line for line in re.findall(r"^\$ .*$", page.read_text(), flags=re.MULTILINE) if " $ " in line]
    assert joined == []


# Commands -------------------------------------------------------------------------------------------------------------


def _commands() -> dict[str, Any]:
    group = get_command(app)
    return dict(group.commands)  # type: ignore[attr-defined]


def _options_of(command: Any) -> set[str]:
    """Of a group of commands: those of all."""
    if subcommands := getattr(command, "commands", None):
        return set().union(*map(_options_of, subcommands.values()))
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {name for name in names if name.startswith("--")} - _EVERYWHERE


def _sections() -> dict[str, str]:
    """The text of each command, by its first word."""
    part = COMMANDS[COMMANDS.index("\n## Commands") :]
    sections: dict[str, str] = {}
    for section in part.split("\n### ")[1:]:
        heading, _, text = section.partition("\n")
        for name in re.findall(r"`([a-z]+)", heading):
            sections[name] = sections.get(name, "") + text
    return sections


def test_every_command_has_its_section() -> None:
    assert _sections().keys() == _commands().keys()


@pytest.mark.parametrize("name", sorted(_commands()))
def test_every_option_of_a_command_is_explained_and_no_other(name: str) -> None:
    words = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", _sections()[name]))
    options = _options_of(_commands()[name])
    assert options <= words, "on the page"
    of_any = {option for command in _commands().values() for option in _options_of(command)}
    assert words - _EVERYWHERE <= of_any, "in the code"


def test_the_pages_name_no_option_that_no_command_has() -> None:
    of_any = {option for command in _commands().values() for option in _options_of(command)}
    of_any |= {*_EVERYWHERE, *_options_of(get_command(app))}
    unknown = {
        f"{page.name}: {command} {option}"
        for page in PAGES
        for command, text in re.findall(r"dblog (?:--config \S+ )?([a-z]+)((?: [^\s`|\\]+)*)", page.read_text())
        if command in _commands()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)
        if option not in of_any
    }
    assert unknown == set()


# JSON -----------------------------------------------------------------------------------------------------------------


def _fields(record: type) -> set[str]:
    return set(record.__dataclass_fields__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "record"),
    [
        ("status", SourceStatus),
        ("status", TableInStatus),
        ("status", OpenWindow),
        ("status", MergeProgress),
        ("status", OutputInStatus),
        ("status", TableSize),
        ("maintain", TableSize),
    ],
)
def test_every_field_of_a_result_is_on_the_page(command: str, record: type) -> None:
    named = set(re.findall(r'"(\w+)"', _sections()[command]))
    assert _fields(record) <= named


def test_every_count_of_a_merge_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`.*?) \|", _sections()["merge"], flags=re.MULTILINE)
    assert _fields(Applied) - {"table"} == {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_metric_is_on_the_page_and_no_other() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"^\| `dblog_(\w+)` \|", page, flags=re.MULTILINE))
    assert named == {"up", *(gauge.name for gauge in GAUGES)}


# Settings -------------------------------------------------------------------------------------------------------------


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if get_origin(annotation) in (Union, UnionType, tuple, dict) or get_args(annotation):
        for inner in get_args(annotation):
            yield from _models(inner)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _tables(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in section.model_fields.items():
        for model in _models(field.annotation):
            yield f"{path}{name}", model
            yield from _tables(model, f"{path}{name}.")


_HEADINGS = {
    "source.columns": '[source.columns."SCHEMA.TABLE"]',
    "lake.tables": '[lake.tables."SCHEMA.TABLE"]',
    "airflow.notify": "[[airflow.notify]]",
    "notify": "[[notify]]",
    "signals.http.callers": "[signals.http.callers.NAME]",
    "output": "[output.NAME]",
}
_AS_ELSEWHERE = ("notify.kafka",)  # the page says that it has the settings of another section
_SECTIONS = {name: model for name, model in _tables(Config) if name not in _AS_ELSEWHERE}


def _rows(section: str) -> dict[str, list[str]]:
    """The cells of each setting of a section, by its name."""
    heading = f"`{_HEADINGS.get(section, f'[{section}]')}`\n"
    part = re.split(r"^##+ ", SETTINGS[SETTINGS.index(heading) + len(heading) :], maxsplit=1, flags=re.MULTILINE)[0]
    rows: dict[str, list[str]] = {}
    for row in re.findall(r"^\| (`.*)\|$", part, flags=re.MULTILINE):
        cells = [cell.strip() for cell in row.split(" | ")]
        for name in re.findall(r"`(\w+)`", cells[0]):
            rows.setdefault(name, cells)
    return rows


@pytest.mark.parametrize("section", sorted(_SECTIONS))
def test_every_setting_is_explained_and_no_other(section: str) -> None:
    model = _SECTIONS[section]
    fields = {
        field.alias or name
        for name, field in model.model_fields.items()
        if not [*_models(field.annotation)] and (section, name) != ("source", "keys")
    }
    assert _rows(section).keys() >= fields
    if section != "source.columns":  # its second table has the forms of `staged_as`
        assert _rows(section).keys() == fields


@pytest.mark.parametrize("section", sorted(_SECTIONS))
def test_the_defaults_are_those_of_the_code(section: str) -> None:
    wrong = []
    rows = _rows(section)
    for name, field in _SECTIONS[section].model_fields.items():
        cells = rows.get(field.alias or name)
        if cells is None or len(cells) < 3 or section == "source.columns":
            continue
        default = field.default
        if field.is_required():
            if cells[1] not in ("required", ""):
                wrong.append(f"{name}: required")
        elif isinstance(default, bool):
            if str(default).lower() not in cells[1] and " with " not in cells[1]:
                wrong.append(f"{name}: {default}, not {cells[1]}")
        elif isinstance(default, int | float) and default:
            text = str(default).lower()
            if text.removesuffix(".0") not in cells[1].replace(",", "") and _in_bytes(default) not in cells[1]:
                wrong.append(f"{name}: {default}, not {cells[1]}")
        elif isinstance(default, str) and default and default not in cells[1]:
            wrong.append(f"{name}: {default}, not {cells[1]}")
        elif cells[1] == "required" and isinstance(default, SecretStr | str) is False:
            wrong.append(f"{name} is not required")
    assert wrong == []


def _in_bytes(number: float) -> str:
    return f"{int(number) >> 20}M"


def test_each_command_of_the_table_of_secrets_exists() -> None:
    part = SETTINGS[
        SETTINGS.index("### Which secrets a command needs") : SETTINGS.index("## What travels in clear text")
    ]
    named = {
        word.split()[0]
        for row in re.findall(r"^\| (`.*?) \|", part, flags=re.MULTILINE)
        for word in re.findall(r"`([a-z]+[^`]*)`", row)
        if not word.startswith("spark.")
    }
    assert named == set(_commands()) - {"config"}
