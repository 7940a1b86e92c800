"""The `dblog` command: global options, the commands, and what becomes of errors.

No error that a user can meet ends in a traceback: it says what happened, where, and what to do, on stderr. Commands
import the engine when they run, so that `dblog --help` loads no driver.
"""

from __future__ import annotations

import os
import sys

from dblog_core import early_signals

if __name__ == "__main__" or os.path.basename(sys.argv[0]) == "dblog":  # noqa: PTH119 - pathlib takes its time too
    early_signals.hold()  # before the imports below, during which the process may be asked to end

import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from dblog_core import __version__
from dblog_core.commands import (
    capture,
    check,
    config,
    cut,
    dump,
    dumps,
    lake_tasks,
    log,
    maintain,
    merge,
    metrics,
    relay,
    rules,
    schema,
    signals,
    status,
    verify,
)
from dblog_core.commands.session import FAILED, WRONG_USE, JsonFlag, Session, note, set_up_logging
from dblog_core.errors import ConfigError, DblogError, RequestError

STOPPED_IN_ORDER = frozenset(
    {
        *("capture", "work", "merge", "maintain", "replay", "rebuild", "reset", "verify"),
        *("relay", "serve", "metrics", "status", "log"),
    }
)
"""Commands whose `stopping` takes over the signals that came before them; others end by one as any program does."""


class _Commands(typer.core.TyperGroup):
    """The commands, with errors turned into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            # Here, so that a pipe whose reader has gone fails inside this `try` and not in the interpreter's last
            # flush.
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _close_stdout()
            raise typer.Exit(0) from None
        except DblogError as error:
            _tell(ctx.obj, error)
            # The contract's exit codes: 1 failed, 2 wrong use.
            raise typer.Exit(WRONG_USE if isinstance(error, ConfigError | RequestError) else FAILED) from error
        except KeyboardInterrupt:
            raise typer.Exit(FAILED) from None
        except Exception as error:
            # Typer ends a command by exceptions of its own.
            if _is_usage(error):
                raise
            _tell_unexpected(ctx.obj, error)
            raise typer.Exit(FAILED) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(is_asked_for: bool) -> None:
    if is_asked_for:
        typer.echo(f"dblog {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config_file: Annotated[
        Path | None, typer.Option("--config", envvar="DBLOG_CONFIG", metavar="FILE", help="The source's TOML file.")
    ] = None,
    json: JsonFlag = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log everything, and show the trace of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Capture a database's changes, and its full state on demand, as one ordered log; keep Delta tables equal to it.

    \b
    A first session:
      dblog --config shop.toml check              is everything there, and allowed?
      dblog --config shop.toml capture            run it; in another terminal:
      dblog --config shop.toml dump --all --wait  the full state, while the log continues
      dblog --config shop.toml merge              into the lake
      dblog --config shop.toml status

    Exit codes: 0 done, 1 failed, 2 wrong use. Results go to stdout, progress and messages to stderr.
    """
    context.obj = session = Session(file=config_file, json=json, debug=debug)
    set_up_logging(session)
    if context.invoked_subcommand not in STOPPED_IN_ORDER:
        early_signals.release()


app.command()(check.check)
app.command()(capture.capture)
app.command(cls=dump.DumpCommand)(dump.dump)
app.command()(dumps.work)
app.command(name="dumps")(dumps.dumps)
app.command()(dumps.pause)
app.command()(dumps.resume)
app.command()(dumps.cancel)
app.command(name="set")(dumps.set_options)
app.command()(signals.signals)
app.command()(signals.serve)
app.command()(merge.merge)
app.command()(lake_tasks.replay)
app.command()(lake_tasks.rebuild)
app.command()(lake_tasks.reset)
app.command()(maintain.maintain)
app.command()(verify.verify)
app.command()(log.log)
app.command()(relay.relay)
app.command()(status.status)
app.command()(metrics.metrics)
app.command()(cut.cut)
app.command()(schema.schema)
app.add_typer(rules.app, name="rules")
app.add_typer(lake_tasks.lake, name="lake")
app.add_typer(config.app, name="config")


def main() -> None:
    """The entry point. What we write has rows, keys or secrets: nobody else may read it."""
    early_signals.hold()
    # Before anything else: files that a library makes count too.
    os.umask(0o077)
    do_without_pandas()
    app(prog_name="dblog")


class _WithoutPandas:
    """Keeps Arrow from importing pandas, which it does with the first value that it converts, only to ask whether that
    is one of pandas': a third of a second of every start, and some 40 MB."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("dblog does without pandas", name=name)


def do_without_pandas() -> None:
    """For processes that are ours alone."""
    # First, so that it is asked before the finders that would find pandas.
    sys.meta_path.insert(0, _WithoutPandas)


def _tell(session: Session, error: DblogError) -> None:
    note(session.redact(f"dblog: {error}"))
    if session.debug:
        note(session.redact("".join(traceback.format_exception(error))))


def _tell_unexpected(session: Session, error: Exception) -> None:
    # The text of a library's error may quote a value of a row; that of the operating system names files and hosts.
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = (
        str(error).strip() if isinstance(error, OSError | ImportError) else ""
    ) or f"{place.name}, line {place.lineno}"
    note(session.redact(f"dblog: an error that it does not know: {type(error).__name__}: {text}"))
    if session.debug:
        note(session.redact("".join(traceback.format_exception(error))))
    else:
        note("  fix: run it again as `dblog --debug …` for the trace, and report it")


def _is_usage(error: Exception) -> bool:
    """Exceptions by which the command line library ends a command: wrong options, help, exit codes."""
    return isinstance(error, typer.Exit | typer.Abort | typer.BadParameter) or hasattr(error, "exit_code")


def _close_stdout() -> None:
    """The reader of our output has gone; the interpreter's last flush must not complain about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
