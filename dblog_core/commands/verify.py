"""`dblog verify`: compare source and lake under live writes, and repair what differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dblog_core.commands.options import AllTablesOption, TablesOption
from dblog_core.commands.session import FAILED, JsonFlag, Session, note, session_of, stopping
from dblog_core.commands.terminal.progress import progress
from dblog_core.commands.terminal.text_tables import align
from dblog_core.config.secret_settings import LAKE, SOURCE
from dblog_core.model.durations import in_words

if TYPE_CHECKING:
    from dblog_core.verify.certificate_check import CertificateCheck, ClaimCheck
    from dblog_core.verify.report import HistoryReport, Report, TableReport
    from dblog_core.verify.sample import SampleSize
    from dblog_core.verify.verification import VerifyRequest

_SHOWN = 20  # keys of a table that people are shown; --json has all


_RepairOption = Annotated[
    bool, typer.Option("--repair", help="Dump the keys that differ, merge them, compare them again.")
]
_SampleOption = Annotated[
    str | None, typer.Option(metavar="ROWS|PERCENT%", help="Compare so many rows, drawn at random; 1000 or 5%.")
]
_ConfidenceOption = Annotated[float, typer.Option(help="Of what a sample tells, above 0 and below 1.")]
_CertificateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write down what was compared.")
]
_CheckOption = Annotated[
    Path | None,
    typer.Option(
        metavar="CERTIFICATE",
        exists=True,
        dir_okay=False,
        help="Were all its tables equal, and does the lake still have those rows?",
    ),
]
_PartOption = Annotated[
    str | None,
    typer.Option("--slice", metavar="I/N", help="This slice of each table's keys; N in a row are the full state."),
]
_RateOption = Annotated[int, typer.Option(min=0, metavar="ROWS", help="Rows a second; 0: no limit.")]
_WorkersOption = Annotated[int | None, typer.Option(min=1, max=64, metavar="N", help="SELECTs at the same time.")]
_PassOverOption = Annotated[
    bool, typer.Option("--pass-over-refused", help="Captured tables that cannot be compared are only named.")
]


def verify(
    context: typer.Context,
    table: TablesOption = None,
    all_tables: AllTablesOption = False,
    repair: _RepairOption = False,
    sample: _SampleOption = None,
    confidence: _ConfidenceOption = 0.99,
    certificate: _CertificateOption = None,
    check: _CheckOption = None,
    part: _PartOption = None,
    rate: _RateOption = 0,
    workers: _WorkersOption = None,
    pass_over: _PassOverOption = False,
    json: JsonFlag = False,
) -> None:
    """Compare source and lake, row by row, while both change.

    The source hashes its rows itself, between two watermarks; only keys and hashes are read. No lock is taken, and no
    merge has to keep pace: what is staged counts as merged. A capture must be running. Exits with 1 where anything
    differs, or could not be decided, or a table was left out that the source does not let us capture.

    \b
    Examples:
      dblog --config shop.toml verify --all
      dblog --config shop.toml verify --table shop.orders --repair
      dblog --config shop.toml verify --all --slice 3/30 --repair
      dblog --config shop.toml verify --table shop.orders --sample 10000 --confidence 0.999
      dblog --config shop.toml verify --all --certificate orders.json
      dblog --config shop.toml verify --check orders.json
    """
    from dblog_core.verify.slices import Slice
    from dblog_core.verify.verification import VerifyRequest

    session = session_of(context, json)
    if check is not None:
        if table or all_tables or repair or sample or certificate or part or pass_over:
            raise typer.BadParameter("--check stands alone")
        _check(session, check)
        return
    if bool(table) == all_tables:
        raise typer.BadParameter("give either --table (it may be repeated) or --all")
    request = VerifyRequest(
        tables=None if all_tables else tuple(table or ()),
        repair=repair,
        sample=_sample_size(sample, confidence),
        certificate=certificate,
        rate=rate,
        workers=workers,
        slice=None if part is None else Slice.parse(part),
        pass_over_refused=pass_over,
    )
    _compare(session, request)


def _sample_size(sample: str | None, confidence: float) -> SampleSize:
    from dblog_core.verify.sample import SampleSize

    if not 0 < confidence < 1:
        raise typer.BadParameter("give a number above 0 and below 1", param_hint="--confidence")
    if sample is None:
        return SampleSize(confidence=confidence)
    try:
        if sample.endswith("%"):
            share = float(sample.removesuffix("%")) / 100
            if not 0 < share <= 1:
                raise ValueError
            return SampleSize(share=share, confidence=confidence)
        if (rows := int(sample)) < 1:
            raise ValueError
    except ValueError:
        raise typer.BadParameter(
            f"{sample!r} is neither a number of rows nor a percentage such as 5%", param_hint="--sample"
        ) from None
    return SampleSize(rows=rows, confidence=confidence)


def _compare(session: Session, request: VerifyRequest) -> None:
    from dblog_core.verify.verification import verify
    from dblog_core.verify.window_positions import Interrupted

    config = session.config(SOURCE | LAKE)
    try:
        with stopping() as stop, progress() as display:
            report = verify(config, request, stop=stop, say=display.show)
    except Interrupted:
        note("interrupted: nothing is known")
        raise typer.Exit(FAILED) from None
    session.result(report.to_json(), text(report))
    if not report.equal:
        raise typer.Exit(FAILED)


def _check(session: Session, file: Path) -> None:
    from dblog_core.verify.certificate_check import check_certificate
    from dblog_core.verify.window_positions import Interrupted

    config = session.config(LAKE)
    try:
        with stopping() as stop:
            check = check_certificate(config, file, stop=stop)
    except Interrupted:
        note("interrupted: nothing is known")
        raise typer.Exit(FAILED) from None
    session.result(check.to_json(), check_text(check))
    if not check.equal:
        raise typer.Exit(FAILED)


def check_text(check: CertificateCheck) -> str:
    """What a certificate proves, for people."""
    lines = [_claim_text(table, check.at) for table in check.tables]
    lines += [f"{table.table}: left out: {table.reason}" for table in check.left_out]
    return "\n".join(lines) if check.tables else "\n".join(["NOT PROVEN: the certificate is of no table", *lines])


def _claim_text(table: ClaimCheck, at: str) -> str:
    if table.error is not None:
        return f"{table.table}: NOT PROVEN: {table.error}"
    line = f"{table.table}: equal to the source at {at}"
    if table.version is None:
        return f"{line}: it had no row, and the lake no copy of it"
    line = f"{line}; version {table.version} of the lake has the same rows still"
    if table.staged:
        line += f" (without {table.staged:,} rows that were staged then)"
    return f"{line}; not compared: {', '.join(table.not_compared)}" if table.not_compared else line


def text(report: Report) -> str:
    """The report for people."""
    header = ("TABLE", "ROWS", "MISSING", "EXTRA", "DIFFERENT", "UNDECIDED", "TIME", "")
    lines = [align(header, [*map(_row, report.tables)])]
    for table in report.tables:
        lines += [f"{table.table}: {line}" for line in _details(table)]
    lines += [f"NOT COMPARED {left.reason}\n  fix: {left.fix}" for left in report.left_out]
    return "\n".join(lines)


def _row(table: TableReport) -> tuple[str, ...]:
    more = "+" if table.more else ""
    counts = (table.missing, table.extra, table.different, table.undecided)
    differs = table.difference_count or (table.history is not None and table.history.is_wrong)
    verdict = "failed" if table.error else "equal" if table.equal else "DIFFERS" if differs else "undecided"
    return (table.table, f"{table.rows:,}", *(f"{len(c):,}{more}" for c in counts), in_words(table.seconds), verdict)


def _history(history: HistoryReport) -> list[str]:
    found = history.differences
    lines = [f"its history may lack lines: {history.gap}"] if history.gap is not None else []
    if history.not_compared is not None:
        lines.append(f"its history is not compared: {history.not_compared}")
    lines += [f"missing in its history {key}" for key in found.missing[:_SHOWN]]
    lines += [f"extra in its history {key}" for key in found.extra[:_SHOWN]]
    lines += [f"different in its history {key}: {', '.join(columns)}" for key, columns in found.different[:_SHOWN]]
    return [*lines, f"fix: {history.fix}"] if history.fix else lines


def _details(table: TableReport) -> list[str]:
    lines = [f"missing {key}" for key in table.missing[:_SHOWN]]
    lines += [f"extra {key}{' (several rows)' if key in table.twice else ''}" for key in table.extra[:_SHOWN]]
    lines += [
        f"different {key}: {', '.join(columns) or 'columns unknown'}" for key, columns in table.different[:_SHOWN]
    ]
    lines += [f"could not be decided {key}: it changed all the time" for key in table.undecided[:_SHOWN]]
    lines += [f"not compared: {column.column} ({column.reason})" for column in table.not_compared]
    lines += _history(table.history) if table.history else []
    lines += [line for line in (table.note, table.error) if line]
    if table.repaired is not None:
        lines.append(f"repaired by dump {table.repaired.dump_id}")
    if (drawn := table.sample) is not None:
        lines.append(
            f"of {drawn.source_rows:,} rows of the source and {drawn.lake_rows:,} of the lake: with confidence "
            f"{drawn.confidence:g} at most {drawn.source_at_most:.4%} of the source's rows and "
            f"{drawn.lake_at_most:.4%} of the lake's differ"
        )
    return lines
