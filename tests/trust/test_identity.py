"""The node's own key pairs: made by `init`, closed to others, rotated with both keys known."""

import _ssl
import _struct
import json
import os
import stat
from base64 import b64encode
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("algorithm", KEY_GENERATORS)
def test_a_signature_is_valid_for_its_key_and_content_only(algorithm: str):
    pair, other = KeyPair(KEY_GENERATORS[algorithm]()), KeyPair(KEY_GENERATORS[algorithm]())
    signature = pair.sign(b"this")
    assert pair.algorithm == algorithm and key_pin(public_key(pair.public)) == pair.id
    assert is_valid_signature(public_key(pair.public), signature, b"this")
    assert not is_valid_signature(public_key(pair.public), signature, b"that")
    assert not is_valid_signature(public_key(other.public), signature, b"this")
    assert not is_valid_signature(public_key(pair.public), signature[:-1], b"this")


@pytest.mark.parametrize(
    "key", [rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP384R1())]
)
def test_a_weak_key_or_one_of_another_kind_signs_nothing(tmp_path: Path, key: Any):
    ring = Keyring(tmp_path)
    ring.make("ed25519")
    ring.files["signing"].write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    with pytest.raises(Invalid, match="must be a private key"):
        _ = ring.signing


def test_a_changed_key_that_cannot_be_read_leaves_the_one_before_in_use(tmp_path: Path):
    ring = Keyring(tmp_path)
    old, new, file = ring.make("ed25519"), ring.make("ed25519"), ring.files["signing"]
    assert ring.signing is not None
    file.unlink()
    file.mkdir()  # root, too, cannot read that
    with capture_logs() as lines:
        assert [ring.signing.id, ring.signing.id] == [old.id] * 2
    assert len(lines) == 1 and f"{file}: cannot be read" in lines[0]["cause"]
    with pytest.raises(Invalid, match="make the user that runs the gateway its owner") as error:
        _ = Keyring(tmp_path).signing
    assert error.value.reason == "IDENTITY_UNUSABLE"
    file.rmdir()
    assert ring.switch() and ring.signing.id == new.id


def test_what_root_makes_belongs_to_the_owner_of_the_state_folder(tmp_path: Path, monkeypatch: Any):
    given: list[tuple[int, tuple[int, ...]]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda fd, *to: given.append((os.fstat(fd).st_ino, to)))
    ring, owner = Keyring(tmp_path), (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    ring.make("ed25519")
    folder, file = ring.folder.stat().st_ino, ring.files["signing"].stat().st_ino
    assert given == [(folder, owner), (file, owner)]
    ring.files["next"].write_bytes(
        ring.files["signing"].read_bytes()
    )  # as an admin puts it there, as root
    put = ring.files["next"].stat().st_ino
    assert ring.switch() and given[2:] == [(put, owner)]
    outside = tmp_path / "outside"
    outside.touch()
    ring.files["next"].hardlink_to(outside)
    assert ring.switch() and len(given) == 3


def test_a_key_that_is_not_on_the_curve_is_refused():
    spki = KEY_GENERATORS["sm2"]().public_key().public_bytes()  # type: ignore[call-arg]
    for wrong in (spki[:-1] + bytes([spki[-1] ^ 1]), spki[:-1], spki + b"\0", b""):
        with pytest.raises(ValueError):
            public_key(b64encode(wrong).decode())


def test_a_machine_without_sm2_says_so_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ring = Keyring(tmp_path)
    ring.make("sm2")
    monkeypatch.setattr(_ssl, "__file__", _struct.__file__)  # which is linked to no OpenSSL
    sm2._library.cache_clear()
    for use in (lambda: ring.make("sm2"), lambda: ring.signing):
        with pytest.raises(
            Invalid, match="SM2 needs a Python that is linked to OpenSSL 3 with SM2, not to OpenSSL"
        ):
            use()
    monkeypatch.undo()
    sm2._library.cache_clear()
    assert ring.signing is not None and ring.signing.algorithm == "sm2"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "node.yml"
    assert call("init", "--node", "A1", "--engine", "process", "-o", str(file)).exit_code == 0
    return file


def run(config: Path, *words: str) -> list[dict[str, str]]:
    done = call("identity", *words, "--config", str(config), "--json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)["keys"]
    return found


def test_init_makes_a_key_that_is_closed_to_others_and_stays(config: Path):
    (key,) = run(config, "show")
    ring = Keyring(config.parent / "var")
    assert (key["use"], key["algorithm"]) == ("signing", "ed25519")
    assert stat.S_IMODE(ring.files["signing"].stat().st_mode) == 0o600
    assert stat.S_IMODE(ring.folder.stat().st_mode) == 0o700
    again = call("init", "--node", "A1", "--engine", "process", "-o", str(config), "--force")
    assert key["id"] in again.stdout and run(config, "show") == [key]


def test_a_rotation_exports_both_keys_and_the_old_one_signs_until_its_end(config: Path):
    (old,) = run(config, "show")
    ring = Keyring(config.parent / "var")
    assert call("identity", "rotate", "--finish", "--config", str(config)).exit_code == 1
    steps = call(
        "identity", "rotate", "--algorithm", "ecdsa-p256-sha256", "--config", str(config)
    ).stdout
    assert [key["use"] for key in run(config, "show")] == ["signing", "next"]
    assert steps.splitlines()[1:] == [
        "next: have partners add what bfia-gateway identity export prints to their routes",
        "then: bfia-gateway identity rotate --finish",
    ]
    assert translate(steps.splitlines()[1], "zh").startswith("下一步：请合作方将")
    assert ring.signing is not None and ring.signing.id == old["id"]
    _, new = run(config, "export")
    printed = call("identity", "export", "--config", str(config)).stdout
    pems = [
        part + "-----END PUBLIC KEY-----" for part in printed.split("-----END PUBLIC KEY-----")[:-1]
    ]
    assert [key_pin(load_pem_public_key(pem.strip().encode())) for pem in pems] == [
        old["id"],
        new["id"],
    ]
    finished = call("identity", "rotate", "--finish", "--config", str(config)).stdout.splitlines()
    assert finished == [
        f"{new['id']} signs",
        "next: have partners remove the old key from their routes",
    ]
    (left,) = run(config, "show")
    assert left == new | {"use": "signing"}
    assert ring.signing is not None and ring.signing.id == new["id"]
    assert [path.name for path in ring.folder.iterdir()] == ["signing.pem"]
