"""What proves the requests of a node: decided by its route and by the listener for peers."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.identity.keys import KeyPair
from route_table.document import parse
from route_table.proof import ListenerProof, mending_command, proof_of

# The same in each process of a test run, as the tests are named after it.
KEY = KeyPair(Ed25519PrivateKey.from_private_bytes(bytes(32))).public
OTHERS = ListenerProof()  # other machines reach it, and show no certificate
LOCAL = ListenerProof(is_local=True)
CERTIFIED = ListenerProof(asks_for_certificate=True)
FATE = ListenerProof(fate_sites=frozenset({"B"}))


@pytest.mark.parametrize(
    ("fields", "listener", "proof"),
    [
        ("", OTHERS, "missing"),
        ("", LOCAL, "local"),
        ("", CERTIFIED, "certificate"),
        ("", FATE, "fate"),
        (f"keys: {KEY}", OTHERS, "signature"),
        (f"keys: {KEY}", LOCAL, "signature"),
        (f"keys: {KEY}", CERTIFIED, "signature"),
        (f"keys: {KEY}, signing: accepted", OTHERS, "off"),
        (f"keys: {KEY}, signing: off", OTHERS, "off"),
        ("signing: accepted", OTHERS, "off"),
        ("signing: off", OTHERS, "off"),
        ("signing: 'off'", OTHERS, "off"),
        ("signing: off", LOCAL, "off"),
        ("signing: off", CERTIFIED, "certificate"),
        ("signing: off", FATE, "fate"),
        ("signing: required", OTHERS, "missing"),
        ("signing: required", LOCAL, "missing"),
        ("signing: required", CERTIFIED, "missing"),
        ("profile: fate-partner", OTHERS, "missing"),
        ("profile: fate-partner", FATE, "fate"),
    ],
)
def test_the_route_and_the_listener_decide_on_the_proof(fields, listener, proof):
    table = parse(f"B: {{host: 10.0.0.7, port: 7380, {fields}}}")
    assert proof_of(table.routes["B"], listener) == proof


@pytest.mark.parametrize(
    ("fields", "listener", "proof"),
    [
        ("", OTHERS, "missing"),
        ("", CERTIFIED, "missing"),
        (f", keys: {KEY}", CERTIFIED, "signature"),
        (", signing: accepted", CERTIFIED, "off"),
    ],
)
def test_a_relays_certificate_does_not_prove_the_node_behind_it(fields, listener, proof):
    table = parse(f"HUB: {{host: 10.0.0.7, port: 7380}}\nB: {{via: HUB{fields}}}")
    assert proof_of(table.routes["B"], listener) == proof


def test_the_next_step_fits_the_protocol_of_the_route():
    table = parse(
        "A: {host: h, port: 1}\nB: {host: h, port: 1, profile: fate-partner}",
    )
    assert "route edit A --keys" in mending_command(table.routes["A"])
    assert "partner accept --replace" in mending_command(table.routes["A"])
    assert "fate.sites" in mending_command(table.routes["B"])
    assert "--keys" not in mending_command(table.routes["B"])


@pytest.mark.parametrize("fields", ["", ", profile: fate-partner"])
def test_a_route_without_proof_by_decision_is_not_advised_to_decide_so(fields):
    table = parse(
        f"A: {{host: h, port: 1, signing: off{fields}}}\nB: {{host: h, port: 1{fields}}}",
    )
    assert "signing off" not in mending_command(table.routes["A"])
    assert "signing off" in mending_command(table.routes["B"])
