"""A node of this gateway, and a check of it."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from structlog.testing import capture_logs

from adapter.bfia.channel.codec import PUSH, SUCCESS
from engines.base import LaunchSpec
from gateway.bootstrap.parts import Pace
from gateway.conformance.platforms.check import SCENARIOS
from gateway.conformance.platforms.clauses import Clause
from gateway.conformance.platforms.containers import TOKEN_TOPIC
from gateway.conformance.platforms.findings import Evidence
from gateway.conformance.platforms.node import CheckedNode, Identity
from gateway.conformance.platforms.partner import Partner
from gateway.conformance.platforms.trial import ComponentName, Trial, TrialOptions
from gateway.identity.keys import KeyPair, Keyring
from tests.inprocess import Node, running
from tests.memory_engine import Inside, MemoryEngine, Script
from tests.registry.builders import a_description, a_request

CHECK = "JG0000000000000777"  # the id of the check's own node
IMAGE = "acme:1.0.0"
PROBE = ComponentName("acme", "Probe", "1.0.0")
_PACE = Pace(longest_retry=1.0)  # ten refused polls end a job after seconds
_TIMEOUT = 30.0  # seconds for one step; a busy machine needs some


@dataclass(frozen=True)
class Site:
    """A node and the check's participants."""

    node: Node
    trial: Trial


def needs_further_address(clause: Clause) -> bool:
    """Return whether a clause needs the node's address for containers or for its platform.

    Their tests are `test_containers` and `test_operators`.
    """
    return SCENARIOS[clause.id].__module__.endswith((".containers", ".operators"))


def probe_registration() -> dict[str, Any]:
    """Return the registration of the component for the check."""
    probe = a_description(
        "Probe",
        inputParam=[],
        inputData=[],
        outputData=[],
    )
    return a_request(probe)


@contextmanager
def probing_node(
    home: Path,
    key: KeyPair | None = None,
    **listen: Any,
) -> Iterator[Node]:
    """Serve a node with the component for the check, and with a key if the check has one.

    ``listen``: the settings of listeners other than the usual ones.
    """
    if key is not None:
        Keyring(home / "state").make("ed25519")
    any_port = {"bind": "127.0.0.1:0"}
    listeners = dict.fromkeys(("peer", "container", "operator"), any_port) | listen
    make_engine = MemoryEngine.making({IMAGE: Script(body=tell_token)})
    # A node logs each bad request of the check, which says nothing about a test.
    with (
        capture_logs(),
        running(home, make_engine=make_engine, pace=_PACE, listen=listeners) as node,
    ):
        response = node.post("/v2/provider/register", probe_registration())
        assert response.json()["code"] == 0, response.text
        yield node


@contextmanager
def checked_node(
    home: Path,
    key: KeyPair | None = None,
    **route: Any,
) -> Iterator[Site]:
    """Serve a node with a route to the check; ``route`` are further fields of that route.

    With ``key`` the check signs its requests and responses, and the node has a key, too.
    """
    evidence = Evidence()
    partner = Partner(("127.0.0.1", 0), evidence, key)
    with probing_node(home, key) as node:
        entry = {"url": f"http://127.0.0.1:{partner.port}", **route}
        Path(str(node.settings.route_table.file)).write_text(yaml.safe_dump({CHECK: entry}))
        node.routes.reload()
        client = CheckedNode(
            node.addresses()["peer"],
            node.settings.node.id,
            Identity(CHECK, key),
            evidence,
            per_second=1000,
        )
        transport = CheckedNode(
            node.addresses()["container"],
            node.settings.node.id,
            Identity(CHECK),
            evidence,
            per_second=1000,
        )
        trial = Trial(
            client,
            partner,
            evidence,
            TrialOptions(PROBE, _TIMEOUT),
            transport,
        )
        try:
            yield Site(node, trial)
        finally:
            client.close()
            transport.close()
            partner.close()


def tell_token(spec: LaunchSpec, inside: Inside) -> int:
    """Run as the component of the check: tell the token, and stay if the check takes it."""
    variables = spec.environment
    token = variables["config.token"]
    message = {
        "topic": TOKEN_TOPIC,
        "payload": b64encode(token.encode()).decode(),
    }
    headers = {
        "x-ptp-session-id": variables["config.session_id"],
        "x-ptp-token": token,
        "x-ptp-target-node-id": variables["config.node_id.host.0"],
    }
    url = f"http://{variables['system.transport']}{PUSH}"
    with httpx.Client(trust_env=False) as client:
        response = client.post(
            url,
            json=message,
            headers=headers,
        )
    if response.json()["code"] == SUCCESS:
        inside.asked_to_end.wait()
    return 0
