"""Submits an attestation report, and fetches the inputs that the platform then gives.

The report is one in software: a key that the platform knows has signed it. It shows the flow and
proves no hardware. In a TEE, the processor would sign the same user data.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey
from nacl.utils import random

from refvendor.contract import StorageFailed, VendorError
from refvendor.env import Address

PLATFORM = "Software"
STARTING = "TEE_RUN_STARTING"  # the platform has not recorded the start of this run yet
FIRST_PAUSE = 0.2  # seconds before the next try; the pause doubles each time
MOST_TRIES = 8
TIMEOUT = 60.0  # seconds
KEY_SIZE = 32
LENGTH_SIZE = 4
SIGNED_PREFIX = b"bfia-gateway software report\n"
INPUT_INFO = b"bfia-gateway tee input 1"
# What precedes the 32 bytes of a public key in its DER form.
X25519_DER = bytes.fromhex("302a300506032b656e032100")
ED25519_DER = bytes.fromhex("302a300506032b6570032100")


class NotAttested(VendorError):
    """The platform did not accept the report."""


@dataclass(frozen=True)
class Attested:
    """The inputs that the platform gave, in a folder of this run."""

    folder: Path
    inputs: Mapping[str, Address]


class ChannelKey:
    """The key pair of this run, for which the platform encrypts its inputs."""

    def __init__(self) -> None:
        self._private = random(KEY_SIZE)
        self._public = crypto_scalarmult_base(self._private)

    @property
    def der(self) -> bytes:
        """The public key in DER form."""
        return X25519_DER + self._public

    @property
    def pem(self) -> str:
        """The public key in PEM form."""
        text = base64.b64encode(self.der).decode()
        return f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n"

    def open(self, content: bytes) -> bytes:
        """Decrypt a file. Raises `StorageFailed` if it was changed or cut."""
        sender = content[:KEY_SIZE]
        try:
            secret = crypto_scalarmult(self._private, sender)
            key = _derive(secret, sender + self._public)
            return b"".join(_open_frames(key, content[KEY_SIZE:]))
        except (CryptoError, ValueError, TypeError) as error:
            raise StorageFailed("an input from the platform cannot be decrypted") from error


def _derive(secret: bytes, salt: bytes) -> bytes:
    """Return a key of 32 bytes by HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, INPUT_INFO + b"\1", "sha256")


def _open_frames(key: bytes, content: bytes) -> list[bytes]:
    """Return the decrypted frames of a file. Raises `CryptoError`."""
    frames: list[bytes] = []
    is_last = False
    while not is_last:
        length = int.from_bytes(content[:LENGTH_SIZE], "big")
        end = LENGTH_SIZE + length
        frame = content[LENGTH_SIZE:end]
        content = content[end:]
        is_last = not content
        nonce = bytes([is_last]) + bytes(3) + len(frames).to_bytes(8, "big")
        frames.append(crypto_aead_chacha20poly1305_ietf_decrypt(frame, None, nonce, key))
    return frames


def software_report(
    binding: str,
    key: ChannelKey,
    signing_key: SigningKey,
    measurement: str,
    now: float,
) -> dict[str, Any]:
    """Return a report that is bound to this run and its key."""
    attributes = json.dumps(
        {
            "str_tee_platform": PLATFORM,
            "hex_ta_measurement": measurement,
            "hex_user_data": binding + hashlib.sha256(key.der).hexdigest(),
            "bool_debug_disabled": "true",
            "int64_time": int(now),
        }
    )
    signature = signing_key.sign(SIGNED_PREFIX + attributes.encode()).signature
    signer = ED25519_DER + bytes(signing_key.verify_key)
    report = {
        "json_attributes": attributes,
        "hex_key_id": hashlib.sha256(signer).hexdigest(),
        "b64_signature": base64.b64encode(signature).decode(),
    }
    return {
        "str_report_version": "1.0",
        "str_report_type": "Passport",
        "str_tee_platform": PLATFORM,
        "json_report": json.dumps(report),
    }


def measurement_of(package: Path) -> str:
    """Return the SHA-256 over the code of a package, in place of a processor's measurement."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def fetch_inputs(
    url: str,
    binding: str,
    signing_key: SigningKey,
    folder: Path,
    sleep: Callable[[float], None] = time.sleep,
) -> Attested:
    """Submit a report, then write this run's inputs into a folder.

    Raises `NotAttested` if the report is refused.
    """
    key = ChannelKey()
    report = software_report(
        binding,
        key,
        signing_key,
        measurement_of(Path(__file__).parent),
        time.time(),
    )
    listed = _submit(url, {"report": report, "pem_public_key": key.pem}, sleep)
    inputs = {}
    for name, entry in listed.items():
        address = Address(entry["namespace"], entry["name"])
        inputs[name] = address
        target = folder / address.namespace / address.name
        target.mkdir(parents=True)
        for file in entry["files"]:
            content = _fetch(url, name, file)
            (target / file).write_bytes(key.open(content))
    return Attested(folder, inputs)


def _submit(
    url: str,
    body: Mapping[str, Any],
    sleep: Callable[[float], None],
) -> Mapping[str, Any]:
    """Return the inputs that the platform lists. Raises `NotAttested`."""
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    pause = FIRST_PAUSE
    for _ in range(MOST_TRIES):
        answer = json.loads(_read(request))
        if answer["code"] == 0:
            inputs: Mapping[str, Any] = answer["data"]["inputs"]
            return inputs
        if answer["data"].get("reason") != STARTING:
            raise NotAttested(f"the platform refused the report: {answer['msg']}")
        sleep(pause)
        pause *= 2
    raise NotAttested("the platform did not record the start of this run")


def _fetch(url: str, name: str, file: str) -> bytes:
    """Return an encrypted file of an input."""
    query = urlencode({"name": name, "file": file})
    return _read(urllib.request.Request(f"{url.replace('/report?', '/input?')}&{query}"))


def _read(request: urllib.request.Request) -> bytes:
    """Return the body of a response. Raises `NotAttested` if the platform cannot be reached."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as response:
            content: bytes = response.read()
            return content
    except (urllib.error.URLError, OSError) as error:
        raise NotAttested(f"the platform cannot be reached: {error}") from error
