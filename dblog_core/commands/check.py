"""`dblog check`: every problem that can be found before anything runs, each with its fix."""

from __future__ import annotations

from typing import Any

import typer

from dblog_core.commands.session import FAILED, JsonFlag, session_of


def check(context: typer.Context, json: JsonFlag = False) -> None:
    """Find every problem before anything runs.

    Looks at the source, its grants and settings, staging, the state store, the
    lake, Spark, and every output. Exits with 1 if any of them prevents a correct capture; warnings do not.

    \b
    Example:
      dblog --config shop.toml check
    """
    from dblog_core.monitoring.preflight import Finding, capture_runs, findings

    session = session_of(context, json)
    config = session.config()
    every_finding = findings(config, file=session.file)
    fatal = [f for f in every_finding if f.problem.fatal]

    def show(finding: Finding) -> str:
        grade = "ERROR" if finding.problem.fatal else "warning"
        fix = session.redact(finding.problem.fix).replace("\n", "\n       ")
        return f"{grade}: {finding.area}: {session.redact(finding.problem.what)}\n  fix: {fix}"

    def as_json(finding: Finding) -> dict[str, Any]:
        problem = finding.problem
        what = session.redact(problem.what)
        fix = session.redact(problem.fix)
        return {"area": finding.area, "what": what, "fix": fix, "fatal": problem.fatal}

    count = f"{len(fatal)} error(s), {len(every_finding) - len(fatal)} warning(s)"
    verdict = f"{config.source.name}: {count}" if every_finding else f"{config.source.name}: all is well"
    captures = capture_runs(config)
    lines = [*map(show, every_finding), verdict]
    if captures is False:
        lines.append(no_capture(config.source.name))
    result = {
        "source": config.source.name,
        "ok": not fatal,
        "capture_runs": captures,
        "problems": [as_json(finding) for finding in every_finding],
    }
    session.result(result, "\n".join(lines))
    if fatal:
        raise typer.Exit(FAILED)


def no_capture(source: str) -> str:
    """What a person does next, once all is well."""
    dag = f"dblog_{source}_capture"
    return f"no capture is running yet: `dblog capture`, or unpause {dag} and {dag}_standby in Airflow, starts one"
