"""Certificates for tests of TLS: an authority, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates; `file`: its own."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def file(self) -> str:
        return str(self.directory / "ca.pem")

    def sign(self, name: str, *names: str) -> tuple[str, str]:
        """The files of a certificate and its key; `names`: addresses it is for."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(name, key, self.certificate.subject, self.key, names)
        certificate = self.directory / f"{name}.pem"
        secret = self.directory / f"{name}.key.pem"
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        secret.touch(mode=0o600)
        secret.write_bytes(_pem(key))
        return str(certificate), str(secret)


def authority(directory: Path, name: str) -> Authority:
    directory.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = _certificate(name, key, subject, key, (), authority=True)
    (directory / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return Authority(directory, key, certificate)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    names: tuple[str, ...],
    *,
    authority: bool = False,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names:
        alternatives = [x509.IPAddress(ipaddress.ip_address(n)) for n in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
