"""FATE's signature of requests between sites."""

import hashlib

import pytest

from adapter.fate.signing import VALID_MS, App, Signatures, Site, signature
from gateway.errors import NotAllowed

APP = App("12345678", "token")
THERE = Signatures({"us": Site(expects=APP)})
US = Signatures({"there": Site(sends=APP)})


def test_the_signature_is_fates():
    """MD5 of id, initiator, nonce and time; then MD5 of that and the token (read from FATE-Flow 2.2's sources)."""
    key = hashlib.md5(b"12345678" + b"9999" + b"0042" + b"1700000000000").hexdigest()
    assert signature(APP, "9999", "0042", "1700000000000") == hashlib.md5(key.encode() + b"token").hexdigest()


def test_what_is_signed_is_taken():
    headers = US.sign("there", "9999")
    assert set(headers) == {"Signature", "appId", "Nonce", "Timestamp", "initiatorPartyId"}
    assert len(headers["Nonce"]) == 4
    THERE.check("us", headers)


def test_nobody_signs_where_nothing_is_said():
    assert US.sign("another", "") == {}
    THERE.check("another", {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Signature": "x"}, "SIGNATURE_WRONG"),
        ({"Nonce": "9"}, "SIGNATURE_WRONG"),
        ({"initiatorPartyId": "8888"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "soon"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "1700000000000"}, "SIGNATURE_EXPIRED"),
        ({"appId": "87654321"}, "APP_UNKNOWN"),
        ({"Signature": ""}, "SIGNATURE_MISSING"),
        ({"Signature": "ü"}, "SIGNATURE_WRONG"),
    ],
)
def test_what_is_not_taken(changes: dict[str, str], reason: str):
    with pytest.raises(NotAllowed) as caught:
        THERE.check("us", {**US.sign("there", "9999"), **changes})
    assert caught.value.reason == reason


def test_a_signature_of_the_future_is_no_better_than_an_old_one():
    headers = dict(US.sign("there", ""))
    headers["Timestamp"] = str(int(headers["Timestamp"]) + 2 * VALID_MS)
    headers["Signature"] = signature(APP, "", headers["Nonce"], headers["Timestamp"])
    with pytest.raises(NotAllowed):
        THERE.check("us", headers)
