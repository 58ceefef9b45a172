"""The proof of identity at the opening of a link, in three messages.

The dialled node sends a random challenge. The dialling node signs it, together with both
ids and a challenge of its own, which the other node signs in turn. So neither can be played by a
third node, not even by a node with a record of an earlier opening. Statements are signed as in
`gateway.identity.statements`; each direction has its own type, so that none can be sent back.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from gateway.identity.statements import open_envelope, sign_statement
from gateway.links.carrier import Carrier
from route_table.model import NODE_ID, Route

OPENING = "application/vnd.bfia-gateway.link-opening+json"
ACCEPTANCE = "application/vnd.bfia-gateway.link-acceptance+json"
# Reasons of a refused link; see gateway/language/reasons.yml.
NOT_EXPECTED = "LINK_NOT_EXPECTED"
UNPROVEN = "LINK_UNPROVEN"
_CHALLENGE_BYTES = 32
_MAX_CAUSE = 500  # characters of a refusal that are repeated
_MAX_REASON = 64  # characters


class LinkRefused(Exception):
    """A link is not opened; ``reason`` is symbolic, the text says the cause."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class _Statement:
    """The signed content of one end: both ids, and the challenge of the other end."""

    source: NodeId
    target: NodeId
    challenge: str  # of the end that checks the signature
    nonce: str  # the signing end's own challenge

    def content(self) -> Mapping[str, str]:
        """Return the signed content."""
        return {
            "from": self.source,
            "to": self.target,
            "challenge": self.challenge,
            "nonce": self.nonce,
        }


# ------------------------------------------------------------ the dialling end


async def prove_to(
    carrier: Carrier,
    me: NodeId,
    route: Route,
    pair: KeyPair,
) -> None:
    """Open a link to the route's node.

    Raises `LinkRefused` if the node refuses or does not prove its own identity, and `LinkLost`.
    """
    greeting = _read(await carrier.receive())
    challenge = str(greeting.get("challenge", ""))
    nonce = secrets.token_hex(_CHALLENGE_BYTES)
    statement = _Statement(me, route.node, challenge, nonce)
    envelope = sign_statement(pair, OPENING, statement.content())
    opening = {
        "node": me,
        "opening": envelope,
    }
    await carrier.send(_message(opening))
    answer = _read(await carrier.receive())
    if "refused" in answer:
        cause = str(answer.get("message", ""))[:_MAX_CAUSE]
        reason = str(answer["refused"])[:_MAX_REASON]
        raise LinkRefused(f"{route.node} refuses the link: {cause}", reason)
    expected = _Statement(route.node, me, nonce, challenge)
    _check(
        answer.get("acceptance"),
        ACCEPTANCE,
        expected,
        route,
    )


# ------------------------------------------------------------ the dialled end


@dataclass(frozen=True)
class Claim:
    """A node that wants to open a link, not yet believed."""

    node: NodeId
    envelope: Any
    challenge: str  # this end's


async def ask_for_proof(carrier: Carrier) -> Claim:
    """Send a challenge and return the claim. Raises `LinkLost`, `LinkRefused`."""
    challenge = secrets.token_hex(_CHALLENGE_BYTES)
    await carrier.send(_message({"challenge": challenge}))
    message = _read(await carrier.receive())
    node = message.get("node")
    if not isinstance(node, str) or not NODE_ID.fullmatch(node):
        raise LinkRefused("the opening of the link names no node", UNPROVEN)
    return Claim(node, message.get("opening"), challenge)


async def accept_proof(
    carrier: Carrier,
    me: NodeId,
    claim: Claim,
    route: Route,
    pair: KeyPair,
) -> None:
    """Check a claim by the keys in the node's route, and prove this node's identity in turn.

    Raises `LinkRefused`, `LinkLost`.
    """
    nonce = _nonce_in(claim.envelope, route)
    expected = _Statement(
        source=claim.node,
        target=me,
        challenge=claim.challenge,
        nonce=nonce,
    )
    _check(
        claim.envelope,
        OPENING,
        expected,
        route,
    )
    statement = _Statement(
        source=me,
        target=claim.node,
        challenge=nonce,
        nonce=claim.challenge,
    )
    envelope = sign_statement(pair, ACCEPTANCE, statement.content())
    await carrier.send(_message({"acceptance": envelope}))


def check_key(claim: Claim, route: Route) -> None:
    """Raise `LinkRefused` unless one of the keys in a route has signed a claim."""
    _open(claim.envelope, OPENING, route)


async def refuse(carrier: Carrier, refused: LinkRefused) -> None:
    """Tell the other end why its link is refused. Raises `LinkLost`."""
    refusal = {
        "refused": refused.reason,
        "message": str(refused),
    }
    await carrier.send(_message(refusal))


# ------------------------------------------------------------ messages


def _nonce_in(envelope: Any, route: Route) -> str:
    """Return the challenge of the dialling end. Raises `LinkRefused` for a wrong signature."""
    return str(_open(envelope, OPENING, route).get("nonce", ""))


def _check(
    envelope: Any,
    kind: str,
    expected: _Statement,
    route: Route,
) -> None:
    """Raise `LinkRefused` unless the route's node has signed exactly the expected statement."""
    if _open(envelope, kind, route) != expected.content():
        text = f"the signature of {route.node} is for another opening of a link"
        raise LinkRefused(text, UNPROVEN)


def _open(envelope: Any, kind: str, route: Route) -> Mapping[str, Any]:
    """Return the signed content. Raises `LinkRefused` for a wrong signature."""
    try:
        content, _ = open_envelope(envelope, kind, route.keys)
    except ValueError as error:
        text = f"no key in the route of {route.node} has signed the opening of the link: {error}"
        raise LinkRefused(text, UNPROVEN) from error
    return content


def _message(content: Mapping[str, Any]) -> bytes:
    """Return a message of the opening."""
    return json.dumps(content).encode()


def _read(message: bytes) -> Mapping[str, Any]:
    """Return the content of a message of the opening. Raises `LinkRefused` for anything else."""
    try:
        content = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise LinkRefused("the other end does not speak the protocol of links", UNPROVEN) from error
    if not isinstance(content, dict):
        raise LinkRefused("the other end does not speak the protocol of links", UNPROVEN)
    return content
