"""How Spark jobs are started: the spark-submit command, for the command line and Airflow's SparkSubmitOperator alike.

The command line holds no secret. A job reads its configuration from the file, or from an environment variable
where only the caller could resolve it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote, quote_plus

import orjson
from pydantic import SecretStr

from dblog_core.config.secret_settings import READER, SECRET_NAME, SOURCE, NotGiven, given_to, secrets_of
from dblog_core.config.settings import Config
from dblog_core.errors import LakeError, LocalError
from dblog_core.installed_packages import DISTRIBUTION, find_faults, install_line
from dblog_core.interfaces import Problem
from dblog_core.model import sizes

COMMIT_MARK = "dblog"
"""What the commits of our jobs carry in Delta's log, so that others' commits differ from them."""

SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
CONFIG_VARIABLE = "DBLOG_JOB_CONFIG"
"""Environment variable with the configuration as JSON, as much of it as the job needs; read where no file is given."""

PARENT_VARIABLE = "DBLOG_JOB_PARENT"
"""Environment variable with the id of the process that a job serves: a continuous job ends with it."""

STOP_FILE_VARIABLE = "DBLOG_JOB_STOP"
"""Environment variable with a path: a job that finds a file there was asked to end before it could catch signals."""

NEEDS = {"dump": SOURCE}
"""Of which sections a job needs the secrets; of those of staging, lake and state alone where nothing is said."""

_MIN_SECRET_PART_CHARS = 8  # characters of a variable from which on it counts as part of a secret
_PROPERTIES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", **{char: f"\\{char}" for char in " \t\f=:#!"}}
_COLLECTOR = re.compile(r"-XX:[+-]?Use\w*GC\b")
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_SMALL_HEAP_BYTES = 2 << 30
_HAS_TRAP = "ignores-signals"  # the file that says that the shell does not die of them any more
_JAVA = 17  # the oldest that Spark 4 runs on
_GRACE_SECONDS = 600.0  # for what a job does when it is told to stop
_LOGGING = Path(__file__).parent / "spark_conf"


@dataclass(frozen=True, slots=True)
class SparkCommand:
    """A spark-submit: as one command line (`argv`, `env`), and in the parts that SparkSubmitOperator wants."""

    argv: tuple[str, ...]
    env: dict[str, str]
    conf: dict[str, str]
    application: str
    application_args: tuple[str, ...]
    driver_memory: str
    master: str


def spark_conf(config: Config | None = None) -> dict[str, str]:
    """The settings of a session: ours, the loopback for a local master, then the configuration's."""
    master, extra = (config.spark.master, config.spark.conf) if config else ("local", {})
    local = (
        {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if master.startswith("local")
        else {}
    )
    # What a user sets for the executors would be the driver's Python too.
    driver = {"spark.pyspark.driver.python": sys.executable} if "spark.pyspark.python" in extra else {}
    ours = _collector(config) if config else {}
    return {**SETTINGS, **local, **driver, **ours, **extra}


def _collector(config: Config) -> dict[str, str]:
    """The serial collector for a small heap: Java's usual one lets the driver of a long merge grow by 400 MB more.

    Two collectors are an error to Java: who has named one keeps it.
    """
    options = [config.spark.conf.get(f"spark.driver.{kind}JavaOptions", "") for kind in ("default", "extra")]
    options += [os.environ.get(name, "") for name in _JAVA_VARIABLES]
    if sizes.parse(config.spark.driver_memory) > _SMALL_HEAP_BYTES or any(map(_COLLECTOR.search, options)):
        return {}
    return {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC"}


def job_command(
    job: str,
    config: Config,
    *,
    config_path: Path | str | None = None,
    arguments: Sequence[str] = (),
    secrets: Path | None = None,
) -> SparkCommand:
    """The spark-submit of spark_jobs/JOB.py. Without `config_path` the caller puts the configuration into
    CONFIG_VARIABLE. `secrets`: the file of `secret_settings`."""
    config_option = ["--config", str(Path(config_path).absolute())] if config_path is not None else []
    arguments = [*config_option, *arguments]
    conf = _open_conf(config)
    application = _application(job)
    return SparkCommand(
        argv=(_spark_submit(), *_options(job, config, conf, secrets), application, *arguments),
        env=environment(config.spark.master),
        conf=conf,
        application=application,
        application_args=tuple(arguments),
        driver_memory=config.spark.driver_memory,
        master=config.spark.master,
    )


def _options(job: str, config: Config, conf: Mapping[str, str], secrets: Path | str | None) -> list[str]:
    options = ["--master", config.spark.master, "--driver-memory", config.spark.driver_memory]
    options += ["--name", f"dblog {job} {config.source.name}"]
    options += ["--properties-file", str(secrets)] if secrets else []
    for key, value in conf.items():
        options += ["--conf", f"{key}={value}"]
    return options


def _open_conf(config: Config) -> dict[str, str]:
    """The settings without secrets, which go through `secret_settings`: everybody on the machine can read arguments."""
    return {name: value for name, value in spark_conf(config).items() if not SECRET_NAME.search(name)}


@contextmanager
def secret_settings(config: Config) -> Iterator[Path | None]:
    """A file of the settings of `[spark] conf` that are secrets by their names, for as long as the block lasts:
    everybody on the machine can read arguments. None where there are none."""
    secret_conf = {name: value for name, value in config.spark.conf.items() if SECRET_NAME.search(name)}
    if not secret_conf:
        yield None
        return
    with tempfile.NamedTemporaryFile("w", prefix="dblog-spark-", suffix=".conf", encoding="utf-8") as file:
        file.writelines(f"{_escape_property(name)} {_escape_property(value)}\n" for name, value in secret_conf.items())
        # Spark opens it by its name while ours is still open.
        file.flush()
        yield Path(file.name)


def _escape_property(text: str) -> str:
    """For a file of Java's properties."""
    return "".join(_PROPERTIES.get(char, char) for char in text)


def _application(job: str) -> str:
    spec = importlib.util.find_spec("spark_jobs")
    if spec is None or not spec.submodule_search_locations:
        raise LakeError("the package spark_jobs is not installed", fix=f"install {DISTRIBUTION}")
    return str(Path(spec.submodule_search_locations[0]) / f"{job}.py")


def _spark_submit() -> str:
    """The one beside our Python belongs to the pyspark that a job imports."""
    beside = Path(sys.executable).with_name("spark-submit")
    program = str(beside) if beside.exists() else shutil.which("spark-submit")
    if program is None:
        raise LakeError("spark-submit is not installed", fix=install_line("spark"))
    return program


def environment(master: str) -> dict[str, str]:
    """The variables that Spark needs of the process that starts it."""
    env = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_CONF_DIR": str(_LOGGING)}
    if master.startswith("local"):
        env["SPARK_LOCAL_IP"] = "127.0.0.1"
    return env


def run_job(
    job: str,
    config: Config,
    *,
    arguments: Sequence[str] = (),
    stop: threading.Event,
    on_line: Callable[[str], None],
    on_result: Callable[[str], None] | None = None,
) -> int:
    """Runs spark_jobs/JOB.py to its end, or until `stop`; returns its exit code.

    `on_line` gets its progress, `on_result` (if given; the job is then asked for --json) one JSON text per result.
    """
    arguments = [*arguments, *(["--json"] if on_result else [])]
    with secret_settings(config) as secrets:
        command = job_command(job, config, arguments=arguments, secrets=secrets)
        return _run(command.argv, command.env, job, config, stop, on_line, on_result)


def _run(
    argv: Sequence[str],
    variables: Mapping[str, str],
    job: str,
    config: Config,
    stop: threading.Event,
    on_line: Callable[[str], None],
    on_result: Callable[[str], None] | None,
) -> int:
    needs = NEEDS.get(job, READER)
    job_config = given_to(config, needs)
    job_variables = {CONFIG_VARIABLE: config_json(job_config), PARENT_VARIABLE: str(os.getpid())}
    withheld = _withheld_variables(config, needs)
    inherited = {name: value for name, value in os.environ.items() if name not in withheld}
    env = {**inherited, **variables, **job_variables}
    with tempfile.TemporaryDirectory(prefix="dblog-") as directory:
        return _supervise(argv, env, Path(directory, "stop"), stop, on_line, on_result)


def _supervise(
    argv: Sequence[str],
    env: Mapping[str, str],
    stop_file: Path,
    stop: threading.Event,
    on_line: Callable[[str], None],
    on_result: Callable[[str], None] | None,
) -> int:
    # The JVM would end at once on a signal; it must outlive the round, so it ignores them and the Python job does not.
    begin = 'trap "" INT TERM; : > "$1"; shift; exec "$@"'
    process = subprocess.Popen(
        ["/bin/sh", "-c", begin, "sh", str(stop_file.with_name(_HAS_TRAP)), *argv],
        env={**env, STOP_FILE_VARIABLE: str(stop_file)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        # A group of its own: the JVM and its Python workers get our signals together, and none of a terminal's.
        start_new_session=True,
    )
    assert process.stdout is not None  # a pipe, as asked for
    reader = threading.Thread(target=_read, args=(process.stdout, on_line, on_result), daemon=True)
    reader.start()
    try:
        return _wait(process, stop, stop_file)
    finally:
        if process.poll() is None:
            # Only after an error of ours, or after the grace: nobody would wait for it any more.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # A worker that outlives the job may hold the pipe open.
        reader.join(timeout=5)


@contextmanager
def job_environment(config: Config, needs: Collection[str] = READER) -> Iterator[None]:
    """Takes the variables of secrets that a job with these needs does not get out of our environment, for as long as
    the block takes: for who starts the job by another program, which hands on all of them."""
    withheld = _withheld_variables(config, needs)
    values = {name: os.environ.pop(name) for name in withheld}
    try:
        yield
    finally:
        os.environ.update(values)


def _withheld_variables(config: Config, needs: Collection[str]) -> set[str]:
    """The variables that hold secrets of the configuration which a job with these needs does not get."""
    withheld = set(secrets_of(config)) - set(secrets_of(given_to(config, needs)))
    forms = {form for secret in withheld for form in _forms(secret) if len(form) >= _MIN_SECRET_PART_CHARS}

    # By value: a variable may have any name, may be a part of a secret, or hold one in a URL or in JSON. A path may
    # hold a word that is also a password, and no program starts without its paths.
    def is_of_one(value: str) -> bool:
        is_part = len(value) >= _MIN_SECRET_PART_CHARS and any(value in secret for secret in withheld)
        may_hold_one = "://" in value or value.lstrip().startswith("{")
        return value in withheld or is_part or (may_hold_one and any(form in value for form in forms))

    names = {name for name, value in os.environ.items() if is_of_one(value)}
    connection = config.source.airflow_connection
    # Its password is known to Airflow alone.
    if connection and "source" not in needs:
        names |= {f"AIRFLOW_CONN_{connection.upper()}"} & os.environ.keys()
    return names


def _forms(secret: str) -> tuple[str, ...]:
    """As it stands in a text of another kind."""
    return secret, quote(secret), quote(secret, safe=""), quote_plus(secret), orjson.dumps(secret).decode()[1:-1]


def config_json(config: Config) -> str:
    """The configuration as JSON with its secrets, for CONFIG_VARIABLE: its connection is resolved, for a job has no
    Airflow to ask."""
    data = config.model_dump()
    source = {**data["source"], "airflow_connection": None}
    return orjson.dumps({**data, "source": source}, default=_reveal_secret).decode()


def _reveal_secret(value: object) -> str:
    if isinstance(value, NotGiven):
        return ""
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _wait(process: subprocess.Popen[str], stop: threading.Event, stop_file: Path) -> int:
    """The exit code of a job that ends when it is done, or at its next round's end once `stop` is set."""
    while process.poll() is None:
        if stop.wait(0.1):
            stop_file.touch()  # first: a job that does not catch the signal yet finds it
            if not stop_file.with_name(_HAS_TRAP).exists():
                time.sleep(0.01)
                continue
            # A JVM that the job has started must outlive the round, and does not ignore the signal.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                return process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise LakeError(
                    f"the job did not end within {_GRACE_SECONDS:.0f} s of being asked to",
                    fix="run it again: the next one finishes its work",
                ) from error
    return process.returncode


def _read(lines: IO[str], on_line: Callable[[str], None], on_result: Callable[[str], None] | None) -> None:
    """A job's two streams come as one: results are the lines that are JSON objects."""
    with lines:
        for line in lines:
            text = line.rstrip("\n")
            if on_result is not None and text.startswith("{"):
                on_result(text)
            elif text:
                on_line(text)


def check() -> Iterator[Problem]:
    """What stands in the way of a merge, and of what else is Spark's."""
    yield from _check_java()
    yield from (Problem(fault, install_line("spark")) for fault in find_faults("spark"))


def _check_java() -> Iterator[Problem]:
    """Runs the Java that Spark's scripts would take: a JAVA_HOME may name one that is gone, or an older one."""
    needed = f"install Java {_JAVA} or newer (openjdk-{_JAVA}-jre-headless), or have JAVA_HOME name it"
    try:
        program = find_java()
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (LocalError, OSError, subprocess.TimeoutExpired) as error:
        yield Problem(f"no Java can be run: {error.message if isinstance(error, LocalError) else error}", needed)
        return
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if version is None or done.returncode:
        yield Problem(f"{program} does not say which Java it is", needed)
    elif int(version[1]) < _JAVA:
        yield Problem(f"{program} is Java {version[1]}, and Spark needs {_JAVA} or newer", needed)


def find_java() -> str:
    """The Java program. Raises LocalError."""
    # As Spark's own scripts look for it.
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not program or not Path(program).exists():
        raise LocalError("there is no Java", fix="sudo apt-get install openjdk-17-jre-headless")
    return program
