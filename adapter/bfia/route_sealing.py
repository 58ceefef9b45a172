"""The step "sealing" of a route's test: what protects containers' messages, in both directions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapter.bfia.channel.codec import (
    INVOKE,
    NOT_FOUND,
    Ptp,
    decode_answer,
    invoke_headers,
)
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.sealing import sealer_for
from adapter.bfia.peer import Peer
from gateway.domain.entries import as_mapping
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Invalid
from gateway.identity.seals import Seals
from gateway.runtime import trials
from gateway.runtime.trials import Step
from route_table.model import Route

_PEEK = "/v1/interconn/chan/peek"
_SESSION = "session_route-test"
_TOPIC = "route-test"

_ACCEPT_REMEDY = (
    "accept the partner's present invitation, and have it accept this node's (bfia-gateway partner "
    "accept --replace)"
)


def sealing_facts(route: Route | None, seals: Seals | None) -> dict[str, str]:
    """Return the answer of `hello` about the seal of messages between this node and a peer.

    ``route``: the peer's entry here; None without one.
    """
    if route is None:
        return {}
    sealed_to = ""
    if route.sends_sealed and route.sealing_key:
        sealed_to = route.sealing_key
    key = ""
    if seals is not None:
        key = seals.sealing_key or ""
    return {"mode": route.sealing_mode, "sealed_to": sealed_to, "key": key}


@dataclass(frozen=True)
class SealingTest:
    """What the step needs."""

    peer: Peer
    route: Route
    me: NodeId
    seals: Seals | None
    greeting: Mapping[str, Any]  # the peer's response to hello

    def step(self) -> Step:
        """Return the outcome: how messages are sent and received; it fails if none would pass."""
        facts = as_mapping(self.greeting.get("sealing"))
        mode_here = self.route.sealing_mode
        mode_there = str(facts.get("mode", "off"))
        if not self.route.sends_sealed and mode_there == "required":
            text = "the peer takes sealed messages only, and this node sends unsealed ones"
            return trials.failed(text, _ACCEPT_REMEDY)
        sealed_to = str(facts.get("sealed_to", ""))
        if mode_here == "required" and not sealed_to:
            text = "this node takes sealed messages only, and the peer sends unsealed ones"
            return trials.failed(text, _ACCEPT_REMEDY)
        if sealed_to and not self._is_own_key(sealed_to):
            text = "the peer seals to a key that is not this node's"
            return trials.failed(text, _ACCEPT_REMEDY)
        if self.route.sends_sealed:
            fault = self._probe()
            if fault:
                text = f"the peer does not open a sealed message: {fault}"
                return trials.failed(text, _ACCEPT_REMEDY)
        if not self.route.sends_sealed and not sealed_to:
            return trials.skipped("messages are not sealed in either direction")
        sent = _word(self.route.sends_sealed, mode_there)
        received = _word(bool(sealed_to), mode_here)
        return trials.ok(f"sent: {sent}; received: {received}")

    def _is_own_key(self, sealed_to: str) -> bool:
        """True if the peer seals to the sealing key of this node."""
        return self.seals is not None and sealed_to == self.seals.sealing_key

    def _probe(self) -> str:
        """Send a sealed peek, which stores nothing; return the fault of the answer, "" for none.

        The peer checks the seal first, and then answers that it serves no peek between nodes.
        """
        ptp = Ptp(session=_SESSION, topic=_TOPIC)
        try:
            sealer = sealer_for(self.seals, ptp, self.route, self.me, "route-test")
        except GatewayError as error:
            return error.message
        assert sealer is not None  # the route sends only sealed messages
        body = b"".join(sealer.seal_whole([]))
        headers = invoke_headers(
            sealer.ptp,
            node=self.me,
            institution="",
            message_id=sealer.ptp.message_id,
            token="",
            encapsulated=False,
        )
        headers |= sealer.seal.headers()
        headers["x-ptp-uri"] = _PEEK
        headers["content-type"] = Form.PROTOBUF.value
        _, content = self.peer.invoke(INVOKE, body, headers)
        try:
            response = decode_answer(content, Form.PROTOBUF.value)
        except Invalid:
            return "it gives no answer of a transport"
        if response.code == NOT_FOUND:
            return ""
        return f"{response.code} {response.message}".strip()


def _word(is_sealed: bool, receiver_mode: str) -> str:
    """Return how messages of one direction are protected."""
    if not is_sealed:
        return "unsealed"
    if receiver_mode == "required":
        return "sealed, and unsealed ones are refused"
    return "sealed"
