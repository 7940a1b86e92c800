"""What the local Airflow is configured with: an `airflow.cfg` and its secrets, generated once per installation.

Everything stands in one private file rather than in the environment, so `AIRFLOW_HOME=… airflow dags list` works by
hand, and no task or Spark job inherits a secret of Airflow's.
"""

from __future__ import annotations

import base64
import configparser
import json
import os
import secrets
from pathlib import Path

SETTINGS: dict[str, dict[str, str]] = {
    "core": {
        "load_examples": "False",
        "executor": "LocalExecutor",
        # The captures, the merge, and a dump's tasks at one time; a process is started for each when first needed.
        "parallelism": "12",
        "dags_are_paused_at_creation": "True",
    },
    "scheduler": {
        "scheduler_idle_sleep_time": "0.2",  # a capture's next slice starts in 0.5 s instead of 1.5
        "task_instance_heartbeat_timeout": "60",  # longer than the API server may be away
        "scheduler_health_check_threshold": "30",  # with less, a busy scheduler resets its own tasks
        "orphaned_tasks_check_interval": "15",
    },
    "workers": {
        "min_heartbeat_interval": "1",  # a task learns within a second that it was failed or cleared
        "socket_cleanup_timeout": "5",  # a killed task is noticed although its Spark job still holds the log pipe
        "max_failed_heartbeats": "100",  # the capture outlives an API server that is away
        "execution_api_retries": "1",
        "execution_api_timeout": "20",  # a busy API server answers late; without an answer the attempt is lost
    },
    "dag_processor": {"min_file_process_interval": "10", "parsing_processes": "1"},
}
"""Of the Airflow in docker/compose.yaml too."""
USER = "dblog"
GUEST = "guest"  # who may look at everything and change nothing
_ROLES = {USER: "admin", GUEST: "viewer"}
PASSWORDS = "passwords.json"
_SECRETS = "secrets.json"


def write(home: Path, *, port: int, dags: Path, database: str) -> Path:
    """Writes `airflow.cfg` for an API server at `port`, and the secrets where they are missing; all of mode 0600."""
    _once(home / PASSWORDS, {user: secrets.token_urlsafe(16) for user in _ROLES})
    _once(
        home / _SECRETS,
        {
            "jwt": secrets.token_urlsafe(96),  # HS512 wants 64 bytes and more
            "api": secrets.token_urlsafe(32),
            "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        },
    )
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_dict(_settings(home, port, dags, database, json.loads((home / _SECRETS).read_text())))
    file = home / "airflow.cfg"
    with os.fdopen(_private(file, os.O_TRUNC), "w") as out:
        parser.write(out)
    return file


def password(home: Path, user: str = USER) -> str:
    """The generated password of a user."""
    return str(json.loads((home / PASSWORDS).read_text())[user])


def _settings(home: Path, port: int, dags: Path, database: str, secret: dict[str, str]) -> dict[str, dict[str, str]]:
    url = f"http://127.0.0.1:{port}"
    return {
        **SETTINGS,
        "core": {
            "dags_folder": str(dags),
            **SETTINGS["core"],
            "hostname_callable": "socket.gethostname",
            "execution_api_server_url": f"{url}/execution/",
            "fernet_key": secret["fernet"],
            "simple_auth_manager_users": ",".join(f"{user}:{role}" for user, role in _ROLES.items()),
            "simple_auth_manager_passwords_file": str(home / PASSWORDS),
        },
        "database": {"sql_alchemy_conn": database},
        "api": {"host": "127.0.0.1", "port": str(port), "base_url": url, "secret_key": secret["api"]},
        "api_auth": {"jwt_secret": secret["jwt"]},
        "logging": {"base_log_folder": str(home / "logs")},
    }


def _once(file: Path, values: dict[str, str]) -> None:
    if not file.exists():
        with os.fdopen(_private(file, os.O_EXCL), "w") as out:
            json.dump(values, out)


def _private(file: Path, how: int) -> int:
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | how, 0o600)
    # The mode of `open` counts for new files only, and the umask takes from it.
    os.fchmod(descriptor, 0o600)
    return descriptor
