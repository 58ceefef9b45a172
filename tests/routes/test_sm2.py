"""Keys for SM2, which Python's OpenSSL reads and uses in the place of `cryptography`."""

import _ssl
import _struct
from base64 import b64encode
from pathlib import Path

import pytest

from gateway.errors import Invalid
from gateway.identity.keys import MAKERS, Keyring
from route_table import sm2
from route_table.certificates import public_key


def test_a_key_that_is_not_on_the_curve_is_refused():
    spki = MAKERS["sm2"]().public_key().public_bytes()  # type: ignore[call-arg]
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
