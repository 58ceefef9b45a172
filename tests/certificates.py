"""Real certificates for tests: an authority, and what it signs."""

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
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Files:
    certificate: str
    key: str


class Authority:
    """Signs certificates and lays them into a folder as PEM files."""

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
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = (
            _builder(self._name, self._name, self._key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.file = str(folder / "ca.pem")
        Path(self.file).write_bytes(made.public_bytes(Encoding.PEM))

    def revoke(self, *files: str) -> str:
        """Return the file of a revocation list of the certificates in these files."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self._name).last_update(now)
        made = made.next_update(now + timedelta(days=1))
        for file in files:
            serial = x509.load_pem_x509_certificate(Path(file).read_bytes()).serial_number
            entry = (
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            )
            made = made.add_revoked_certificate(entry)
        found = self._folder / "revoked.pem"
        found.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return str(found)

    def sign(
        self,
        file: str,
        *names: str,
        days: float = 30,
        password: bytes = b"",
    ) -> Files:
        """Return the files of a certificate for host names or addresses, ``127.0.0.1`` where none is given."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [_alternative(name) for name in names or ("127.0.0.1",)]
        made = (
            _builder(_named(file), self._name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        found = Files(str(self._folder / f"{file}.pem"), str(self._folder / f"{file}.key"))
        Path(found.certificate).write_bytes(made.public_bytes(Encoding.PEM))
        secret = BestAvailableEncryption(password) if password else NoEncryption()
        Path(found.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
        return found


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: float,
) -> x509.CertificateBuilder:
    """Begin a certificate of which a month has passed; with negative ``days`` it has ended so long ago."""
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


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
