"""When the partner of a contract learns this node's address and key."""

from dataclasses import replace

import pytest

from gateway.domain.announcements import Identity, Step, decide, with_update, without_update
from gateway.domain.applications import (
    APPROVED,
    UPDATE,
    Announcement,
    Application,
    Kind,
    Side,
    delivered,
)
from tests.domain.test_applications import NOW, ONE_DAY, an_application

ADDRESS = "https://a:1"
NEW_ADDRESS = "https://b:2"
IDENTITY = Identity(ADDRESS, "http://127.0.0.1:7380", "key-1")
KNOWN = Announcement(ADDRESS, "key-1", follows_setting=True)


def a_contract(side: Side = Side.MINE, **changes: object) -> Application:
    """Build a contract in force whose partner knows `IDENTITY`."""
    contract = an_application(
        side,
        APPROVED,
        kind=Kind.CONTRACT,
        announced=KNOWN,
        due_at=None,
    )
    return replace(contract, **changes)


@pytest.mark.parametrize(
    ("known", "identity", "step"),
    [
        (KNOWN, IDENTITY, Step.NONE),
        (KNOWN, replace(IDENTITY, advertised=NEW_ADDRESS), Step.SEND),
        (KNOWN, replace(IDENTITY, key="key-2"), Step.SEND),
        (KNOWN, replace(IDENTITY, advertised=""), Step.NONE),
        (KNOWN, replace(IDENTITY, default_address="http://127.0.0.1:9"), Step.NONE),
        (KNOWN, replace(IDENTITY, advertised="http://b:2"), Step.BLOCKED),
        (replace(KNOWN, follows_setting=False), replace(IDENTITY, key="key-2"), Step.SEND),
        (
            replace(KNOWN, follows_setting=False),
            replace(IDENTITY, advertised=NEW_ADDRESS),
            Step.NONE,
        ),
        (replace(KNOWN, address=""), replace(IDENTITY, advertised="", key="key-2"), Step.BLOCKED),
        (replace(KNOWN, address="http://a:1"), IDENTITY, Step.SEND),
    ],
    ids=[
        "nothing",
        "another address",
        "another key",
        "no address any more",
        "another port without an address",
        "http after https",
        "another key with an address for the partner alone",
        "another address beside one for the partner alone",
        "another key without any address",
        "https after http",
    ],
)
def test_a_partner_learns_what_has_changed(known, identity, step):
    assert decide(a_contract(announced=known), identity).step is step


SEALED = replace(KNOWN, sealing_key="seal-1")


@pytest.mark.parametrize(
    ("known", "present", "step"),
    [
        ("seal-1", "seal-1", Step.NONE),
        ("seal-1", "seal-2", Step.SEND),
        ("seal-1", "", Step.NONE),
        (None, "seal-1", Step.RECORD),
        (None, "", Step.NONE),
    ],
    ids=["nothing", "another key", "no key any more", "from before this record", "never one"],
)
def test_a_partner_learns_a_replaced_sealing_key(known, present, step):
    contract = a_contract(announced=replace(KNOWN, sealing_key=known))

    decision = decide(contract, replace(IDENTITY, sealing_key=present))

    assert decision.step is step
    if decision.announcement is not None:
        assert decision.announcement == replace(KNOWN, sealing_key=present)


def test_an_update_brings_a_sealing_key_that_was_never_recorded():
    identity = replace(IDENTITY, advertised=NEW_ADDRESS, sealing_key="seal-1")

    decision = decide(a_contract(), identity)

    assert decision.step is Step.SEND
    assert decision.announcement == replace(SEALED, address=NEW_ADDRESS)


@pytest.mark.parametrize("side", list(Side))
def test_a_new_contract_has_announced_its_sealing_key(side):
    request_body = {"address": ADDRESS, "auth_credential": "key-1", "sealing_key": "seal-1"}
    contract = a_contract(side, announced=None, request=request_body)

    decision = decide(contract, replace(IDENTITY, sealing_key="seal-1"))

    assert decision.announcement == SEALED


def test_an_update_names_the_address_that_the_partner_uses():
    known = replace(KNOWN, address="https://private:1", follows_setting=False)

    decision = decide(a_contract(announced=known), replace(IDENTITY, key="key-2"))

    assert decision.announcement == replace(known, key="key-2")


@pytest.mark.parametrize(
    ("side", "request_body", "announced"),
    [
        (Side.THEIRS, {"address": "https://partner:1"}, KNOWN),
        (Side.MINE, {"address": ADDRESS, "auth_credential": "key-1"}, KNOWN),
        (
            Side.MINE,
            {"address": IDENTITY.default_address, "auth_credential": "key-0"},
            Announcement(IDENTITY.default_address, "key-0", follows_setting=True),
        ),
        (
            Side.MINE,
            {"address": "https://private:1", "auth_credential": "key-1"},
            Announcement("https://private:1", "key-1", follows_setting=False),
        ),
    ],
    ids=["the partner's", "with the setting", "with a default and an earlier key", "of its own"],
)
def test_a_new_contract_has_announced_what_its_application_contains(side, request_body, announced):
    contract = a_contract(side, announced=None, request=request_body)

    decision = decide(contract, IDENTITY)

    assert decision.step is Step.RECORD
    assert decision.announcement == announced


def test_an_undelivered_decision_comes_before_an_update():
    contract = a_contract(Side.THEIRS, notice="confirm")

    assert decide(contract, replace(IDENTITY, key="key-2")).step is Step.LATER


def test_an_acknowledged_update_is_recorded_with_its_time():
    announcement = replace(KNOWN, key="key-2")

    contract = with_update(a_contract(), announcement, NOW)
    assert contract.notice == UPDATE
    assert with_update(contract, announcement, NOW + ONE_DAY) == contract

    contract = delivered(contract, NOW + ONE_DAY)
    assert contract.notice == ""
    assert contract.announced == replace(announcement, at=NOW + ONE_DAY)


def test_an_update_that_is_not_needed_any_more_is_dropped():
    contract = with_update(a_contract(), replace(KNOWN, key="key-2"), NOW)

    assert without_update(contract) == a_contract()
    assert without_update(a_contract(notice="terminate")) == a_contract(notice="terminate")
