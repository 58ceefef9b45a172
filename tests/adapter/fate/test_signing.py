"""FATE's signatures of requests between sites."""

import time

import pytest

from adapter.fate.signing import VALID_MS, Signatures
from gateway.config.schema import FateApp, FateSite
from gateway.errors import NotAllowed

APP = FateApp(app_id="12345678", app_token="token")
THERE = Signatures({"us": FateSite(expects=APP)})
US = Signatures({"there": FateSite(sends=APP)})


def test_between_sites_only_what_is_signed_is_accepted():
    found = US.sign("there", "9999")
    assert set(found) == {"Signature", "appId", "Nonce", "Timestamp", "initiatorPartyId"}
    THERE.check("us", found)
    assert US.sign("another", "") == {}
    THERE.check("another", {})  # which does not have to sign


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Signature": "x"}, "SIGNATURE_WRONG"),
        ({"Nonce": "9"}, "SIGNATURE_WRONG"),
        ({"initiatorPartyId": "8888"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "soon"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "1700000000000"}, "SIGNATURE_EXPIRED"),
        (
            {"Timestamp": str(time.time_ns() // 1_000_000 + 2 * VALID_MS + 900_000)},
            "SIGNATURE_EXPIRED",
        ),
        ({"appId": "87654321"}, "APP_UNKNOWN"),
        ({"Signature": ""}, "SIGNATURE_MISSING"),
        ({"Signature": "ü"}, "SIGNATURE_WRONG"),
    ],
)
def test_between_sites_another_signature_is_refused(changes, reason):
    with pytest.raises(NotAllowed) as caught:
        THERE.check("us", {**US.sign("there", "9999"), **changes})
    assert caught.value.reason == reason
