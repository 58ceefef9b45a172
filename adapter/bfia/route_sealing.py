"""The step "sealing" of a route's test: what is sealed between two nodes, in both directions."""

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
from adapter.bfia.peer import PROFILE_QUESTION, Peer
from adapter.bfia.peer_response import message_of, reason_of
from gateway.domain.entries import as_mapping
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Invalid
from gateway.identity.sealing import SEAL_REASONS
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
    """Return the answer of `hello` about the seals between this node and a peer.

    ``route``: the peer's entry here; None without one.
    """
    if route is None:
        return {}
    key = ""
    if seals is not None:
        key = seals.sealing_key or ""
    return {
        "mode": route.sealing_mode,
        "sealed_to": _key_if(route.sends_sealed, route),
        "key": key,
        "control": route.control_sealing,
        "control_sealed_to": _key_if(route.seals_control, route),
    }


def _key_if(is_sealed: bool, route: Route) -> str:
    """Return the key to which messages are sealed; "" if they are not."""
    if not is_sealed:
        return ""
    return route.sealing_key or ""


@dataclass(frozen=True)
class _Kind:
    """Messages of containers, or control requests, as both nodes seal them."""

    is_sent_sealed: bool
    mode_here: str  # for received ones
    mode_there: str
    sealed_to: str  # the key to which the peer seals; "" if it sends them unsealed
    refused_there: str  # the fault that the peer refuses what this node sends
    refused_here: str  # the fault that this node refuses what the peer sends
    remedy: str  # of both faults

    @property
    def is_sealed(self) -> bool:
        """True if they are sealed in at least one direction."""
        return self.is_sent_sealed or bool(self.sealed_to)

    def contradiction(self) -> Step | None:
        """Return the failure if one node refuses what the other sends; None if none does."""
        if not self.is_sent_sealed and self.mode_there == "required":
            return trials.failed(self.refused_there, self.remedy)
        if self.mode_here == "required" and not self.sealed_to:
            return trials.failed(self.refused_here, self.remedy)
        return None

    @property
    def sent(self) -> str:
        """How those are protected that this node sends."""
        return _word(self.is_sent_sealed, self.mode_there)

    @property
    def received(self) -> str:
        """How those are protected that the peer sends."""
        return _word(bool(self.sealed_to), self.mode_here)


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
        messages = self._messages()
        control = self._control_requests()
        for kind in (messages, control):
            failure = kind.contradiction()
            if failure is not None:
                return failure
            if kind.sealed_to and not self._is_own_key(kind.sealed_to):
                text = "the peer seals to a key that is not this node's"
                return trials.failed(text, _ACCEPT_REMEDY)
        failure = self._probe_messages() or self._probe_control()
        if failure is not None:
            return failure
        if control.is_sealed:
            text = (
                f"sent: {messages.sent}; received: {messages.received}; control requests sent: "
                f"{control.sent}; received: {control.received}"
            )
            return trials.ok(text)
        if not messages.is_sealed:
            return trials.skipped("messages are not sealed in either direction")
        return trials.ok(f"sent: {messages.sent}; received: {messages.received}")

    def _messages(self) -> _Kind:
        """Return how both nodes seal messages of containers."""
        facts = as_mapping(self.greeting.get("sealing"))
        return _Kind(
            is_sent_sealed=self.route.sends_sealed,
            mode_here=self.route.sealing_mode,
            mode_there=str(facts.get("mode", "off")),
            sealed_to=str(facts.get("sealed_to", "")),
            refused_there="the peer takes sealed messages only, and this node sends unsealed ones",
            refused_here="this node takes sealed messages only, and the peer sends unsealed ones",
            remedy=_ACCEPT_REMEDY,
        )

    def _control_requests(self) -> _Kind:
        """Return how both nodes seal control requests."""
        facts = as_mapping(self.greeting.get("sealing"))
        return _Kind(
            is_sent_sealed=self.route.seals_control,
            mode_here=self.route.control_sealing,
            mode_there=str(facts.get("control", "off")),
            sealed_to=str(facts.get("control_sealed_to", "")),
            refused_there=(
                "the peer takes sealed control requests only, and this node sends unsealed ones"
            ),
            refused_here=(
                "this node takes sealed control requests only, and the peer sends unsealed ones"
            ),
            remedy=(
                f"seal them at both nodes: bfia-gateway route edit {self.route.node} "
                "--control-sealing required here, and at the peer bfia-gateway route edit "
                f"{self.me} --control-sealing required"
            ),
        )

    def _probe_messages(self) -> Step | None:
        """Return the failure if the peer does not open a message; None if it does, or none is sent
        sealed.
        """
        if not self.route.sends_sealed:
            return None
        fault = self._probe()
        if not fault:
            return None
        text = f"the peer does not open a sealed message: {fault}"
        return trials.failed(text, _ACCEPT_REMEDY)

    def _probe_control(self) -> Step | None:
        """Ask for the state of a task that no node has, sealed.

        Return the failure if the peer does not open the request; None if it does, or if control
        requests are sent unsealed.
        """
        if not self.route.seals_control:
            return None
        fault = ""
        try:
            _, response = self.peer.raw("POST", "/task/poll", PROFILE_QUESTION)
        except GatewayError as error:
            fault = error.message
        else:
            envelope = as_mapping(response)
            if reason_of(envelope) in SEAL_REASONS:
                fault = message_of(envelope)
        if not fault:
            return None
        text = f"the peer does not open a sealed control request: {fault}"
        return trials.failed(text, _ACCEPT_REMEDY)

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
