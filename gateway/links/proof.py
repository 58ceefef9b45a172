"""The proof of identity at the opening of a link, in three messages.

The dialled end sends a random challenge. The dialling end signs it, together with both
ids and a challenge of its own, which the other end signs in turn. So neither can be played by a
third node, not even by a node with a record of an earlier opening. Statements are signed as in
`gateway.identity.statements`; each direction has its own type, so that none can be sent back.
Two gateways of one node do the same with the node's key and further types.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from gateway.identity.statements import open_envelope, sign_statement
from route_table.model import NODE_ID, Route

if TYPE_CHECKING:  # an idle node without links needs no WebSockets, which take 2 MB
    from gateway.links.carrier import Carrier

OPENING = "application/vnd.bfia-gateway.link-opening+json"
ACCEPTANCE = "application/vnd.bfia-gateway.link-acceptance+json"
GATEWAY_OPENING = "application/vnd.bfia-gateway.gateway-opening+json"
GATEWAY_ACCEPTANCE = "application/vnd.bfia-gateway.gateway-acceptance+json"
# Reasons of a refused link; see gateway/language/reasons.yml.
NOT_EXPECTED = "LINK_NOT_EXPECTED"
UNPROVEN = "LINK_UNPROVEN"
# Entries of an opening between two gateways: the dialled one, and the node of the link.
GATEWAY = "gateway"
PARTNER = "partner"
_CHALLENGE_BYTES = 32
_MAX_CAUSE = 500  # characters of a refusal that are repeated
_MAX_REASON = 64  # characters
_MAX_NAME = 200  # characters of a gateway's name


class LinkRefused(Exception):
    """A link is not opened; ``reason`` is symbolic, the text says the cause."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Ends:
    """Both ends of a link that is being opened, as one of them sees the other."""

    me: NodeId
    peer: NodeId  # of the other end
    keys: Sequence[str]  # public keys of the other end
    opening: str = OPENING  # types of the signed statements
    acceptance: str = ACCEPTANCE
    details: Mapping[str, str] = field(default_factory=dict)  # signed, too

    def statement(
        self,
        source: NodeId,
        target: NodeId,
        challenge: str,
        nonce: str,
    ) -> Mapping[str, str]:
        """Return the content that one end signs.

        ``challenge`` is that of the end that checks the signature, ``nonce`` the signing end's own.
        """
        return {
            "from": source,
            "to": target,
            "challenge": challenge,
            "nonce": nonce,
            **self.details,
        }


def between_nodes(me: NodeId, route: Route) -> Ends:
    """Return the ends of a link to a route's node."""
    return Ends(
        me,
        route.node,
        route.keys,
    )


def between_gateways(
    me: NodeId,
    pair: KeyPair,
    gateway: str,
    partner: NodeId,
) -> Ends:
    """Return the ends of a connection between two gateways of one node.

    ``gateway`` is the dialled one, where links of ``partner`` end.
    """
    return Ends(
        me,
        me,
        (pair.public,),
        GATEWAY_OPENING,
        GATEWAY_ACCEPTANCE,
        {GATEWAY: gateway, PARTNER: partner},
    )


# ------------------------------------------------------------ the dialling end


async def prove_to(
    carrier: "Carrier",
    ends: Ends,
    pair: KeyPair,
) -> None:
    """Open a link to the other end.

    Raises `LinkRefused` if it refuses or does not prove its own identity, and `LinkLost`.
    """
    greeting = _read(await carrier.receive())
    challenge = str(greeting.get("challenge", ""))
    nonce = secrets.token_hex(_CHALLENGE_BYTES)
    statement = ends.statement(
        ends.me,
        ends.peer,
        challenge,
        nonce,
    )
    envelope = sign_statement(pair, ends.opening, statement)
    opening = {
        "node": ends.me,
        "opening": envelope,
        **ends.details,
    }
    await carrier.send(_message(opening))
    answer = _read(await carrier.receive())
    if "refused" in answer:
        cause = str(answer.get("message", ""))[:_MAX_CAUSE]
        reason = str(answer["refused"])[:_MAX_REASON]
        raise LinkRefused(f"{ends.peer} refuses the link: {cause}", reason)
    expected = ends.statement(
        ends.peer,
        ends.me,
        nonce,
        challenge,
    )
    _check(
        answer.get("acceptance"),
        ends.acceptance,
        expected,
        ends,
    )


# ------------------------------------------------------------ the dialled end


@dataclass(frozen=True)
class Claim:
    """A node that wants to open a link, not yet believed."""

    node: NodeId
    envelope: Any
    challenge: str  # this end's
    gateway: str = ""  # the dialled one, in an opening by another gateway of the dialled node
    partner: NodeId = ""  # whose links that gateway wants to use


async def ask_for_proof(carrier: "Carrier") -> Claim:
    """Send a challenge and return the claim. Raises `LinkLost`, `LinkRefused`."""
    challenge = secrets.token_hex(_CHALLENGE_BYTES)
    await carrier.send(_message({"challenge": challenge}))
    message = _read(await carrier.receive())
    node = message.get("node")
    if not isinstance(node, str) or not NODE_ID.fullmatch(node):
        raise LinkRefused("the opening of the link names no node", UNPROVEN)
    return Claim(
        node,
        message.get("opening"),
        challenge,
        gateway=str(message.get(GATEWAY, ""))[:_MAX_NAME],
        partner=str(message.get(PARTNER, ""))[:_MAX_NAME],
    )


def check_proof(claim: Claim, ends: Ends) -> str:
    """Check a claim by the keys of the other end; return the challenge of that end.

    Raises `LinkRefused`.
    """
    nonce = str(_open(claim.envelope, ends.opening, ends).get("nonce", ""))
    expected = ends.statement(
        ends.peer,
        ends.me,
        claim.challenge,
        nonce,
    )
    _check(
        claim.envelope,
        ends.opening,
        expected,
        ends,
    )
    return nonce


async def accept(
    carrier: "Carrier",
    claim: Claim,
    ends: Ends,
    nonce: str,
    pair: KeyPair,
) -> None:
    """Accept a link, and prove this end's identity in turn; ``nonce`` is from `check_proof`.

    Raises `LinkLost`.
    """
    statement = ends.statement(
        ends.me,
        ends.peer,
        nonce,
        claim.challenge,
    )
    envelope = sign_statement(pair, ends.acceptance, statement)
    await carrier.send(_message({"acceptance": envelope}))


def check_key(claim: Claim, ends: Ends) -> None:
    """Raise `LinkRefused` unless one of the keys of the other end has signed a claim."""
    _open(claim.envelope, ends.opening, ends)


async def refuse(carrier: "Carrier", refused: LinkRefused) -> None:
    """Tell the other end why its link is refused. Raises `LinkLost`."""
    refusal = {
        "refused": refused.reason,
        "message": str(refused),
    }
    await carrier.send(_message(refusal))


# ------------------------------------------------------------ messages


def _check(
    envelope: Any,
    kind: str,
    expected: Mapping[str, str],
    ends: Ends,
) -> None:
    """Raise `LinkRefused` unless the other end has signed exactly the expected statement."""
    if _open(envelope, kind, ends) != expected:
        text = f"the signature of {ends.peer} is for another opening of a link"
        raise LinkRefused(text, UNPROVEN)


def _open(
    envelope: Any,
    kind: str,
    ends: Ends,
) -> Mapping[str, Any]:
    """Return the signed content. Raises `LinkRefused` for a wrong signature."""
    try:
        content, _ = open_envelope(envelope, kind, ends.keys)
    except ValueError as error:
        text = f"no key in the route of {ends.peer} has signed the opening of the link: {error}"
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
