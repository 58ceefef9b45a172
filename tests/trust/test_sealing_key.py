"""The key to which messages for a node are sealed: made once, for its owner only, kept."""

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gateway.errors import Invalid
from gateway.identity.keys import Keyring
from gateway.identity.sealing import LONGEST_KEY
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.identity.seals import Seals
from route_table import sm2
from tests.cli import call


@pytest.fixture
def file(tmp_path):
    return SealingKeyFile(tmp_path)


def test_a_key_is_made_once_and_readable_by_its_owner_only(file):
    pair = file.ensure()

    assert file.ensure().id == pair.id
    assert file.read().public == pair.public
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == ["sealing.pem"]


def test_gateways_that_start_together_make_one_key(tmp_path):
    """Threads have one process id, as have gateways in containers that share the folder."""
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            file = SealingKeyFile(tmp_path / str(number))
            pairs = list(pool.map(lambda file: file.ensure(), [file] * 8))

            assert len({pair.id for pair in pairs}) == 1
            assert [path.name for path in file.path.parent.iterdir()] == ["sealing.pem"]


def test_a_node_that_signs_with_sm2_has_a_key_for_sm2(file, tmp_path):
    pair = file.ensure(Keyring(tmp_path).make("sm2"))

    assert isinstance(pair.private, sm2.PrivateKey)
    assert isinstance(file.read().private, sm2.PrivateKey)


def test_any_other_node_has_a_key_for_x25519(file, tmp_path):
    pair = file.ensure(Keyring(tmp_path).make("ecdsa-p256-sha256"))

    assert isinstance(pair.private, X25519PrivateKey)


def test_where_no_file_can_be_made_there_is_no_key(file):
    file.path.parent.mkdir()
    file.path.parent.rmdir()
    file.path.parent.write_text("a file in place of the folder")

    assert file.ensure() is None


@pytest.mark.parametrize("use", ["a text", "a signing key"])
def test_an_unusable_file_is_refused_by_name(file, tmp_path, use):
    file.path.parent.mkdir()
    content = b"x"
    if use == "a signing key":
        Keyring(tmp_path).make("ed25519")
        content = (tmp_path / "identity" / "signing.pem").read_bytes()
    file.path.write_bytes(content)

    with pytest.raises(Invalid, match=r"sealing\.pem") as error:
        file.ensure()

    assert error.value.reason == "IDENTITY_UNUSABLE"


class LongestRsaKey:
    """Stands for a key pair of RSA with 16384 bits, which takes minutes to make."""

    id = f"sha256:{'0' * 64}"

    def sign(self, content):
        """Return as many bytes as a signature has."""
        return bytes(16384 // 8)


def test_a_wrapped_key_with_the_longest_signature_is_not_too_long(file):
    seals = Seals("A" * 100, None, LongestRsaKey, partial(datetime.now, UTC))

    seal = seals.begin("B" * 100, file.ensure().public, session="session_" + "j" * 100)

    assert 2048 < len(seal.key.header) <= LONGEST_KEY


def test_init_makes_the_key(tmp_path):
    call("init", "--node", "A1", "--engine", "process", "-o", str(tmp_path / "node.yml"))

    assert len(list(tmp_path.rglob("identity/sealing.pem"))) == 1
