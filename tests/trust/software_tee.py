"""A trusted execution environment in software: makes reports, and opens inputs for its key."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

MEASUREMENT = "ab" * 32
_SIGNED_PREFIX = b"bfia-gateway software report\n"


def public_pem(key: Any) -> str:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


def hash_of(key: Any) -> str:
    """Return the SHA-256 of a key's public half in DER form."""
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256(der).hexdigest()


def unified(platform: str, body: Any) -> dict[str, Any]:
    """Wrap a platform's report in the standard's form."""
    return {
        "str_report_version": "1.0",
        "str_report_type": "Passport",
        "str_tee_platform": platform,
        "json_report": json.dumps(body),
    }


@dataclass(frozen=True)
class SoftwareTee:
    """Signs reports with a key that nodes know."""

    signing: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    channel: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)

    @property
    def channel_key(self) -> str:
        """The public key to which reports are bound."""
        return public_pem(self.channel)

    def write_key(self, file: Path) -> Path:
        """Write the public key for the node's settings."""
        file.write_text(public_pem(self.signing))
        return file

    def report(
        self,
        binding: str,
        now: float,
        *,
        channel: X25519PrivateKey | None = None,
        signing: Ed25519PrivateKey | None = None,
        **attributes: Any,
    ) -> dict[str, Any]:
        """Return a report for a run's binding; the arguments by name replace parts of it."""
        values = {
            "str_tee_platform": "Software",
            "hex_ta_measurement": MEASUREMENT,
            "hex_user_data": binding + hash_of(channel or self.channel),
            "bool_debug_disabled": "true",
            "int64_time": int(now),
        }
        text = json.dumps(values | attributes)
        signature = (signing or self.signing).sign(_SIGNED_PREFIX + text.encode())
        body = {
            "json_attributes": text,
            "hex_key_id": hash_of(self.signing),
            "b64_signature": base64.b64encode(signature).decode(),
        }
        return unified("Software", body)

    def open_input(self, content: bytes) -> bytes:
        """Decrypt a file that the gateway has encrypted for the channel key."""
        public = content[:32]
        salt = public + self.channel.public_key().public_bytes_raw()
        secret = self.channel.exchange(X25519PublicKey.from_public_bytes(public))
        hkdf = HKDF(SHA256(), 32, salt=salt, info=b"bfia-gateway tee input 1")
        cipher = ChaCha20Poly1305(hkdf.derive(secret))
        plain = b""
        rest = content[32:]
        number = 0
        is_last = False
        while not is_last:
            length = int.from_bytes(rest[:4], "big")
            frame = rest[4 : 4 + length]
            rest = rest[4 + length :]
            is_last = not rest
            nonce = bytes([is_last]) + bytes(3) + number.to_bytes(8, "big")
            plain += cipher.decrypt(nonce, frame, None)
            number += 1
        return plain


def policy(**changes: Any) -> Mapping[str, Any]:
    """Return a policy of a node's settings for software reports."""
    return {
        "platform": "Software",
        "measurements": [MEASUREMENT],
        **changes,
    }
