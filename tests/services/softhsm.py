"""PKCS#11 tokens of SoftHSM, each in a folder of its own."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pkcs11
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from gateway.identity.keys import KEY_GENERATORS, KeyPair
from tests.services.signing import public

MODULE = "/usr/lib/softhsm/libsofthsm2.so"  # of Debian's package softhsm2
PIN = "8264"
LABEL = "bank"  # of the token
KEY = "statements"  # label of the private key


class Token:
    """A token that holds one private key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pin_file = folder / "pin"

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return the section ``identity`` of a node that signs with the token's key."""
        token = {
            "module": MODULE,
            "token": LABEL,
            "key": KEY,
            "pin_file": str(self.pin_file),
        }
        return {
            "statements_key": {
                "public_key": str(self.folder / "public.pem"),
                "pkcs11": token | changes,
            }
        }


@contextmanager
def softhsm(folder: Path, pair: KeyPair) -> Iterator[Token]:
    """Give a token with a private key; this process sees no other token meanwhile."""
    tokens = folder / "tokens"
    tokens.mkdir(parents=True)
    config = folder / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {tokens}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(config))
        util("--init-token", "--free", "--label", LABEL, "--pin", PIN, "--so-pin", "12345678")
        import_key(folder, pair)
        public(pair.private, folder, "public.pem")
        token = Token(folder)
        token.pin_file.write_text(f"{PIN}\n")
        token.pin_file.chmod(0o600)
        try:
            yield token
        finally:
            pkcs11.lib(MODULE).finalize()  # the next use reads the configuration again


def import_key(folder: Path, pair: KeyPair) -> None:
    """Move a private key into the token; its file is deleted."""
    file = folder / "private.pem"
    content = pair.private.private_bytes(
        Encoding.PEM,
        PrivateFormat.PKCS8,
        NoEncryption(),
    )
    file.write_bytes(content)
    util(
        "--import",
        str(file),
        "--token",
        LABEL,
        "--label",
        KEY,
        "--id",
        "01",
        "--pin",
        PIN,
    )
    file.unlink()


def util(*arguments: str) -> None:
    """Run SoftHSM's tool."""
    subprocess.run(
        ["softhsm2-util", *arguments],
        check=True,
        capture_output=True,
    )


def new_pair(algorithm: str = "ecdsa-p256-sha256") -> KeyPair:
    """Return a new key pair."""
    return KeyPair(KEY_GENERATORS[algorithm]())
