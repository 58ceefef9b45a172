"""Key pairs that sign requests: Ed25519, ECDSA on P-256, RSA, SM2; named by the digest of the public key."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
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
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_P256 = 32
"""bytes of each of the two numbers of an ECDSA signature"""

MAKERS: Mapping[str, Callable[[], PrivateKey]] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "ecdsa-p256-sha256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "rsa-v1_5-sha256": lambda: rsa.generate_private_key(65537, 3072),
    "sm2": sm2.PrivateKey.generate,
}
"""algorithm, by its name in RFC 9421 if it has one -> what makes a key for it"""


@dataclass(frozen=True)
class KeyPair:
    """A private key with what others know of it."""

    private: PrivateKey

    @cached_property
    def id(self) -> str:
        """``sha256:`` and the hexadecimal digest of the public key (SubjectPublicKeyInfo)."""
        return key_pin(self.private.public_key())

    @cached_property
    def algorithm(self) -> str:
        """One of `MAKERS`."""
        return signature_algorithm(self.private.public_key())

    @cached_property
    def public(self) -> str:
        """The public key as routes hold it: base64 of its SubjectPublicKeyInfo."""
        return encode_key(self.private.public_key())

    def sign(self, content: bytes) -> bytes:
        """Return the signature in the form of RFC 9421: of ECDSA and SM2 both numbers, one after the other."""
        match self.private:
            case ed25519.Ed25519PrivateKey() | sm2.PrivateKey():
                return self.private.sign(content)
            case rsa.RSAPrivateKey():
                return self.private.sign(content, PKCS1v15(), SHA256())
        r, s = decode_dss_signature(self.private.sign(content, ec.ECDSA(SHA256())))
        return r.to_bytes(_P256, "big") + s.to_bytes(_P256, "big")


def verifies(
    key: PublicKey,
    signature: bytes,
    content: bytes,
) -> bool:
    """Tell whether a signature of content was made with the private key of a public one."""
    try:
        match key:
            case ed25519.Ed25519PublicKey() | sm2.PublicKey():
                key.verify(signature, content)
            case rsa.RSAPublicKey():
                key.verify(signature, content, PKCS1v15(), SHA256())
            case ec.EllipticCurvePublicKey():
                if len(signature) != 2 * _P256:
                    return False
                r, s = (
                    int.from_bytes(half, "big") for half in (signature[:_P256], signature[_P256:])
                )
                key.verify(encode_dss_signature(r, s), content, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def invitation_of(found: Mapping[str, Any], me: str) -> dict[str, Any]:
    """Return node, address and keys of another node's invitation. Raises `Invalid` where it is none."""
    theirs = {key: found.get(key) for key in ("node", "address", "keys")}
    node, url, keys = theirs.values()
    texts = [node, url, *keys] if isinstance(keys, list) and keys else [None]
    # text with spaces or line feeds could show other words in a prompt
    if node == me:
        raise Invalid(
            [
                Problem(
                    "invitation", "must be another node's; this is your own: send it to the partner"
                )
            ]
        )
    if any(not isinstance(text, str) or text.split() != [text] for text in texts):
        raise Invalid(
            [Problem("invitation", "must be another node's, with node, address and keys")]
        )
    return theirs


def six_words(*invitations: Mapping[str, Any]) -> str:
    """Return six words that stand for invitations (node, address, keys), for people at each node to compare.

    A word stands for 16 bits. To find another invitation with the same words takes 2^48 tries of a slow hash.
    """
    text = json.dumps(
        sorted([one["node"], one["address"], sorted(one["keys"])] for one in invitations)
    )
    found = hashlib.scrypt(
        text.encode(),
        salt=b"bfia-gateway partner",
        n=2**15,
        r=8,
        p=1,
        maxmem=2**26,
        dklen=12,
    )
    return " ".join(
        _word(int.from_bytes(found[at : at + 2], "big")) for at in range(0, len(found), 2)
    )


def _word(n: int) -> str:
    """Return 16 bits as three consonants and two vowels."""
    first, middle, last = (_CONSONANTS[n >> shift & 15] for shift in (12, 6, 0))
    return first + _VOWELS[n >> 10 & 3] + middle + _VOWELS[n >> 4 & 3] + last


class Keyring:
    """The node's own key pairs in PEM files: the one that signs, and during a rotation the next one.

    A running gateway notices a change of the files at its next request; while a changed one cannot be used, the
    pair read before it signs. Safe to use from several threads.
    """

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "identity"
        self.files = {"signing": self.folder / "signing.pem", "next": self.folder / "next.pem"}
        self._lock = Lock()
        self._stamp: tuple[int, int] | None = None
        self._refused: tuple[int, int] | None = None
        """of the file that the log has named as unusable"""
        self._signing: KeyPair | None = None

    @property
    def signing(self) -> KeyPair | None:
        """The pair that signs; None: this node has none yet. Raises `Invalid` where the first file is unusable."""
        current = stamp(str(self.files["signing"]))
        with self._lock:
            if current != self._stamp:
                try:
                    self._signing, self._stamp = self._read("signing"), current
                except Invalid as error:
                    if self._signing is None:
                        raise
                    if (
                        current != self._refused
                    ):  # read again at each request: a change of the owner has no stamp
                        self._refused = current
                        log.warning(
                            "changed key not usable, the one before signs", cause=error.message
                        )
            return self._signing

    @property
    def pairs(self) -> dict[str, KeyPair]:
        """The pairs that partners have to know, by their use."""
        found = {use: self._read(use) for use in self.files}
        return {use: pair for use, pair in found.items() if pair is not None}

    def make(self, algorithm: str) -> KeyPair:
        """Make a pair: the one that signs if there is none, else the next one, in the place of any other next.

        What root makes belongs to the owner of the state folder, for the gateway to read. Raises `Invalid` for SM2
        where this machine does not have it.
        """
        use = "next" if self.files["signing"].exists() else "signing"
        try:
            pair = KeyPair(MAKERS[algorithm]())
        except sm2.Sm2Unavailable as error:
            raise Invalid([Problem("algorithm", str(error), algorithm)]) from error
        content = pair.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(
                mode=0o700,
                parents=True,
                exist_ok=True,
            )
        part = self.folder / f"{use}.part"
        part.unlink(missing_ok=True)
        self._hand_over(self.folder)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
        self._hand_over(part)
        part.replace(self.files[use])
        return pair

    def switch(self) -> bool:
        """Sign with the next pair from now on, and delete the one before; False: no rotation is under way."""
        try:
            self._hand_over(self.files["next"])
            self.files["next"].replace(self.files["signing"])
        except FileNotFoundError:
            return False
        return True

    def _hand_over(self, path: Path) -> None:
        """Give what root made to the owner of the state folder; not a link, which that owner may have put."""
        if os.geteuid() == 0:
            owner, fd = self.folder.parent.stat(), os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if path == self.folder or os.fstat(fd).st_nlink == 1:
                    os.fchown(fd, owner.st_uid, owner.st_gid)
            finally:
                os.close(fd)

    def _read(self, use: str) -> KeyPair | None:
        """Return a pair. Raises `Invalid` for a file that cannot be read, or holds none that can sign."""
        try:
            key = _loaded(self.files[use].read_bytes())
            signature_algorithm(key.public_key())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            rule = f"cannot be read ({error.strerror}): make the user that runs the gateway its owner (chown)"
            raise Invalid(
                [Problem(str(self.files[use]), rule)], reason="IDENTITY_UNUSABLE"
            ) from error
        except sm2.Sm2Unavailable as error:
            raise Invalid(
                [Problem(str(self.files[use]), str(error))], reason="IDENTITY_UNUSABLE"
            ) from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            rule = f"must be a private key in PEM form without a password, for {', '.join(MAKERS)}"
            raise Invalid(
                [Problem(str(self.files[use]), rule)], reason="IDENTITY_UNUSABLE"
            ) from error
        return KeyPair(cast(PrivateKey, key))


def _loaded(pem: bytes) -> Any:
    try:
        return load_pem_private_key(pem, None)
    except UnsupportedAlgorithm:
        return sm2.PrivateKey.from_pem(pem)
