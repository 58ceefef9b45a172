"""How the two nodes of the demo become partners: certificates of one authority, an invitation from each."""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gateway.cli.language import spoken

TLS = ("ca", "certificate", "key")


class Authority:
    """Signs the certificates of both nodes, as one that both institutions trust."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of the demo")])
        self._own = (
            self._begun(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, SHA256())
        )

    def files(self, folder: Path, node: str) -> dict[str, str]:
        """Write authority, certificate and key of a node as PEM files. The certificate bears the node's id."""
        folder.mkdir(parents=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(node), x509.IPAddress(ip_address("127.0.0.1"))]
        certificate = (
            self._begun(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)]), key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, SHA256())
        )
        contents = (
            self._own.public_bytes(Encoding.PEM),
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )
        for name, content in zip(TLS, contents, strict=True):
            (folder / f"{name}.pem").touch(0o600)
            (folder / f"{name}.pem").write_bytes(content)
        return {name: str(folder / f"{name}.pem") for name in TLS}

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
        )


def become_partners(homes: Sequence[Path], addresses: Sequence[str]) -> list[str]:
    """Let each of two nodes invite the other and accept; return the words that each side sees.

    Raises `subprocess.CalledProcessError`.
    """
    sides = list(zip(homes, addresses, strict=True))
    invited = [_started(home, "invite", "--address", address) for home, address in sides]
    for (home, _), process in zip(sides, invited, strict=True):
        (home / "invitation.json").write_text(_output(process))
    accepted = [
        _started(
            *(
                home,
                "accept",
                str(other / "invitation.json"),
                "--address",
                address,
                "--yes",
                "--json",
            ),
            *(part for name in TLS for part in (f"--{name}", str(home / "tls" / f"{name}.pem"))),
        )
        for (home, address), other in zip(sides, reversed(homes), strict=True)
    ]
    return [str(json.loads(_output(process))["words"]) for process in accepted]


def _started(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gateway.cli.main", "--lang", spoken(), "partner", *words]
    command += ["--config", str(home / "node.yml")]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _output(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate()
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, process.args, output, errors)
    return output
