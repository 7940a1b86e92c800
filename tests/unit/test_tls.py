"""TLS, the same for all that connects."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from dblog_core import tls
from dblog_core.config import S3Config
from dblog_core.storage.s3 import S3Storage


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "ca.pem"
    file.write_text("of one's own\n")
    return file


def _usual(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: SimpleNamespace(openssl_cafile=str(file)))


def test_an_authority_stands_beside_those_of_the_system(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "usual.pem"
    _usual(monkeypatch, usual)
    monkeypatch.setenv("SSL_CERT_FILE", "")
    tls.trust_by_default(own)
    assert os.environ["SSL_CERT_FILE"] == str(own), "a directory of them is heeded whatever the variable says"
    usual.write_text("the system's\n")
    monkeypatch.setenv("SSL_CERT_FILE", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls.trust_by_default(own)
    assert Path(os.environ["SSL_CERT_FILE"]).read_text().split("\n\n") == ["the system's", "of one's own\n"]
    tls.trust_by_default(tmp_path / "another")
    assert "another" not in os.environ["SSL_CERT_FILE"]


def test_what_the_user_has_set_stays(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/the/users.pem")
    settings = S3Config.model_validate({"endpoint": "https://far.example:9000", "tls_ca": str(own)})
    assert S3Storage("bucket", "", settings=settings).delta_options["aws_endpoint_url"] == "https://far.example:9000"
    assert os.environ["SSL_CERT_FILE"] == "/the/users.pem"


def test_without_an_authority_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert S3Storage("bucket", "", settings=S3Config()).delta_options
    assert "SSL_CERT_FILE" not in os.environ
