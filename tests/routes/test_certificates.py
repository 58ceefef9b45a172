"""The PEM files that a route names: what cannot be used is refused when it is named, with its path and rule."""

import shutil
import ssl
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from route_table import sm2
from route_table.certificates import bearer, expiries, pin, public_key
from route_table.editing import Change
from route_table.live import LiveRoutes, MemoryVersions
from route_table.model import Identity, InvalidRoutes, Unusable, read_file
from tests.certificates import Authority

EC_P256, SM2 = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a811ccf5501822d")
VERSION_3, VERSION_2 = bytes.fromhex("a003020102"), bytes.fromhex("a003020101")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> dict[str, str]:
    """Return PEM files, good and bad, by what they are."""
    good, other = authority.sign("good"), authority.sign("other")
    folder = Path(good.key).parent
    (folder / "text.pem").write_text("hello\n")
    der = ssl.PEM_cert_to_DER_cert(Path(good.certificate).read_text())
    for name, was, now in (("sm2", EC_P256, SM2), ("v2", VERSION_3, VERSION_2)):
        (folder / f"{name}.pem").write_text(ssl.DER_cert_to_PEM_cert(der.replace(was, now, 1)))
    (folder / "long.pem").write_text("x" * (1024 * 1024 + 1))
    return {
        "ca": authority.file,
        "certificate": good.certificate,
        "key": good.key,
        "other key": other.key,
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
    ("named", "path", "rule"),
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
def test_a_file_that_cannot_be_used_is_refused_where_it_is_named(
    files: dict[str, str],
    named: dict[str, str],
    path: str,
    rule: str,
):
    live = LiveRoutes(None)
    entry = {"url": "https://h"} | {key: files[file] for key, file in named.items()}
    with pytest.raises(InvalidRoutes) as refused:
        live.edit(Change("JG1", entry), "ann")
    found = [p for p in refused.value.problems if p.path == f"JG1.{path}"]
    assert found and found[0].rule.startswith(rule), refused.value.problems
    assert not live.table.routes and not live.history()


def test_all_unusable_files_are_reported_together_after_an_edit_too(
    files: dict[str, str], tmp_path: Path
):
    file = tmp_path / "routes.yml"
    entry = f"{{url: 'https://h', ca: {files['nowhere']}, certificate: {files['text']}, key: {files['text']}}}"
    file.write_text(f"JG1: {entry}\n")
    live = LiveRoutes(file)
    assert [p.path for p in live.problems] == ["JG1.ca", "JG1.certificate", "JG1.key"]
    assert not live.table.routes


def test_a_file_that_appears_after_its_route_is_found_without_an_edit(
    files: dict[str, str], tmp_path: Path
):
    file, late = tmp_path / "routes.yml", tmp_path / "late.pem"
    file.write_text(f"JG1: {{url: 'https://h', ca: {late}}}\n")
    live = LiveRoutes(file)
    assert not live.reload()
    assert [p.path for p in live.problems] == ["JG1.ca"]
    shutil.copy(files["ca"], late)
    assert live.reload()
    assert live.table.knows("JG1") and not live.problems


def test_a_certificate_that_has_expired_since_blocks_no_other_edit(
    authority: Authority, files: dict[str, str]
):
    late = datetime(2100, 1, 1, tzinfo=UTC)
    times = [datetime.now(UTC)] * 5
    versions = MemoryVersions()
    live = LiveRoutes(None, versions, clock=lambda: times.pop() if times else late)
    live.edit(Change("JG1", {"url": "https://h", "ca": files["ca"]}), "ann")
    times.clear()
    assert live.edit(Change("JG2", {"url": "http://other"}), "ann").number == 2
    with pytest.raises(InvalidRoutes):
        live.edit(Change("JG1", {"deadline": 3}, replaces=False), "ann")


def test_the_first_end_of_a_chain_and_the_last_of_the_authorities_count(
    authority: Authority, tmp_path: Path
):
    long, short = authority.sign("long", days=90), authority.sign("short", days=3)
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(long.certificate).read_text() + Path(short.certificate).read_text())
    found = list(
        expiries(
            Identity(
                ca=str(chain),
                certificate=str(chain),
                key=long.key,
            ),
            "JG1",
        )
    )
    left = {one.path: (one.ends - datetime.now(UTC)).days for one in found}
    assert left == {"JG1.ca": 89, "JG1.certificate": 2}


def test_a_file_is_named_from_the_folder_of_the_route_file(authority: Authority, tmp_path: Path):
    file = tmp_path / "routes.yml"
    (tmp_path / "tls").mkdir()
    shutil.copy(authority.file, tmp_path / "tls" / "ca.pem")
    file.write_text("A: {url: 'https://a', ca: tls/ca.pem}\n")
    versions = MemoryVersions()
    live = LiveRoutes(file, versions)
    assert live.problems == () and live.table.routes["A"].ca == str(tmp_path / "tls" / "ca.pem")
    live.edit(Change("A", {"deadline": 5}, replaces=False), "ann")
    assert "ca: tls/ca.pem" in file.read_text() and live.table.routes["A"].ca == str(
        tmp_path / "tls" / "ca.pem"
    )
    assert LiveRoutes(file, versions).table.routes == live.table.routes
    with pytest.raises(InvalidRoutes, match="nowhere"):
        live.edit(Change("A", {"ca": "nowhere.pem"}, replaces=False), "ann")


def test_what_is_not_valid_yet_is_refused_and_what_is_gone_has_no_end(
    files: dict[str, str], tmp_path: Path
):
    live = LiveRoutes(None, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC))
    entry = {
        "url": "https://h",
        "certificate": files["certificate"],
        "key": files["key"],
    }
    with pytest.raises(InvalidRoutes, match="is valid only from"):
        live.edit(Change("JG1", entry), "ann")
    assert list(expiries(Identity(ca=files["nowhere"]), "JG1")) == []


def test_a_file_that_may_not_be_read_is_named(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(Unusable, match="cannot be read: Permission denied"):
        read_file(files["ca"], 10)


def test_a_certificate_without_other_names_bears_its_key_alone(files: dict[str, str]):
    pem = Path(files["ca"]).read_text()
    assert bearer(pem).names == {pin(x509.load_pem_x509_certificate(pem.encode()))}
    for other in ("sm2", "v2", "text"):
        with pytest.raises(Unusable, match="is not a certificate that can be read"):
            bearer(Path(files[other]).read_text())


def test_a_key_of_an_unknown_curve_signs_nothing(files: dict[str, str]):
    key = x509.load_pem_x509_certificate(Path(files["certificate"]).read_bytes()).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ValueError):
        public_key(b64encode(der.replace(EC_P256, EC_P256[:-1] + b"\x7f", 1)).decode())


def test_a_python_without_sm2_says_so(monkeypatch: pytest.MonkeyPatch):
    lacks = SimpleNamespace(**{name: Mock(return_value=None) for name in sm2._CALLS})
    monkeypatch.setattr(sm2, "CDLL", lambda _: lacks)
    with pytest.raises(sm2.Sm2Unavailable, match="SM2 needs a Python"):
        sm2._library.__wrapped__()
    with pytest.raises(ValueError, match="is not a key for SM2"):
        sm2.PublicKey(b"")
