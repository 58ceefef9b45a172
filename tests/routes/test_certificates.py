"""The PEM files of a route: an unusable one is refused with the path of its key and the rule."""

import shutil
import ssl
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from route_table import sm2
from route_table.certificates import bearer, expiries, pin, public_key
from route_table.editing import Change
from route_table.live import LiveRoutes, MemoryVersions
from route_table.model import Identity, InvalidRoutes, Unusable, read_file
from tests.builders import raising, returning
from tests.certificates import Authority

# Encoded parts of certificates: the curves of their keys, and their versions.
EC_P256 = bytes.fromhex("06082a8648ce3d030107")
SM2 = bytes.fromhex("06082a811ccf5501822d")
VERSION_3 = bytes.fromhex("a003020102")
VERSION_2 = bytes.fromhex("a003020101")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def files(authority):
    """The paths of PEM files, good and bad, by their names in the tests."""
    good = authority.sign("good")
    folder = Path(good.key).parent
    der = ssl.PEM_cert_to_DER_cert(Path(good.certificate).read_text())
    contents = {
        "text.pem": "hello\n",
        "sm2.pem": ssl.DER_cert_to_PEM_cert(der.replace(EC_P256, SM2, 1)),
        "v2.pem": ssl.DER_cert_to_PEM_cert(der.replace(VERSION_3, VERSION_2, 1)),
        "long.pem": "x" * (1024 * 1024 + 1),
    }
    for name, content in contents.items():
        (folder / name).write_text(content)
    return {
        "ca": authority.file,
        "certificate": good.certificate,
        "key": good.key,
        "other key": authority.sign("other").key,
        "old": authority.sign("old", days=-2).certificate,
        "old ca": Authority(folder / "old", days=-1).file,
        "locked": authority.sign("locked", password=b"secret").key,
        "sm2": str(folder / "sm2.pem"),
        "v2": str(folder / "v2.pem"),
        "text": str(folder / "text.pem"),
        "long": str(folder / "long.pem"),
        "folder": str(folder),
        "nowhere": str(folder / "nowhere.pem"),
    }


@pytest.mark.parametrize(
    ("keys", "path", "rule"),
    [
        ({"ca": "nowhere"}, "ca", "does not exist"),
        ({"ca": "folder"}, "ca", "is not a file"),
        ({"ca": "text"}, "ca", "holds no certificate in PEM form"),
        ({"ca": "long"}, "ca", "must not be larger"),
        ({"ca": "v2"}, "ca", "holds no certificate in PEM form"),
        ({"ca": "old ca"}, "ca", "holds expired authorities only"),
        ({"certificate": "old", "key": "key"}, "certificate", "has expired on"),
        (
            {"certificate": "sm2", "key": "key"},
            "certificate",
            "is for a key of a kind that TLS cannot use",
        ),
        (
            {"certificate": "certificate", "key": "other key"},
            "key",
            "is not the key of the certificate",
        ),
        ({"certificate": "certificate", "key": "locked"}, "key", "is protected by a password"),
        ({"certificate": "certificate", "key": "text"}, "key", "holds no private key"),
    ],
)
def test_an_unusable_file_is_refused_with_its_key_and_rule(files, keys, path, rule):
    live = LiveRoutes(None)
    entry = {"url": "https://h"}
    for key, name in keys.items():
        entry[key] = files[name]

    with pytest.raises(InvalidRoutes) as refusal:
        live.edit(Change("JG1", entry), "ann")

    problems = refusal.value.problems
    [first, *_] = [problem for problem in problems if problem.path == f"JG1.{path}"]
    assert first.rule.startswith(rule)
    assert not live.table.routes
    assert not live.history()


def test_all_unusable_files_are_reported_together_after_an_edit_too(files, tmp_path):
    file = tmp_path / "routes.yml"
    keys = f"ca: {files['nowhere']}, certificate: {files['text']}, key: {files['text']}"
    file.write_text(f"JG1: {{url: 'https://h', {keys}}}\n")

    live = LiveRoutes(file)

    paths = [problem.path for problem in live.problems]
    assert paths == ["JG1.ca", "JG1.certificate", "JG1.key"]
    assert not live.table.routes


def test_a_file_that_appears_after_its_route_is_found_without_an_edit(files, tmp_path):
    file = tmp_path / "routes.yml"
    late = tmp_path / "late.pem"
    file.write_text(f"JG1: {{url: 'https://h', ca: {late}}}\n")
    live = LiveRoutes(file)
    assert not live.reload()
    assert [problem.path for problem in live.problems] == ["JG1.ca"]

    shutil.copy(files["ca"], late)

    assert live.reload()
    assert live.table.knows("JG1")
    assert not live.problems


def test_a_certificate_that_has_expired_since_blocks_no_other_edit(files):
    now = datetime.now(UTC)
    live = LiveRoutes(None, MemoryVersions(), clock=lambda: now)
    live.edit(
        Change("JG1", {"url": "https://h", "ca": files["ca"]}),
        "ann",
    )

    now = datetime(2100, 1, 1, tzinfo=UTC)

    assert live.edit(Change("JG2", {"url": "http://other"}), "ann").number == 2
    with pytest.raises(InvalidRoutes):
        live.edit(
            Change(
                "JG1",
                {"deadline": 3},
                replaces=False,
            ),
            "ann",
        )


def test_the_first_end_of_a_chain_and_the_last_of_the_authorities_count(authority, tmp_path):
    long = authority.sign("long", days=90)
    short = authority.sign("short", days=3)
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(long.certificate).read_text() + Path(short.certificate).read_text())
    identity = Identity(
        ca=str(chain),
        certificate=str(chain),
        key=long.key,
    )

    days_left = {}
    for expiry in expiries(identity, "JG1"):
        days_left[expiry.path] = (expiry.ends - datetime.now(UTC)).days

    assert days_left == {"JG1.ca": 89, "JG1.certificate": 2}


def test_a_path_is_relative_to_the_folder_of_the_route_file(authority, tmp_path):
    file = tmp_path / "routes.yml"
    ca = tmp_path / "tls" / "ca.pem"
    ca.parent.mkdir()
    shutil.copy(authority.file, ca)
    file.write_text("A: {url: 'https://a', ca: tls/ca.pem}\n")
    versions = MemoryVersions()
    live = LiveRoutes(file, versions)
    assert live.problems == ()
    assert live.table.routes["A"].ca == str(ca)

    live.edit(
        Change(
            "A",
            {"deadline": 5},
            replaces=False,
        ),
        "ann",
    )

    assert "ca: tls/ca.pem" in file.read_text()
    assert live.table.routes["A"].ca == str(ca)
    assert LiveRoutes(file, versions).table.routes == live.table.routes
    with pytest.raises(InvalidRoutes, match="nowhere"):
        live.edit(
            Change(
                "A",
                {"ca": "nowhere.pem"},
                replaces=False,
            ),
            "ann",
        )


def test_a_certificate_that_is_not_valid_yet_is_refused(files):
    live = LiveRoutes(None, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC))
    entry = {
        "url": "https://h",
        "certificate": files["certificate"],
        "key": files["key"],
    }

    with pytest.raises(InvalidRoutes, match="is valid only from"):
        live.edit(Change("JG1", entry), "ann")


def test_a_missing_file_has_no_expiry(files):
    assert list(expiries(Identity(ca=files["nowhere"]), "JG1")) == []


def test_a_file_that_may_not_be_read_is_named(files, monkeypatch):
    monkeypatch.setattr(Path, "open", raising(PermissionError(13, "Permission denied")))

    with pytest.raises(Unusable, match="cannot be read: Permission denied"):
        read_file(files["ca"], 10)


def test_a_certificate_without_other_names_bears_its_key_alone(files):
    pem = Path(files["ca"]).read_text()
    certificate = x509.load_pem_x509_certificate(pem.encode())

    assert bearer(pem).names == {pin(certificate)}


@pytest.mark.parametrize("name", ["sm2", "v2", "text"])
def test_an_unreadable_certificate_bears_nothing(files, name):
    with pytest.raises(Unusable, match="is not a certificate that can be read"):
        bearer(Path(files[name]).read_text())


def test_a_key_of_an_unknown_curve_signs_nothing(files):
    certificate = x509.load_pem_x509_certificate(Path(files["certificate"]).read_bytes())
    der = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    unknown_curve = EC_P256[:-1] + b"\x7f"

    with pytest.raises(ValueError):
        public_key(b64encode(der.replace(EC_P256, unknown_curve, 1)).decode())


def test_a_python_without_sm2_says_so(monkeypatch):
    library = SimpleNamespace(**dict.fromkeys(sm2._CALLS, returning(None)))
    monkeypatch.setattr(sm2, "CDLL", returning(library))

    with pytest.raises(sm2.Sm2Unavailable, match="SM2 needs a Python"):
        sm2._library.__wrapped__()


def test_an_empty_key_for_sm2_is_refused():
    with pytest.raises(ValueError, match="is not a key for SM2"):
        sm2.PublicKey(b"")
