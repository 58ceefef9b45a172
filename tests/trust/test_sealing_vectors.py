"""The published vectors of seals, checked step by step and by this gateway."""

import json
from base64 import urlsafe_b64decode
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES, SM4
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.hashes import SHA256, SM3
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.identity.request_seals import CoveredHeaders, RequestSeal, read_number
from gateway.identity.sealing import SealedHeaders, open_sealed, read_position
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.identity.seals import Seals
from route_table import sm2
from route_table.certificates import encode_key, key_pin, public_key

PUBLISHED = json.loads(
    (Path(__file__).parents[2] / "docs/sealing-vectors.json").read_text(encoding="utf-8")
)
VECTORS = PUBLISHED["vectors"]
REQUESTS = PUBLISHED["requests"]
WITH_X25519 = [vector for vector in VECTORS if vector["suite"] == "x25519-aes256gcm"]
WITH_SM2 = [vector for vector in VECTORS if vector["suite"] == "sm2-sm4gcm"]


def decode(text):
    """Return the bytes of Base64 without padding."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def no_key():
    """Return no signing key: the vectors are only opened."""
    return


def name_of(vector):
    return vector["name"]


def seals_of(vector, home):
    """Return the seals of a vector's target, in the vector's hour."""
    file = SealingKeyFile(home)
    file.path.parent.mkdir()
    file.path.write_text(vector["sealing_private_key"])
    return Seals(
        vector["claims"]["target"],
        file.read(),
        signing=no_key,
        clock=partial(datetime.fromtimestamp, vector["hour"] * 3600, UTC),
    )


@pytest.mark.parametrize(
    "vector",
    WITH_X25519,
    ids=name_of,
)
def test_a_vector_follows_from_the_description(vector):
    claims, wrapped, signature = vector["x-ptp-seal-key"].split(".")
    private = load_pem_private_key(
        vector["sealing_private_key"].encode(),
        None,
    )
    signer = public_key(vector["signing_public_key"])

    signer.verify(
        decode(signature),
        b"bfia-gateway signed seal key v1\n" + f"{claims}.{wrapped}".encode(),
    )
    hpke = Suite(
        KEM.X25519,
        KDF.HKDF_SHA256,
        AEAD.AES_256_GCM,
    )
    content_key = hpke.decrypt(
        decode(wrapped), private, info=b"bfia-gateway seal key v1\n" + claims.encode()
    )

    assert encode_key(private.public_key()) == vector["sealing_public_key"]
    assert json.loads(decode(claims)) == vector["claims"]
    assert vector["claims"]["signer"] == key_pin(signer)
    assert vector["claims"]["recipient"] == key_pin(private.public_key())
    assert content_key.hex() == vector["content_key"]
    sequence, part = map(
        int,
        vector["x-ptp-seal"].split("/"),
    )
    assert vector["nonce"] == f"{sequence:016x}{part:08x}"
    content = AESGCM(content_key).decrypt(
        bytes.fromhex(vector["nonce"]),
        bytes.fromhex(vector["body"]),
        vector["associated_data"].encode(),
    )
    assert content.hex() == vector["content"]


@pytest.mark.parametrize(
    "vector",
    WITH_SM2,
    ids=name_of,
)
def test_a_vector_of_national_cryptography_follows_from_the_description(vector):
    claims, wrapped, signature = vector["x-ptp-seal-key"].split(".")
    private = sm2.PrivateKey.from_pem(vector["sealing_private_key"].encode())
    signer = public_key(vector["signing_public_key"])

    signer.verify(
        decode(signature),
        b"bfia-gateway signed seal key v1\n" + f"{claims}.{wrapped}".encode(),
    )
    content_key = private.decrypt(decode(wrapped))

    assert content_key.hex() == vector["content_key"]
    body = bytes.fromhex(vector["body"])
    nonce = bytes.fromhex(vector["nonce"])
    decryptor = Cipher(SM4(content_key), GCM(nonce, body[-16:])).decryptor()
    decryptor.authenticate_additional_data(vector["associated_data"].encode())
    content = decryptor.update(body[:-16]) + decryptor.finalize()
    assert content.hex() == vector["content"]


@pytest.mark.parametrize(
    "vector",
    VECTORS,
    ids=name_of,
)
def test_the_associated_data_of_a_vector_are_its_headers(vector):
    lines = ["bfia-gateway sealed message v1"]
    lines += [f"{name}: {value}" for name, value in vector["headers"].items()]
    lines += [f"{name}: {vector[name]}" for name in ("x-ptp-seal", "x-ptp-seal-key")]

    assert vector["associated_data"].split("\n") == lines


@pytest.mark.parametrize(
    "vector",
    VECTORS,
    ids=name_of,
)
def test_this_gateway_opens_a_vector(vector, tmp_path):
    headers = vector["headers"]
    seals = seals_of(vector, tmp_path)

    sealed_headers = SealedHeaders(
        session=headers["x-ptp-session-id"],
        source=headers["x-ptp-source-node-id"],
        target=headers["x-ptp-target-node-id"],
        topic=headers["x-ptp-topic"],
        message_id=headers["x-ptp-message-id"],
        part=headers["x-ptp-part"],
    )
    key = seals.received_key(
        vector["x-ptp-seal-key"],
        sealed_headers.source,
        sealed_headers.session,
        [vector["signing_public_key"]],
    )
    position = read_position(vector["x-ptp-seal"])
    body = bytes.fromhex(vector["body"])
    pieces = open_sealed(
        key,
        position,
        sealed_headers,
        [body[:5], body[5:12], body[12:]],
    )

    assert b"".join(pieces).hex() == vector["content"]


# ---------------------------------------------------------------- control requests


def decrypted(
    suite,
    key,
    nonce,
    body,
    associated_data,
):
    """Return the content of an encrypted body."""
    algorithm = AES(key)
    if suite == "sm2-sm4gcm":
        algorithm = SM4(key)
    decryptor = Cipher(algorithm, GCM(nonce, body[-16:])).decryptor()
    decryptor.authenticate_additional_data(associated_data.encode())
    return (decryptor.update(body[:-16]) + decryptor.finalize()).decode()


@pytest.mark.parametrize(
    "vector",
    REQUESTS,
    ids=name_of,
)
def test_a_request_of_the_vectors_follows_from_the_description(vector):
    content = decrypted(
        vector["suite"],
        bytes.fromhex(vector["content_key"]),
        bytes.fromhex(vector["nonce"]),
        bytes.fromhex(vector["body"]),
        vector["associated_data"],
    )

    assert content == vector["content"]
    assert vector["nonce"] == f"{int(vector['x-seal']):016x}00000000"
    lines = [f"{name}: {value}" for name, value in vector["headers"].items()]
    lines += [f"{name}: {vector[name]}" for name in ("x-seal", "x-seal-key")]
    assert vector["associated_data"] == "\n".join(["bfia-gateway sealed request v1", *lines])
    response_lines = ["bfia-gateway sealed response v1", "@status: 200", *lines]
    assert vector["response"]["associated_data"] == "\n".join(response_lines)


@pytest.mark.parametrize(
    "vector",
    REQUESTS,
    ids=name_of,
)
def test_a_response_of_the_vectors_follows_from_the_description(vector):
    response = vector["response"]
    content_key = bytes.fromhex(vector["content_key"])
    hash_function = SM3() if vector["suite"] == "sm2-sm4gcm" else SHA256()
    derivation = HKDF(
        hash_function,
        len(content_key),
        salt=bytes.fromhex(response["salt"]),
        info=b"bfia-gateway sealed response key v1",
    )
    body = bytes.fromhex(response["body"])

    response_key = derivation.derive(content_key)

    assert response_key.hex() == response["content_key"]
    assert body[:32].hex() == response["salt"]
    content = decrypted(
        vector["suite"],
        response_key,
        bytes(12),
        body[32:],
        response["associated_data"],
    )
    assert content == response["content"]


@pytest.mark.parametrize(
    "vector",
    REQUESTS,
    ids=name_of,
)
def test_this_gateway_opens_a_request_of_the_vectors(vector, tmp_path):
    headers = vector["headers"]
    response = vector["response"]
    key = seals_of(vector, tmp_path).received_key(
        vector["x-seal-key"],
        headers["x-source-node-id"],
        "control",
        [vector["signing_public_key"]],
    )
    covered = CoveredHeaders(
        method=headers["@method"],
        path=headers["@path"],
        query=headers["@query"].removeprefix("?"),
        source=headers["x-source-node-id"],
        target=headers["x-target-node-id"],
        nonce=headers["x-nonce"],
        timestamp=headers["x-timestamp"],
        permits=headers["x-mprac-token-set"],
    )
    seal = RequestSeal(
        key,
        read_number(vector["x-seal"]),
        covered,
    )

    assert seal.open(bytes.fromhex(vector["body"])).decode() == vector["content"]
    content = seal.open_response(
        response["status"],
        bytes.fromhex(response["body"]),
    )
    assert content.decode() == response["content"]
