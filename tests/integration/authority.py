"""An authority that makes certificates: good ones, expired ones, and those of somebody else."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """One authority, whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.path = folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {name}")])
        folder.mkdir(parents=True, exist_ok=True)
        certificate = (
            _builder(self._name, self._name, self._key, days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, hosts: tuple[str, ...] = ("localhost",), days: float = 30) -> Path:
        """Make NAME.pem and NAME.key; with fewer than 0 days it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in (name, *hosts)]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        certificate = (
            _builder(subject, self._name, key, days=days)
            .add_extension(x509.SubjectAlternativeName(names if hosts else names[:1]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"{name}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        path.with_suffix(".key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return path

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority, and perhaps shows a certificate."""
        context = ssl.create_default_context(cafile=self.path)
        if certificate is not None:
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
    )
