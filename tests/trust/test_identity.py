"""The node's own key pairs: made by `init`, closed to others, rotated with both keys known."""

import _ssl
import _struct
import json
import os
import stat
from base64 import b64encode
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_public_key,
)
from structlog.testing import capture_logs

from gateway.errors import Invalid
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring, is_valid_signature
from gateway.language.catalogue import translate
from route_table import sm2
from route_table.certificates import key_pin, public_key
from tests.cli import call

# ---------------------------------------------------------------- signatures and keys


@pytest.mark.parametrize("algorithm", KEY_GENERATORS)
def test_a_signature_is_valid_for_its_key_and_content_only(algorithm):
    pair = KeyPair(KEY_GENERATORS[algorithm]())
    other_pair = KeyPair(KEY_GENERATORS[algorithm]())
    key = public_key(pair.public)
    signature = pair.sign(b"this")

    assert pair.algorithm == algorithm
    assert key_pin(key) == pair.id
    assert is_valid_signature(key, signature, b"this")
    assert not is_valid_signature(key, signature, b"that")
    assert not is_valid_signature(public_key(other_pair.public), signature, b"this")
    assert not is_valid_signature(key, signature[:-1], b"this")


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 1024),
        ec.generate_private_key(ec.SECP384R1()),
    ],
    ids=["a weak key", "a key of another kind"],
)
def test_an_unsupported_key_signs_nothing(tmp_path, key):
    ring = Keyring(tmp_path)
    ring.make("ed25519")
    pem = key.private_bytes(
        Encoding.PEM,
        PrivateFormat.PKCS8,
        NoEncryption(),
    )
    ring.files["signing"].write_bytes(pem)

    with pytest.raises(Invalid, match="must be a private key"):
        _ = ring.signing


SM2_KEY = KEY_GENERATORS["sm2"]().public_key().public_bytes()


@pytest.mark.parametrize(
    "wrong",
    [
        SM2_KEY[:-1] + bytes([SM2_KEY[-1] ^ 1]),
        SM2_KEY[:-1],
        SM2_KEY + b"\0",
        b"",
    ],
    ids=["not on the curve", "too short", "too long", "empty"],
)
def test_a_key_that_is_not_on_the_curve_is_refused(wrong):
    with pytest.raises(ValueError):
        public_key(b64encode(wrong).decode())


@pytest.fixture
def fresh_library():
    """Have the SM2 code look for OpenSSL again, before the test and after it."""
    sm2._library.cache_clear()
    yield
    sm2._library.cache_clear()


@pytest.mark.usefixtures("fresh_library")
def test_a_machine_without_sm2_names_the_requirement(tmp_path, monkeypatch):
    message = "SM2 needs a Python that is linked to OpenSSL 3 with SM2, not to OpenSSL"
    Keyring(tmp_path).make("sm2")
    sm2._library.cache_clear()
    monkeypatch.setattr(_ssl, "__file__", _struct.__file__)  # is not linked to OpenSSL

    with pytest.raises(Invalid, match=message):
        Keyring(tmp_path).make("sm2")
    with pytest.raises(Invalid, match=message):
        _ = Keyring(tmp_path).signing


def test_an_sm2_key_signs(tmp_path):
    ring = Keyring(tmp_path)
    ring.make("sm2")
    assert ring.signing.algorithm == "sm2"


# ---------------------------------------------------------------- files of keys


def test_an_unreadable_new_key_leaves_the_previous_one_in_use(tmp_path):
    ring = Keyring(tmp_path)
    old_key = ring.make("ed25519")
    new_key = ring.make("ed25519")
    file = ring.files["signing"]
    assert ring.signing is not None
    file.unlink()
    file.mkdir()  # even root cannot read a folder as a file

    with capture_logs() as logs:
        assert ring.signing.id == old_key.id
        assert ring.signing.id == old_key.id

    [entry] = logs
    assert f"{file}: cannot be read" in entry["cause"]
    with pytest.raises(Invalid, match="make the user that runs the gateway its owner") as error:
        _ = Keyring(tmp_path).signing
    assert error.value.reason == "IDENTITY_UNUSABLE"
    file.rmdir()
    assert ring.switch()
    assert ring.signing.id == new_key.id


@pytest.fixture
def owners(monkeypatch):
    """Run as root; give a list of (inode, (user, group)) of files that got a new owner."""
    owners = []

    def record_owner(descriptor, *owner):
        owners.append((os.fstat(descriptor).st_ino, owner))

    monkeypatch.setattr(os, "geteuid", Mock(return_value=0))
    monkeypatch.setattr(os, "fchown", record_owner)
    return owners


def inode(path):
    return path.stat().st_ino


def test_files_that_root_makes_belong_to_the_owner_of_the_state_folder(tmp_path, owners):
    owner = (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    ring = Keyring(tmp_path)

    ring.make("ed25519")

    assert owners == [
        (inode(ring.folder), owner),
        (inode(ring.files["signing"]), owner),
    ]


def test_a_key_that_root_puts_next_gets_the_owner_of_the_state_folder(tmp_path, owners):
    owner = (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    ring = Keyring(tmp_path)
    ring.make("ed25519")
    owners.clear()
    ring.files["next"].write_bytes(ring.files["signing"].read_bytes())
    next_file = inode(ring.files["next"])

    assert ring.switch()

    assert owners == [(next_file, owner)]


def test_a_hard_link_to_a_file_outside_keeps_its_owner(tmp_path, owners):
    """Attack: the owner of the state folder lets root give away another user's file."""
    ring = Keyring(tmp_path)
    ring.make("ed25519")
    owners.clear()
    outside = tmp_path / "outside"
    outside.touch()
    ring.files["next"].hardlink_to(outside)

    assert ring.switch()

    assert owners == []


# ---------------------------------------------------------------- commands


@pytest.fixture
def config(tmp_path):
    """Give the configuration of a new node, which has a key."""
    file = tmp_path / "node.yml"
    done = call(
        "init",
        "--node",
        "A1",
        "--engine",
        "process",
        "-o",
        str(file),
    )
    assert done.exit_code == 0
    return file


def keys_by(config, command):
    """Return the keys that a command of `identity` lists."""
    done = call(
        "identity",
        command,
        "--config",
        str(config),
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["keys"]


def rotate(config, *options):
    return call("identity", "rotate", *options, "--config", str(config))


def ring_of(config):
    return Keyring(config.parent / "var")


def test_init_makes_a_key_that_only_its_user_may_read(config):
    [key] = keys_by(config, "show")
    assert key["use"] == "signing"
    assert key["algorithm"] == "ed25519"
    ring = ring_of(config)
    assert stat.S_IMODE(ring.files["signing"].stat().st_mode) == 0o600
    assert stat.S_IMODE(ring.folder.stat().st_mode) == 0o700


def test_init_again_leaves_the_key_as_it_is(config):
    [key] = keys_by(config, "show")

    again = call(
        "init",
        "--node",
        "A1",
        "--engine",
        "process",
        "-o",
        str(config),
        "--force",
    )

    assert key["id"] in again.stdout
    assert keys_by(config, "show") == [key]


def test_a_rotation_cannot_be_finished_before_it_began(config):
    assert rotate(config, "--finish").exit_code == 1


def test_a_rotation_exports_both_keys_and_the_old_one_signs_until_its_end(config):
    [old_key] = keys_by(config, "show")

    lines = rotate(config, "--algorithm", "ecdsa-p256-sha256").stdout.splitlines()

    assert [key["use"] for key in keys_by(config, "show")] == ["signing", "next"]
    assert lines[1:] == [
        "next: have partners add what bfia-gateway identity export prints to their routes",
        "then: bfia-gateway identity rotate --finish",
    ]
    assert translate(lines[1], "zh").startswith("下一步：请合作方将")
    assert ring_of(config).signing.id == old_key["id"]
    _, new_key = keys_by(config, "export")
    assert exported_pins(config) == [old_key["id"], new_key["id"]]


def exported_pins(config):
    """Return the fingerprints of the keys that `identity export` prints in PEM."""
    printed = call("identity", "export", "--config", str(config)).stdout
    end = "-----END PUBLIC KEY-----"
    pins = []
    for text in printed.split(end)[:-1]:
        pem = text.strip() + "\n" + end
        pins.append(key_pin(load_pem_public_key(pem.encode())))
    return pins


def test_at_the_end_of_a_rotation_only_the_new_key_remains(config):
    rotate(config, "--algorithm", "ecdsa-p256-sha256")
    _, new_key = keys_by(config, "export")

    lines = rotate(config, "--finish").stdout.splitlines()

    assert lines == [
        f"{new_key['id']} signs",
        "next: have partners remove the old key from their routes",
    ]
    [key] = keys_by(config, "show")
    assert key == new_key | {"use": "signing"}
    ring = ring_of(config)
    assert ring.signing.id == new_key["id"]
    names = {file.name for file in ring.folder.iterdir()}
    assert names == {"signing.pem", "sealing.pem"}
