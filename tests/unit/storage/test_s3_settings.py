"""What [s3] says reaches the object store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from dblog_core.config.settings import S3Config
from dblog_core.storage.s3 import S3Storage

KEY = "arn:aws:kms:eu-central-1:1:key/k"


@pytest.mark.parametrize(
    ("encryption_settings", "sent"),
    [
        ({}, {}),
        ({"encryption": "AES256"}, {"x-amz-server-side-encryption": b"AES256"}),
        (
            {"encryption": "aws:kms", "kms_key": KEY},
            {"x-amz-server-side-encryption": b"aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": KEY.encode()},
        ),
    ],
)
def test_new_objects_are_encrypted_as_the_file_says(
    encryption_settings: dict[str, str], sent: dict[str, bytes]
) -> None:
    settings = S3Config.model_validate(
        {"endpoint": "https://s3.example", "access_key": "id", "secret_key": "of the store", **encryption_settings}
    )
    storage = S3Storage("bucket", "p", settings=settings)
    puts = list[Any]()

    def answer(request: Any, **_: Any) -> AWSResponse:
        puts.append(request)
        return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda *_, **__: iter([]), read=lambda *_: b""))

    storage._client.meta.events.register("before-send.s3.PutObject", answer)
    storage.replace("a", b"replaced")
    storage._create("p/b", b"created")
    assert len(puts) == 2
    for put in puts:
        headers = {name.lower(): value for name, value in put.headers.items() if "encryption" in name.lower()}
        assert {name: value if isinstance(value, bytes) else value.encode() for name, value in headers.items()} == sent
