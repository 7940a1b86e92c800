"""`dblog rules`: tables whose shape a person accepts, where columns of the source are hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dblog_core.commands.session import JsonFlag, Session, note, session_of
from dblog_core.config.secret_settings import SOURCE
from dblog_core.errors import RequestError

if TYPE_CHECKING:
    from dblog_core.config.settings import Config
    from dblog_core.model.schema import TableSchema

app = typer.Typer(no_args_is_help=True, help="Accept the shape of tables that are held for column rules.")


@app.command()
def accept(
    context: typer.Context,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE…", help="SCHEMA.TABLE; none with --held.")
    ] = None,
    held: Annotated[bool, typer.Option("--held", help="All tables that are held now.")] = False,
    json: JsonFlag = False,
) -> None:
    """Accept tables as they are now: their rows pass again, under the rules that the file has for them.

    Where [source.columns] hides columns of any table, a table is held that is not proven to be what its entry, or that
    it has none, was accepted for: nothing of it is staged. `dblog status` and `dblog check` name it.

    This shows which columns the table has now, and what becomes of each: look at them before. The capture that runs, or
    the next one, then takes the table in and has it dumped.

    \b
    Examples:
      dblog --config shop.toml rules accept shop.customers
      dblog --config shop.toml rules accept --held
    """
    session = session_of(context, json)
    config = session.config(SOURCE)
    if bool(tables) == held:
        raise RequestError("takes tables, or --held", where="rules accept", fix="dblog rules accept SCHEMA.TABLE")
    _accept(session, config, tables or [])


def _accept(session: Session, config: Config, tables: list[str]) -> None:
    from dblog_core.monitoring import held_tables
    from dblog_core.wiring import open_source, open_staging, open_state

    state = open_state(config)
    try:
        accepted = held_tables.accept(config, open_source(config.source), open_staging(config), state, tables)
    finally:
        state.close()
    columns = {str(schema.table): _columns(config, schema) for schema in accepted}
    session.result({"accepted": columns}, "\n\n".join(_text(table, of_table) for table, of_table in columns.items()))
    note("the capture takes them in within some seconds, or when it starts, and dumps them")


def _columns(config: Config, schema: TableSchema) -> dict[str, str]:
    """What becomes of each column."""
    rules: Any = config.source.columns.get(str(schema.table))
    names = {"exclude": "left out", "mask": "masked", "hash": "hashed"}
    hidden = {column: text for rule, text in names.items() for column in getattr(rules, rule, ())}
    return {column.name: hidden.get(column.name, "as it is") for column in schema.columns}


def _text(table: str, columns: dict[str, str]) -> str:
    width = max(map(len, columns), default=0)
    return "\n".join([table, *(f"  {name:<{width}}  {what}" for name, what in columns.items())])
