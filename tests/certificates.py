"""Real certificates for tests: an authority and the certificates that it signs."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Files:
    """Paths of a certificate and its private key, both PEM."""

    certificate: str
    key: str


class Authority:
    """A certificate authority that writes into a folder, as PEM files."""

    def __init__(
        self,
        folder: Path,
        name: str = "test authority",
        *,
        days: float = 30,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        usage = x509.KeyUsage(
            True,
            False,
            False,
            False,
            False,
            True,
            True,
            False,
            False,
        )
        certificate = (
            _builder(
                self._name,
                self._name,
                self._key.public_key(),
                days,
            )
            .add_extension(
                x509.BasicConstraints(ca=True, path_length=None),
                critical=True,
            )
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.file = str(folder / "ca.pem")
        Path(self.file).write_bytes(certificate.public_bytes(Encoding.PEM))

    def revoke(self, *files: str) -> str:
        """Return the file of a revocation list of the certificates in these files."""
        now = datetime.now(UTC)
        revocations = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now)
            .next_update(now + timedelta(days=1))
        )
        for file in files:
            certificate = x509.load_pem_x509_certificate(Path(file).read_bytes())
            revocations = revocations.add_revoked_certificate(_revocation(certificate, now))
        signed = revocations.sign(self._key, hashes.SHA256())
        path = self._folder / "revoked.pem"
        path.write_bytes(signed.public_bytes(Encoding.PEM))
        return str(path)

    def sign(
        self,
        file: str,
        *names: str,
        days: float = 30,
        password: bytes = b"",
    ) -> Files:
        """Write a certificate for host names or addresses; without one it is for ``127.0.0.1``.

        ``password`` encrypts the private key; empty leaves it in plain text.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [_alternative(name) for name in names or ("127.0.0.1",)]
        certificate = (
            _builder(_named(file), self._name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        paths = Files(
            str(self._folder / f"{file}.pem"),
            str(self._folder / f"{file}.key"),
        )
        Path(paths.certificate).write_bytes(certificate.public_bytes(Encoding.PEM))
        encryption: KeySerializationEncryption = NoEncryption()
        if password:
            encryption = BestAvailableEncryption(password)
        key_text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        Path(paths.key).write_bytes(key_text)
        return paths


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: float,
) -> x509.CertificateBuilder:
    """Return a certificate without signature that has been valid for a month.

    It ends after ``days``; negative: it ended that many days ago.
    """
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30 + abs(days)))
        .not_valid_after(now + timedelta(days=days))
    )


def _revocation(certificate: x509.Certificate, now: datetime) -> x509.RevokedCertificate:
    return (
        x509.RevokedCertificateBuilder()
        .serial_number(certificate.serial_number)
        .revocation_date(now)
        .build()
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
