"""The key pairs with which a node signs its requests.

Keys are of Ed25519, ECDSA on P-256, RSA or SM2. A pair's id is the digest of its public key.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, cast

import structlog
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from route_table import sm2
from route_table.certificates import PublicKey, encode_key, key_pin, signature_algorithm, stamp

log = structlog.get_logger(__name__)

PrivateKey = (
    ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | sm2.PrivateKey
)
_P256_SIZE = 32  # bytes of each of the two numbers of an ECDSA signature
_RSA_EXPONENT = 65537
_RSA_SIZE = 3072  # bits of a new key


def _generate_p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _generate_rsa() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(_RSA_EXPONENT, _RSA_SIZE)


# Algorithm, by its name in RFC 9421 if it has one -> the function that generates a key for it.
KEY_GENERATORS: Mapping[str, Callable[[], PrivateKey]] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "ecdsa-p256-sha256": _generate_p256,
    "rsa-v1_5-sha256": _generate_rsa,
    "sm2": sm2.PrivateKey.generate,
}


# ------------------------------------------------------------ signing


@dataclass(frozen=True)
class KeyPair:
    """A private key and the forms of its public key."""

    private: PrivateKey

    @cached_property
    def id(self) -> str:
        """``sha256:`` and the hexadecimal digest of the public key (SubjectPublicKeyInfo)."""
        return key_pin(self.private.public_key())

    @cached_property
    def algorithm(self) -> str:
        """One of `KEY_GENERATORS`."""
        return signature_algorithm(self.private.public_key())

    @cached_property
    def public(self) -> str:
        """The public key in the form of routes: base64 of its SubjectPublicKeyInfo."""
        return encode_key(self.private.public_key())

    def sign(self, content: bytes) -> bytes:
        """Return the signature in the form of RFC 9421.

        For ECDSA and SM2 this is the concatenation of the two numbers.
        """
        match self.private:
            case ed25519.Ed25519PrivateKey() | sm2.PrivateKey():
                return self.private.sign(content)
            case rsa.RSAPrivateKey():
                return self.private.sign(content, PKCS1v15(), SHA256())
        # The remaining kind is ECDSA, for which the library returns r and s in DER form.
        r, s = decode_dss_signature(self.private.sign(content, ec.ECDSA(SHA256())))
        return r.to_bytes(_P256_SIZE, "big") + s.to_bytes(_P256_SIZE, "big")


def is_valid_signature(
    key: PublicKey,
    signature: bytes,
    content: bytes,
) -> bool:
    """Return whether ``signature`` was made over ``content`` with the private key of ``key``."""
    try:
        match key:
            case ed25519.Ed25519PublicKey() | sm2.PublicKey():
                key.verify(signature, content)
            case rsa.RSAPublicKey():
                key.verify(signature, content, PKCS1v15(), SHA256())
            case ec.EllipticCurvePublicKey():
                key.verify(_p256_signature_der(signature), content, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _p256_signature_der(signature: bytes) -> bytes:
    """Return the DER form of two concatenated numbers.

    Raises `InvalidSignature` for another length.
    """
    if len(signature) != 2 * _P256_SIZE:
        raise InvalidSignature
    r = int.from_bytes(signature[:_P256_SIZE], "big")
    s = int.from_bytes(signature[_P256_SIZE:], "big")
    return encode_dss_signature(r, s)


# ------------------------------------------------------------ the node's keys


class Keyring:
    """The node's own key pairs in PEM files: the signing one and, during a rotation, the next one.

    A running gateway reads a changed file at its next request. While the changed file cannot be
    used, the previous pair signs. Thread-safe.

    For a node with contracts, the pair from before a rotation stays in a file of its own until all
    partners with a contract have acknowledged the new key (`forget_previous`).
    """

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "identity"
        # The file of each pair, by the pair's use.
        self.files = {
            "signing": self.folder / "signing.pem",
            "next": self.folder / "next.pem",
        }
        self.previous_file = self.folder / "previous.pem"
        self._lock = Lock()
        self._signing: KeyPair | None = None
        # Stamps of files, by which changes of the signing file are noticed.
        self._stamp: tuple[int, int] | None = None  # of the file that ``_signing`` was read from
        self._logged: tuple[int, int] | None = None  # of the last unusable file that was logged

    @property
    def signing(self) -> KeyPair | None:
        """The pair that signs; None if this node has no such pair yet.

        Raises `Invalid` if the file cannot be used and no earlier pair was read.
        """
        current = stamp(str(self.files["signing"]))
        with self._lock:
            if current != self._stamp:
                self._reload_signing(current)
            return self._signing

    def _reload_signing(self, current: tuple[int, int]) -> None:
        """Read the signing pair from a changed file; keep the previous pair if that fails.

        ``current`` is the stamp of the changed file. Raises `Invalid` if there is no previous pair.
        """
        try:
            self._signing = self._read("signing")
        except Invalid as error:
            if self._signing is None:
                raise
            # The stamp is not stored, so that the next request tries again: the remedy may be a
            # change of the file's owner, which does not change the stamp.
            if current != self._logged:
                self._logged = current
                log.warning("changed key not usable, the one before signs", cause=error.message)
            return
        self._stamp = current

    @property
    def pairs(self) -> dict[str, KeyPair]:
        """The pairs that partners have to know, by their use. Raises `Invalid`."""
        pairs = {}
        for use in self.files:
            pair = self._read(use)
            if pair is not None:
                pairs[use] = pair
        return pairs

    def make(self, algorithm: str) -> KeyPair:
        """Generate and store a pair: the signing one if there is none yet, else the next one.

        An existing next pair is replaced. Files made by root are given to the owner of the state
        folder, so that the gateway can read them. Raises `Invalid` for SM2 on a machine whose
        libraries do not have it.
        """
        use = "next" if self.files["signing"].exists() else "signing"
        try:
            pair = KeyPair(KEY_GENERATORS[algorithm]())
        except sm2.Sm2Unavailable as error:
            raise Invalid([Problem("algorithm", str(error), algorithm)]) from error
        # One after the other, as ``mode`` does not apply to the parents that `mkdir` creates.
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._give_to_owner(self.folder)
        self._store(self.files[use], pair)
        return pair

    def _store(self, file: Path, pair: KeyPair) -> None:
        """Write a pair to a file of the folder; an existing one is replaced."""
        part = file.with_suffix(".part")
        part.unlink(missing_ok=True)
        _write_private_key(part, pair)
        self._give_to_owner(part)
        part.replace(file)

    @property
    def previous(self) -> KeyPair | None:
        """The pair from before the last rotation; None if it was forgotten. Raises `Invalid`."""
        return _read_pair(self.previous_file)

    def forget_previous(self) -> None:
        """Delete the pair from before the last rotation, if it is still there."""
        self.previous_file.unlink(missing_ok=True)

    def switch(self, *, keep_previous: bool = False) -> bool:
        """Replace the signing pair with the next one; return False if no rotation is under way.

        ``keep_previous``: store the replaced pair as `previous`. A pair that cannot be read is not
        kept.
        """
        if not self.files["next"].exists():
            return False
        if keep_previous:
            self._keep_previous()
        try:
            self._give_to_owner(self.files["next"])
            self.files["next"].replace(self.files["signing"])
        except FileNotFoundError:  # another process has finished the rotation
            return False
        return True

    def _keep_previous(self) -> None:
        """Store the signing pair as the previous one, if it can be read."""
        with suppress(Invalid):
            pair = self._read("signing")
            if pair is not None:
                self._store(self.previous_file, pair)

    def _give_to_owner(self, path: Path) -> None:
        """Give a file or folder to the owner of the state folder; only root does anything.

        A hard link is left alone, and a symbolic link raises `OSError`: the owner of the folder
        could have made a link to another user's file.
        """
        if os.geteuid() != 0:
            return
        owner = self.folder.parent.stat()
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            # A folder always has several links.
            is_hard_link = path != self.folder and os.fstat(descriptor).st_nlink != 1
            if not is_hard_link:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        finally:
            os.close(descriptor)

    def _read(self, use: str) -> KeyPair | None:
        """Return the pair for a use; None without one. Raises `Invalid` for an unusable file."""
        return _read_pair(self.files[use])


def _read_pair(file: Path) -> KeyPair | None:
    """Return a pair; None if its file does not exist. Raises `Invalid` for an unusable file."""
    try:
        key = _load_private_key(file.read_bytes())
        signature_algorithm(key.public_key())  # raises `ValueError` for another kind of key
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        rule = (
            f"cannot be read ({error.strerror}): make the user that runs the gateway its "
            "owner (chown)"
        )
        raise _unusable(file, rule) from error
    except sm2.Sm2Unavailable as error:
        raise _unusable(file, str(error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        algorithms = ", ".join(KEY_GENERATORS)
        rule = f"must be a private key in PEM form without a password, for {algorithms}"
        raise _unusable(file, rule) from error
    return KeyPair(cast(PrivateKey, key))


def _unusable(file: Path, rule: str) -> Invalid:
    """Return the error of a key file that cannot be used."""
    return Invalid(
        [Problem(str(file), rule)],
        reason="IDENTITY_UNUSABLE",
    )


def _write_private_key(file: Path, pair: KeyPair) -> None:
    """Write a private key without a password to a new file that only its owner can read."""
    content = pair.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)


def _load_private_key(pem: bytes) -> Any:
    """Return the private key of a PEM text.

    The key is read as one of SM2 if the cryptography library does not support its algorithm.
    """
    try:
        return load_pem_private_key(pem, None)
    except UnsupportedAlgorithm:
        return sm2.PrivateKey.from_pem(pem)
