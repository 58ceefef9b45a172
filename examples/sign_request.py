"""Signs and checks what goes between nodes as docs/signing.md says, by Ed25519, with nothing of the gateway.

python sign_request.py sign KEY.pem POST /v1/interconn/schedule/task/poll SOURCE TARGET <body.json
python sign_request.py check signing-vectors.json
"""

import base64
import hashlib
import json
import re
import sys
import time
import uuid
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_private_key

NAMES = '"@method" "@path" "@query" "content-digest" "x-source-node-id" "x-target-node-id"'
SPKI = bytes.fromhex("302a300506032b6570032100")  # of an Ed25519 key, before its 32 bytes


def digest(body):
    """Return the value of content-digest."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def signature_base(params, values):
    """Return the bytes that are signed."""
    lines = [
        f"{name}: {value}"
        for name, value in zip(params[1:].partition(")")[0].split(), values, strict=True)
    ]
    return "\n".join([*lines, f'"@signature-params": {params}']).encode("latin-1")


def sign(
    key,
    values,
    nonce,
    created,
):
    """Return the value of x-auth-sign."""
    key_id = "sha256:" + hashlib.sha256(SPKI + key.public_key().public_bytes_raw()).hexdigest()
    params = f'({NAMES});created={created};nonce="{nonce}";keyid="{key_id}";alg="ed25519"'
    return f"input={params}, signature=:{base64.b64encode(key.sign(signature_base(params, values))).decode()}:"


def holds(
    key,
    values,
    signed,
):
    """Tell whether x-auth-sign fits. A node also checks key id, time and nonce, and that it is the target."""
    params, signature = re.fullmatch(r"input=(.+), signature=:(.+):", signed).groups()
    try:
        key.verify(base64.b64decode(signature), signature_base(params, values))
    except InvalidSignature:
        return False
    return True


if sys.argv[1] == "sign":
    file, method, url, source, target = sys.argv[2:]
    path, _, query = url.partition("?")
    private, hashed = (
        load_pem_private_key(Path(file).read_bytes(), None),
        digest(sys.stdin.buffer.read()),
    )
    signed = sign(
        private, (method, path, f"?{query}", hashed, source, target), uuid.uuid4(), int(time.time())
    )
    print(f"x-source-node-id: {source}\nx-target-node-id: {target}")
    print(f"content-digest: {hashed}\nx-auth-sign: {signed}")
else:
    vectors = json.loads(Path(sys.argv[2]).read_bytes())
    public = load_der_public_key(base64.b64decode(vectors["key"]["public_key"]))
    for one in vectors["requests"]:
        ends = (digest(one["body"].encode()), one["source"], one["target"])
        values = (one["method"], one["path"], "?" + one["query"], *ends)
        assert holds(public, values, one["x_auth_sign"])
        assert not holds(public, ("PUT", *values[1:]), one["x_auth_sign"])
    for one in vectors["answers"]:
        to, own = vectors["requests"][one["to"]], (one["status"], digest(one["body"].encode()))
        asked = (to["method"], to["path"], "?" + to["query"], to["source"], to["target"])
        assert (
            holds(public, (*own, *asked), one["x_auth_sign"]) and to["nonce"] in one["x_auth_sign"]
        )
    print("the requests and the answer hold")
