"""The node's own sealing key pair, to which partners seal channel messages (docs/sealing.md).

Its file is in the folder of the node's signing key, so that all gateways of a node share both.
"""

import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.identity.keys import KeyPair
from gateway.identity.sealing_suites import SealingPrivateKey
from route_table import sm2
from route_table.certificates import encode_key, key_pin

log = structlog.get_logger(__name__)


class SealingPair:
    """A private sealing key and the forms of its public key."""

    def __init__(self, private: SealingPrivateKey) -> None:
        self.private = private

    @cached_property
    def id(self) -> str:
        """``sha256:`` and the hexadecimal digest of the public key (SubjectPublicKeyInfo)."""
        return key_pin(self.private.public_key())

    @cached_property
    def public(self) -> str:
        """The public key in the form of routes: base64 of its SubjectPublicKeyInfo."""
        return encode_key(self.private.public_key())

    @property
    def pem(self) -> bytes:
        """The private key as the file has it: PKCS #8 in PEM form, without a password."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class SealingKeyFile:
    """The file of the node's sealing key pair."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "identity" / "sealing.pem"

    def read(self) -> SealingPair | None:
        """Return the pair; None if there is no file.

        Raises `Invalid` for a file that cannot be used.
        """
        try:
            return SealingPair(_load(self.path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            rule = (
                f"cannot be read ({error.strerror}): make the user that runs the gateway its "
                "owner (chown)"
            )
            raise _unusable(self.path, rule) from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            rule = "must be a private key for X25519 or SM2 in PEM form without a password"
            raise _unusable(self.path, rule) from error

    def ensure(self, signing: KeyPair | None = None) -> SealingPair | None:
        """Return the pair; make it first if there is none: for SM2 if ``signing`` is for SM2.

        None if the folder cannot be written, as where an orchestrator mounts it: then this node
        offers no sealing key. Raises `Invalid` for a file that cannot be used.
        """
        pair = self.read()
        if pair is not None:
            return pair
        try:
            self._create(SealingPair(_generate(signing)))
        except OSError as error:
            log.warning("no sealing key made", file=str(self.path), cause=error.strerror)
        return self.read()

    def _create(self, pair: SealingPair) -> None:
        """Write a pair to the file unless another process has written one; raise `OSError`."""
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Gateways in containers that share the folder may have the same process id.
        descriptor, part = tempfile.mkstemp(prefix="sealing.", suffix=".part", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(pair.pem)
                _give_to_owner(out.fileno(), folder.parent)
            # Not a rename, which would replace the pair that another gateway has just written.
            os.link(part, self.path)
        except FileExistsError:
            pass
        finally:
            os.unlink(part)


def _give_to_owner(descriptor: int, state_dir: Path) -> None:
    """Give a file made by root to the owner of the state folder, who runs the gateway."""
    if os.geteuid() == 0:
        owner = state_dir.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _load(pem: bytes) -> SealingPrivateKey:
    """Return the private key of a PEM text. Raises ValueError for another kind of key."""
    try:
        key: Any = load_pem_private_key(pem, None)
    except UnsupportedAlgorithm:  # `cryptography` has no SM2
        return sm2.PrivateKey.from_pem(pem)
    if not isinstance(key, X25519PrivateKey):
        raise ValueError("is not a sealing key")
    return key


def _generate(signing: KeyPair | None) -> SealingPrivateKey:
    """Return a new private key of the kind that suits the node's signing key."""
    if signing is not None and isinstance(signing.private, sm2.PrivateKey):
        return sm2.PrivateKey.generate()
    return X25519PrivateKey.generate()


def _unusable(file: Path, rule: str) -> Invalid:
    """Return the error of a key file that cannot be used."""
    return Invalid(
        [Problem(str(file), rule)],
        reason="IDENTITY_UNUSABLE",
    )
