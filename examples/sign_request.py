"""Signs and checks messages between nodes according to docs/signing.md, by Ed25519, without the
gateway's code.

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

# The signed parts of a request, in this order.
NAMES = '"@method" "@path" "@query" "content-digest" "x-source-node-id" "x-target-node-id"'
# The beginning of an Ed25519 public key in DER, before its 32 bytes.
DER_PREFIX = bytes.fromhex("302a300506032b6570032100")


def content_digest(body):
    """Return the value of content-digest."""
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return f"sha-256=:{digest}:"


def signature_base(parameters, values):
    """Return the bytes to sign. ``values``: of the parts that ``parameters`` names."""
    names = parameters[1:].partition(")")[0].split()
    lines = [f"{name}: {value}" for name, value in zip(names, values, strict=True)]
    lines.append(f'"@signature-params": {parameters}')
    return "\n".join(lines).encode("latin-1")


def sign(key, values, nonce, created):
    """Return the value of x-auth-sign. ``created``: seconds since 1970."""
    public_key = DER_PREFIX + key.public_key().public_bytes_raw()
    key_id = "sha256:" + hashlib.sha256(public_key).hexdigest()
    parameters = f'({NAMES});created={created};nonce="{nonce}";keyid="{key_id}";alg="ed25519"'
    signature = key.sign(signature_base(parameters, values))
    return f"input={parameters}, signature=:{base64.b64encode(signature).decode()}:"


def is_valid(key, values, auth_sign):
    """True if x-auth-sign fits.

    A node also checks key id, time and nonce, and that it is the target.
    """
    match = re.fullmatch(r"input=(.+), signature=:(.+):", auth_sign)
    parameters, signature = match.groups()
    try:
        key.verify(
            base64.b64decode(signature),
            signature_base(parameters, values),
        )
    except InvalidSignature:
        return False
    return True


def sign_request(key_file, method, url, source, target):
    """Print the headers for a request whose body is on standard input."""
    key = load_pem_private_key(Path(key_file).read_bytes(), None)
    digest = content_digest(sys.stdin.buffer.read())
    path, _, query = url.partition("?")
    values = (method, path, f"?{query}", digest, source, target)
    auth_sign = sign(
        key,
        values,
        uuid.uuid4(),
        int(time.time()),
    )
    print(f"x-source-node-id: {source}\nx-target-node-id: {target}")
    print(f"content-digest: {digest}\nx-auth-sign: {auth_sign}")


def check_vectors(file):
    """Check the signatures of a file of test vectors."""
    vectors = json.loads(Path(file).read_bytes())
    key = load_der_public_key(base64.b64decode(vectors["key"]["public_key"]))
    requests = vectors["requests"]
    for request in requests:
        check_request(key, request)
    for response in vectors["answers"]:
        check_response(key, response, requests[response["to"]])
    print("the requests and the answer hold")


def check_request(key, request):
    """Check that a request's signature is valid, and that it is not for another method."""
    method, *further = request_values(request)
    assert is_valid(key, (method, *further), request["x_auth_sign"])
    assert not is_valid(key, ("PUT", *further), request["x_auth_sign"])


def check_response(key, response, request):
    """Check that a response's signature is valid, and that it is for this request."""
    method, path, query, _, source, target = request_values(request)
    digest = content_digest(response["body"].encode())
    values = (response["status"], digest, method, path, query, source, target)
    assert is_valid(key, values, response["x_auth_sign"])
    assert request["nonce"] in response["x_auth_sign"]


def request_values(request):
    """Return the values of the signed parts of a request."""
    return (
        request["method"],
        request["path"],
        "?" + request["query"],
        content_digest(request["body"].encode()),
        request["source"],
        request["target"],
    )


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "sign":
        sign_request(*arguments)
    else:
        check_vectors(*arguments)
