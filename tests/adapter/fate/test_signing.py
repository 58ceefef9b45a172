"""FATE's signatures of requests between sites."""

import time

import pytest

from adapter.fate.signing import VALID_MS, Signatures
from gateway.config.schema.partners import FateApp, FateSite
from gateway.errors import NotAllowed

APP = FateApp(
    app_id="12345678",
    app_token="token",
)
# The two sites, each with its settings for the other.
SIGNING_SITE = Signatures({"verifier": FateSite(sends=APP)})
VERIFYING_SITE = Signatures({"signer": FateSite(expects=APP)})
# In ms. The test may run up to 15 min (900 s) after this line and must still see a future time.
FAR_FUTURE = str(time.time_ns() // 1_000_000 + 2 * VALID_MS + 900_000)


def test_a_signed_request_is_accepted():
    headers = SIGNING_SITE.sign("verifier", "9999")

    assert set(headers) == {"Signature", "appId", "Nonce", "Timestamp", "initiatorPartyId"}
    VERIFYING_SITE.check("signer", headers)


def test_a_site_without_a_shared_secret_does_not_have_to_sign():
    assert SIGNING_SITE.sign("another", "") == {}
    VERIFYING_SITE.check("another", {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Signature": "x"}, "SIGNATURE_WRONG"),
        ({"Nonce": "9"}, "SIGNATURE_WRONG"),
        ({"initiatorPartyId": "8888"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "soon"}, "SIGNATURE_WRONG"),
        ({"Timestamp": "1700000000000"}, "SIGNATURE_EXPIRED"),
        ({"Timestamp": FAR_FUTURE}, "SIGNATURE_EXPIRED"),
        ({"appId": "87654321"}, "APP_UNKNOWN"),
        ({"Signature": ""}, "SIGNATURE_MISSING"),
        ({"Signature": "ü"}, "SIGNATURE_WRONG"),
    ],
)
def test_a_changed_signature_is_refused(changes, reason):
    headers = {**SIGNING_SITE.sign("verifier", "9999"), **changes}

    with pytest.raises(NotAllowed) as caught:
        VERIFYING_SITE.check("signer", headers)

    assert caught.value.reason == reason
