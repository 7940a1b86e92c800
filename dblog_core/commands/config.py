"""`dblog config …`: about the configuration itself."""

from __future__ import annotations

import sys

import orjson
import typer

from dblog_core.commands.session import JsonFlag

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="About the configuration file.")


@app.callback()
def about() -> None:
    """About the configuration file."""


@app.command()
def schema(json: JsonFlag = False) -> None:
    """Print the JSON schema of the configuration file (always JSON).

    \b
    Example:
      dblog config schema > dblog.schema.json
    """
    from dblog_core.config.loader import json_schema

    sys.stdout.write(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2).decode() + "\n")
