"""What an object store adds to the contract of storages: lost answers, servers away or too old, wrong credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError

from dblog_core.clock import SystemClock
from dblog_core.config.settings import S3Config
from dblog_core.errors import StagingError, StagingUnavailable
from dblog_core.local.servers import ports
from dblog_core.local.servers.s3 import Certificate, S3Server
from dblog_core.monitoring.preflight import findings, readable_secret
from dblog_core.staging import Staging, compaction_blocks, segment
from dblog_core.staging.compaction import Compactor
from dblog_core.staging.reader import lines
from dblog_core.storage.s3 import S3Storage
from tests.certificates import authority
from tests.fix_s3 import Bucket
from tests.fix_servers import Database
from tests.unit.staged import creates, publish, table

ORDERS = table()


def on(storage: S3Storage, event: str, handler: Callable[..., Any]) -> None:
    """Has the client call `handler` at that event of its requests."""
    storage._client.meta.events.register(event, handler)


def losing_an_answer(storage: S3Storage, key: str) -> Callable[..., None]:
    """A handler that carries out the first put of the key, and then breaks the connection."""
    lost = []

    def lose(request: Any, **_: Any) -> None:
        if request.url.endswith(key) and not lost:
            lost.append(storage._client._endpoint.http_session.send(request))
            raise ConnectionClosedError(endpoint_url=request.url)

    return lose


def test_a_put_whose_answer_is_lost_knows_its_own_object_again(bucket: Bucket) -> None:
    storage = bucket.storage("p")
    on(storage, "before-send.s3.PutObject", losing_an_answer(storage, "/1.json"))
    assert storage.create("manifests/1.json", b"one") is True
    assert storage.read("manifests/1.json") == b"one"
    other = bucket.storage("p")
    assert other.create("manifests/2.json", b"theirs") is True
    on(storage, "before-send.s3.PutObject", losing_an_answer(storage, "/2.json"))
    assert storage.create("manifests/2.json", b"theirs") is False, "the same bytes are not the same put"


CONFLICT = b"<?xml version='1.0'?><Error><Code>ConditionalRequestConflict</Code><Message>try again</Message></Error>"


def test_a_put_that_meets_its_own_earlier_attempt_knows_its_own_object_again(bucket: Bucket) -> None:
    """The client's second request comes while the server works on the first: it is told to try again, which no retry
    of the client's counts, and then finds what the first has made."""
    storage = bucket.storage("p")
    storage.create("manifests/0.json", b"the server's ways are proven")
    sent: list[Any] = []

    def conflict(request: Any, **_: Any) -> AWSResponse | None:
        if not request.url.endswith("/1.json") or sent:
            return None
        sent.append(storage._client._endpoint.http_session.send(request))
        raw = SimpleNamespace(stream=lambda *_, **__: iter([CONFLICT]), read=lambda *_: CONFLICT, headers={})
        return AWSResponse(request.url, 409, {"content-type": "application/xml"}, raw)

    on(storage, "before-send.s3.PutObject", conflict)
    assert storage.create("manifests/1.json", b"one") is True
    assert sent and storage.read("manifests/1.json") == b"one"


def test_a_server_that_overwrites_in_spite_of_the_condition_is_refused(bucket: Bucket) -> None:
    def forget(params: dict[str, Any], **_: Any) -> None:
        params["headers"].pop("If-None-Match", None)

    storage = bucket.storage()
    on(storage, "before-call.s3.PutObject", forget)
    with pytest.raises(StagingError, match="overwrites what a conditional put must leave") as caught:
        storage.create("manifests/1.json", b"one")
    assert not caught.value.transient and caught.value.fix
    assert not storage.exists("manifests/1.json")


def settings(bucket: Bucket, **changes: Any) -> S3Config:
    return bucket.settings.model_validate({**bucket.settings.model_dump(), **changes})


def test_what_is_wrong_with_the_settings_is_told_with_its_fix(bucket: Bucket) -> None:
    calls: dict[str, S3Storage] = {
        "there is no bucket": S3Storage("nowhere", "p", settings=bucket.settings),
        "refuses the credentials": S3Storage(bucket.name, "p", settings=settings(bucket, secret_key="wrong-secret")),
    }
    for what, storage in calls.items():
        with pytest.raises(StagingError, match=what) as caught:
            list(storage.names("manifests"))
        assert caught.value.fix and not caught.value.transient
        assert "wrong-secret" not in str(caught.value)


def test_a_server_that_is_away_is_a_fault_that_may_pass(bucket: Bucket) -> None:
    nobody = settings(bucket, endpoint=f"http://127.0.0.1:{ports.find_free_port()}")
    with pytest.raises(StagingUnavailable, match="does not answer"):
        S3Storage(bucket.name, "p", settings=nobody).exists("x")


def test_listings_of_many_pages_are_whole(bucket: Bucket) -> None:
    storage = bucket.storage("p")
    on(storage, "before-parameter-build.s3.ListObjectsV2", lambda params, **_: params.update(MaxKeys=2))
    storage.write_directory("log/1", {f"{n}.parquet": b"x" for n in range(7)})
    assert sorted(storage.names("log/1")) == [f"{n}.parquet" for n in range(7)]
    assert sorted(file.path for file in storage.files("log")) == [f"log/1/{n}.parquet" for n in range(7)]


def test_segments_are_joined_and_read_as_on_a_file_system(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    staging = Staging(source="shop", storage=bucket.storage("staging/shop"))
    for number in range(1, compaction_blocks.FAN + 2):
        publish(staging, number, number, number, (ORDERS, creates(ORDERS, number, 1)))
    before = list(lines(staging))
    compactor = Compactor(staging.handle(), SystemClock(), grace=0)
    for _ in compactor.steps():
        pass
    left = [file.path.split("/")[0] for file in staging.storage.files("")]
    assert (left.count("manifests"), left.count("compacted"), left.count("log")) == (1, 1, 2)
    fresh = Staging(source="shop", storage=bucket.storage("staging/shop"))
    assert list(lines(fresh)) == before and len(before) > compaction_blocks.FAN
    assert fresh.head_number() == compaction_blocks.FAN + 1


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_check_looks_at_the_bucket(database: Database, bucket: Bucket, tmp_path: Path) -> None:
    places = bucket.sections()
    assert not [f for f in findings(database.config(tmp_path, **places)) if f.area in ("staging", "lake")]
    assert not list(bucket.storage().files("")), "it leaves nothing behind"
    places["staging"]["path"] = "s3://nowhere/staging"
    (finding,) = [f for f in findings(database.config(tmp_path, **places)) if f.area == "staging"]
    assert finding.problem.fatal and "no bucket" in finding.problem.what


def test_the_server_for_machines_without_go_keeps_to_conditions_too(tmp_path: Path) -> None:
    server = S3Server(tmp_path, mock=True)
    server.start()
    try:
        server.make_bucket("b-1")
        storage = Bucket(server, "b-1").storage("p")
        assert storage.create("x", b"one") is True
        assert storage.create("x", b"two") is False
        assert storage.read("x") == b"one"
    finally:
        server.kill()


def test_a_key_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('[s3]\nsecret_key = "in the open"\n')
    file.chmod(0o644)
    (problem,) = readable_secret(file)
    assert "secret_key" in problem.fix and not problem.fatal and "in the open" not in str(problem)
    file.chmod(0o600)
    assert list(readable_secret(file)) == []


CREATE = """
import sys

from dblog_core.config.settings import S3Config
from dblog_core.lake.lake_status import lake_at

lake = lake_at("s3://lakehouse/lake", s3=S3Config.model_validate_json(sys.stdin.read()))
print((lake / "by our own client").create(b""))
"""


def test_an_authority_of_ones_own_is_trusted(tmp_path: Path) -> None:
    own_authority = authority(tmp_path / "ca", "DBLog tests")
    certificate = Certificate(*own_authority.sign("s3", "127.0.0.1"), own_authority.file)
    server = S3Server(tmp_path / "s3", certificate=certificate)
    server.start()
    try:
        server.make_bucket("lakehouse")
        s3_settings = {
            **server.settings.model_dump(mode="json"),
            "secret_key": server.settings.secret_key.get_secret_value(),
        }
        done = subprocess.run(
            [sys.executable, "-c", CREATE],
            check=False,
            input=orjson.dumps(s3_settings).decode(),
            env={name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"},
            capture_output=True,
            text=True,
        )
    finally:
        server.kill()
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
