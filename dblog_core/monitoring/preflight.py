"""The preflight behind `dblog check`: looks at every part that a configuration names, and tells all problems at once.

What prevents a correct capture is fatal; what prevents only merges, or is merely unwise, is a warning.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import tomllib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dblog_core import installed_packages, wiring
from dblog_core.config import conflicts
from dblog_core.config.secret_settings import named_secrets
from dblog_core.config.settings import Config
from dblog_core.config.source import ColumnRules
from dblog_core.errors import DblogError, StagingError
from dblog_core.interfaces import Problem, Source
from dblog_core.lake import continuity
from dblog_core.lake.lake_status import OWN, shares_history
from dblog_core.model import position_spec
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.monitoring.clear_text import in_clear_text
from dblog_core.monitoring.gone_tables import find_gone
from dblog_core.outputs import positions
from dblog_core.rows.column_rule_faults import join_problems
from dblog_core.rows.value_forms import FORMS, forms_for
from dblog_core.staging import table_records
from dblog_core.state import stopped_tables
from dblog_core.state.lease_holder import CAPTURE
from dblog_core.storage.factory import open_storage

ROOM = 1 << 30  # bytes: less is soon used up by a busy source


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and the part that it was found in: configuration, source, staging, state, lake, spark, output NAME."""

    area: str
    problem: Problem


def findings(config: Config, *, file: Path | None = None) -> list[Finding]:
    """Every problem; empty if all is well. One part that is down does not hide the problems of the others. What
    prevents a table's capture is one problem, also where several parts name it."""
    parts: dict[str, Callable[[], Iterator[Problem]]] = {
        "configuration": lambda: _configuration(file, config),
        "installation": _installation,
        "source": lambda: _source(config),
        "staging": lambda: _staging(config),
        "state": lambda: _state(config),
        "lake": lambda: _lake(config),
        "spark": lambda: _spark(config),
    }
    parts |= {f"output {name}": partial(output_problems, config, name) for name in sorted(config.output)}
    return _join_by_table([Finding(area, problem) for area, look in parts.items() for problem in _inspect(look)])


def _join_by_table(every_finding: Sequence[Finding]) -> list[Finding]:
    """With one error a table, where its first one is: the source may refuse a table that staging shows as held."""
    errors: dict[str, list[Problem]] = {}
    for finding in every_finding:
        if finding.problem.fatal and finding.problem.table is not None:
            errors.setdefault(finding.problem.table, []).append(finding.problem)
    joined: list[Finding] = []
    for finding in every_finding:
        table = finding.problem.table
        if not finding.problem.fatal or table is None:
            joined.append(finding)
        elif (problem := join_problems(errors.pop(table, []))) is not None:
            joined.append(replace(finding, problem=problem))
    return joined


def capture_runs(config: Config) -> bool | None:
    """Whether anybody captures now; None where the state store cannot tell, which is a finding of its own."""
    try:
        with closing(wiring.open_state(config)) as state:
            return state.leader(CAPTURE) is not None
    except DblogError:
        return None


def _begins(config: Config, source: Source) -> None:
    """Raises SourceRefused where a first capture is still to come, and cannot begin at the configured place."""
    if config.source.start in (position_spec.LATEST, position_spec.INITIAL):
        return
    try:
        begun = wiring.open_staging(config).head() is not None
    except StagingError:
        return  # the part of staging tells it
    if not begun:
        source.begin(config.source.start_place)


def _installation() -> Iterator[Problem]:
    """Packages that every command uses; those of an extra are asked for where the part that needs them is opened."""
    for fault in installed_packages.find_faults(None):
        yield Problem(fault, installed_packages.install_line(None))


def _inspect(look: Callable[[], Iterator[Problem]]) -> Iterator[Problem]:
    """The problems of one part; an error that ends its inspection is one of them."""
    try:
        yield from look()
    except DblogError as error:
        where = f"{error.where}: " if error.where else ""
        yield Problem(where + error.message, error.fix or "see the message")


def _configuration(file: Path | None, config: Config) -> Iterator[Problem]:
    if file is not None:
        yield from _file(file, config)
    yield from in_clear_text(config)
    hashed = sorted(table for table, rules in config.source.columns.items() if rules.hash)
    if hashed and not config.source.hash_key.get_secret_value():
        what = f"[source] hash_key is missing: hashed values of {', '.join(hashed)} can be found by trying likely ones"
        fix = 'set hash_key = "${ENV}" to a long random text (`openssl rand -hex 32`): the tables are then dumped again'
        yield Problem(what, fix, fatal=False)


def _file(file: Path, config: Config) -> Iterator[Problem]:
    yield from readable_secret(file)
    for clash in conflicts.beside(file, config):
        yield Problem(clash.message, clash.claim.fix, clash.claim.fatal)


def readable_secret(file: Path) -> Iterator[Problem]:
    """A password in clear text in a file that others may read."""
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    if file.stat().st_mode & 0o077 == 0:
        return
    for key, secret in named_secrets(data):
        if secret and "${" not in secret:
            yield Problem(
                f"{file} holds a password, and other users may read it",
                f'chmod 600 {file}, or write {key} = "${{ENV}}" and set the variable',
                fatal=False,
            )


def _source(config: Config) -> Iterator[Problem]:
    source = wiring.open_source(config.source)
    problems = source.check()
    yield from problems
    fatal = [problem for problem in problems if problem.fatal]
    if all(problem.table is not None for problem in fatal):
        with contextlib.suppress(StagingError):  # the part of staging tells it
            yield from find_gone(config, source)
    if fatal:
        return  # what follows asks the catalogue, which may be just what is out of reach
    _begins(config, source)
    tables = source.tables()
    yield from _meeting(config, [schema.table for schema in tables])
    for schema in tables:
        if rules := config.source.columns.get(str(schema.table)):
            yield from form_problems(schema, rules)


def _meeting(config: Config, tables: Sequence[TableName]) -> Iterator[Problem]:
    """Tables that want the same place in the lake: the merge stops one of the two."""
    names = {str(table): table for table in tables}
    fix = "leave one of the two out of `tables`"
    for name, table in names.items():
        if config.lake.history and (base := shares_history(table, names)) is not None:
            what = f"{name} and the history of {base} have the same place in the lake: the merge stops one of them"
            yield Problem(what, f"{fix}, or set [lake] history = false", fatal=False, table=name)
        if table.schema.casefold() == OWN:
            yield Problem(f"{name} has no place in the lake: {OWN} is its own directory", fix, fatal=False, table=name)
    if "://" in config.lake.path or not folds_case(Path(config.lake.path)):
        return
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            what = f"{name} and {other} have the same place in the lake: its file system takes them for one name"
            yield Problem(what, f"{fix}, or have the lake on one that does", fatal=False, table=name)


def folds_case(directory: Path) -> bool:
    """Whether files below it are the same that differ in upper and lower case alone; also where nobody can tell."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".check-", suffix="-a", dir=directory) as probe:
            return Path(f"{probe.name.removesuffix('-a')}-A").exists()
    except OSError:
        return False  # the part of the lake tells it


def form_problems(schema: TableSchema, rules: ColumnRules) -> Iterator[Problem]:
    """Forms of `staged_as` that do not fit their columns. Of rules that fit no column the source itself tells."""
    names = {column.name: column for column in schema.columns}
    place = f'[source.columns."{schema.table}"]'
    for name, form in rules.staged_as.items():
        if name in names and name not in schema.key and not FORMS[form].fits(names[name]):
            possible = " or ".join(forms_for(names[name]))
            yield Problem(
                f"{place} staged_as: {name} is {names[name].source_type}, and {form} is for {FORMS[form].of}",
                f"use {possible}" if possible else "remove it: this type has its usual form alone",
            )


def _place(config: Config, path: str, what: str, *, fatal: bool) -> Iterator[Problem]:
    if "://" in path:
        return _bucket(config, path, what, fatal=fatal)
    return _directory(Path(path), what, fatal=fatal)


def _lake(config: Config) -> Iterator[Problem]:
    faults_of_place = list(_place(config, config.lake.path, "tables", fatal=False))
    yield from faults_of_place or _continuity(config)


def _continuity(config: Config) -> Iterator[Problem]:
    """Whether merges take the lake for one of this staging."""
    try:
        _, verdict = continuity.judge_lake(wiring.open_staging(config), wiring.open_lake(config))
    except StagingError as error:
        yield Problem(f"whether the lake continues its staging cannot be read: {error.message}", error.fix, fatal=False)
    else:
        if not verdict.may_merge:
            yield Problem(f"every merge refuses the staging: {verdict.to_error().reason}", verdict.fix, fatal=False)


def _bucket(config: Config, path: str, what: str, *, fatal: bool) -> Iterator[Problem]:
    """Whether objects can be made there, once each, read, listed and removed, as publishing does."""
    storage = open_storage(path, s3=config.s3)
    probe = f"tmp/check-{uuid.uuid4().hex}"
    try:
        if not storage.create(probe, b"dblog") or storage.create(probe, b"again") or storage.read(probe) != b"dblog":
            yield Problem(f"{path}: an object is not what was written", "see who else writes there", fatal)
        if probe.rpartition("/")[2] not in storage.names("tmp"):
            yield Problem(f"{path}: a new object is not listed", "use a store whose listings are never late", fatal)
        storage.remove(probe)
    except StagingError as error:
        yield Problem(f"{path}: {what} cannot be written there: {error.message}", error.fix, fatal)


def _directory(path: Path, what: str, *, fatal: bool) -> Iterator[Problem]:
    """Whether files can be made there, durable and linked, as publishing does."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".check-", dir=path) as directory:
            probe = Path(directory) / "probe"
            with probe.open("wb") as out:
                out.write(b"dblog")
                os.fsync(out.fileno())
            os.link(probe, Path(directory) / "linked")
    except OSError as error:
        fix = f"make it a directory that user {os.geteuid()} may write, on a file system with hard links"
        yield Problem(f"{path}: {what} cannot be written there: {error.strerror}", fix, fatal)
        return
    free = shutil.disk_usage(path).free
    if free < ROOM:
        what = f"{path}: {free >> 20} MB are left on that disk"
        yield Problem(what, "make room: a full disk stops the capture", fatal=False)


def _state(config: Config) -> Iterator[Problem]:
    with closing(wiring.open_state(config)) as state:
        state.leader("capture")
    yield from ()


def _staging(config: Config) -> Iterator[Problem]:
    yield from _place(config, config.staging.path, "segments", fatal=True)
    if not config.source.columns:
        return
    records = table_records.read_newest(wiring.open_staging(config), *stopped_tables.HELD_NODES)
    held_entries = stopped_tables.read_held(records, config.source)
    # Of all stopped tables these alone: the catalogue, which tells of the others, does not show them.
    for table, entry in held_entries.items():
        yield Problem(entry.why, entry.fix, table=table)


def output_problems(config: Config, name: str) -> Iterator[Problem]:
    """Whether a relay would be let in. No output hinders a capture."""
    settings = config.output[name]
    if settings.kind == "files":
        yield from _place(config, settings.path, "lines", fatal=False)
    if settings.dead_letter is not None:
        yield from _directory(settings.dead_letter.parent, "dead letters", fatal=False)
    yield from (replace(problem, fatal=False) for problem in _inspect(lambda: _probe_output(config, name)))


def _probe_output(config: Config, name: str) -> Iterator[Problem]:
    output = wiring.open_output(config, name)
    try:
        if (probe := getattr(output, "probe", None)) is not None:
            probe(held=_is_relay_at_work(config, name))
    finally:
        output.close()
    yield from ()


def _is_relay_at_work(config: Config, name: str) -> bool:
    """Whether a relay is at work, or may be."""
    try:
        with closing(wiring.open_state(config)) as state:
            return state.leader(positions.lease_name(name)) is not None
    except DblogError:
        return True  # the part of the state store tells it


def _spark(config: Config) -> Iterator[Problem]:
    from dblog_core.lake import spark_submit

    for problem in spark_submit.check():
        yield replace(problem, fatal=False)  # it hinders merges, and no capture
