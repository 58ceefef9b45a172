"""How the two nodes of the demo become partners: certificates of one authority, an invitation from
each.
"""

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

from gateway.cli.language import language_in_use

TLS = ("ca", "certificate", "key")  # files of a node, as options of `partner accept` name them


class Authority:
    """A certificate authority that both institutions trust."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of the demo")])
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(
                x509.BasicConstraints(ca=True, path_length=0),
                critical=True,
            )
            .sign(self._key, SHA256())
        )

    def issue(self, folder: Path, node: str) -> dict[str, str]:
        """Issue a certificate with a node's id; return the paths of authority, certificate and key
        as PEM files.
        """
        folder.mkdir(parents=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(node), x509.IPAddress(ip_address("127.0.0.1"))]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        certificate = (
            self._builder(subject, key)
            .add_extension(
                x509.SubjectAlternativeName(names),
                critical=False,
            )
            .sign(self._key, SHA256())
        )
        contents = (
            self._certificate.public_bytes(Encoding.PEM),
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(
                Encoding.PEM,
                PrivateFormat.PKCS8,
                NoEncryption(),
            ),
        )
        paths = {}
        for name, content in zip(TLS, contents, strict=True):
            path = folder / f"{name}.pem"
            path.touch(0o600)
            path.write_bytes(content)
            paths[name] = str(path)
        return paths

    def _builder(
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


def become_partners(
    homes: Sequence[Path],
    addresses: Sequence[str],
) -> list[str]:
    """Let each of two nodes invite the other and accept; return the words that each side sees.

    Raises `subprocess.CalledProcessError`.
    """
    invitations = []
    for home, address in zip(homes, addresses, strict=True):
        invitations.append(_start(home, "invite", "--address", address))
    for home, process in zip(homes, invitations, strict=True):
        (home / "invitation.json").write_text(_output(process))
    acceptances = []
    for home, address, partner in zip(homes, addresses, reversed(homes), strict=True):
        acceptances.append(_accept(home, address, partner / "invitation.json"))
    return [str(json.loads(_output(process))["words"]) for process in acceptances]


def _accept(
    home: Path,
    address: str,
    invitation: Path,
) -> subprocess.Popen[str]:
    """Start the command by which a node accepts an invitation."""
    words = ["accept", str(invitation), "--address", address, "--yes", "--json"]
    for name in TLS:
        words += [f"--{name}", str(home / "tls" / f"{name}.pem")]
    return _start(home, *words)


def _start(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command of the group ``partner`` for a node."""
    command = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "--lang",
        language_in_use(),
        "partner",
        *words,
    ]
    command += ["--config", str(home / "node.yml")]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _output(process: subprocess.Popen[str]) -> str:
    """Wait for a command and return its output. Raises `subprocess.CalledProcessError`."""
    output, errors = process.communicate()
    if process.returncode != 0:
        raise subprocess.CalledProcessError(
            process.returncode,
            process.args,
            output,
            errors,
        )
    return output
