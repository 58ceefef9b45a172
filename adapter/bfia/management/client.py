"""What this node sends to partners about applications: `gateway.jobs.applications.Calls` over HTTP."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from adapter.bfia.management import wire
from adapter.bfia.peer import Peer
from gateway.domain.applications import APPROVED, Application, Kind, Side, applied
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId, moment
from gateway.errors import Invalid, Refused, problems_of
from gateway.identity.keys import KeyPair
from gateway.jobs.applications import Answer
from gateway.version import VERSION
from route_table.certificates import key_pin, public_key
from route_table.model import NODE_ID, NODE_RULE, Route

INTERCONN = "/v1/interconn"
SYSTEM = "bfia-gateway"


@dataclass(frozen=True)
class Card:
    """Who this node is to partners."""

    node: NodeId
    institution: str
    address: Callable[[], str]
    key: Callable[[], KeyPair | None]

    def public(self) -> dict[str, Any]:
        """Return what every node may know."""
        return {
            "node_id": self.node,
            "address": self.address(),
            "inst_id": self.institution,
            "institution": self.institution,
            "name": self.node,
            "system": SYSTEM,
            "system_version": VERSION,
            "description": "",
        }

    def credentials(self) -> dict[str, str]:
        """Return the public key that signs, as contracts have it. Raises `Refused` where there is none."""
        if (pair := self.key()) is None:
            text = "this node has no key pair: bfia-gateway identity rotate makes one"
            raise Refused(text, reason="IDENTITY_UNUSABLE")
        return {"auth_credential": pair.public, "auth_type": wire.AUTH_TYPES[pair.algorithm]}


class ManagementClient:
    """Calls partners, including those without a route."""

    def __init__(
        self,
        card: Card,
        peer_of: Callable[[NodeId, Route | None], Peer],
        route_of: Callable[[NodeId], Route | None],
    ) -> None:
        """``peer_of`` returns the client for a node, by its route or by another; ``route_of`` its own entry."""
        self._card = card
        self._peer_of = peer_of
        self._route_of = route_of

    def apply(self, new: Application) -> str:
        """Send an application; the id of a contract is chosen by its owner."""
        if new.kind is not Kind.CONTRACT:
            body = {"audit_id": new.id, **new.request}
            self._peer(new).ask(f"{INTERCONN}/{new.kind}/audit/apply", body)
            return new.id
        data = self._peer(new).ask(f"{INTERCONN}/node/contract/apply", new.request)
        found = data.get("contract_id")
        if not isinstance(found, str) or not 1 <= len(found) <= 100:
            raise Refused(f"{new.partner} answers a success without a contract_id", reason="NO_ENVELOPE")
        return found

    def deliver(self, known: Application) -> None:
        """Send ``confirm`` or ``terminate``."""
        body = {_id_name(known): known.id}
        if known.notice == "confirm":
            body |= {"status": str(known.status), **confirmation(self._card, known)}
        self._peer(known).ask(f"{_base(known)}/{known.notice}", body)

    def query(self, known: Application) -> Answer:
        """Query the state; nodes of ours include what their confirmation has."""
        data = self._peer(known).ask(f"{_base(known)}/query", {}, "GET", query={_id_name(known): known.id})
        model = wire.ConfirmContract if known.kind is Kind.CONTRACT else wire.Confirm
        try:
            return answered(model.model_validate({_id_name(known): known.id, **data}))
        except ValidationError as error:
            text = "; ".join(map(str, problems_of(error.errors(), model)))
            raise Refused(f"{known.partner}: {text}", reason="NO_ENVELOPE") from None

    def listed(self, partner: NodeId, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Return what a partner answers to a list or a query of what it offers."""
        return self._peer_of(partner, None).ask(f"{INTERCONN}/{path}", {}, "GET", query=query)

    def _peer(self, known: Application) -> Peer:
        if known.kind is not Kind.CONTRACT:
            return self._peer_of(known.partner, None)
        route = self._route_of(known.partner)
        # a route that is there says how TLS is done; one that is disabled serves to say why
        return self._peer_of(known.partner, route or Route(known.partner, known.url.rstrip("/")))


def confirmation(card: Card, known: Application) -> dict[str, Any]:
    """Return what the confirmation of an approval has beside the state."""
    if known.status is not APPROVED or known.side is not Side.THEIRS:
        return {}
    if known.kind is Kind.CONTRACT:
        return {**card.credentials(), "expired_time": wire.milliseconds(known.expires_at)}
    permit = {
        "token": known.token,
        "resource_level": wire.AUDITED[known.kind].level,
        "resource_type": str(known.kind).upper(),
        "resource_id": known.subject,
        "resource_node_id": card.node,
        "resource_inst_id": card.institution,
        "request_node_id": known.partner,
        "request_inst_id": known.partner,
        "time_limit": wire.milliseconds(known.expires_at),
        "times_limit": known.most_jobs or 0,
    }
    return {"resource_permit": permit}


def answered(body: wire.Confirm | wire.ConfirmContract) -> Answer:
    """Read a partner's answer to an application."""
    granted: dict[str, Any] = {}
    credentials: dict[str, Any] = {}
    if body.status is APPROVED:
        if isinstance(body, wire.ConfirmContract):
            named = {"auth_credential": body.auth_credential, "auth_type": body.auth_type}
            credentials = named if body.auth_credential else {}
            granted = {"expires_at": body.expired_time} if body.expired_time else {}
        elif permit := body.resource_permit:
            granted = {"token": permit.token, "level": permit.resource_level}
            granted |= {"expires_at": permit.time_limit, "most_jobs": permit.times_limit}
    return Answer(body.status, granted, credentials)


def _base(known: Application) -> str:
    return f"{INTERCONN}/node/contract" if known.kind is Kind.CONTRACT else f"{INTERCONN}/{known.kind}/audit"


def _id_name(known: Application) -> str:
    return "contract_id" if known.kind is Kind.CONTRACT else "audit_id"


def composed(
    card: Card,
    kind: Kind,
    partner: NodeId,
    subject: str,
    fields: Mapping[str, Any],
    now: datetime,
    expires_at: datetime | None = None,
    jobs: int | None = None,
    url: str = "",
    address: str = "",
    contract_id: str = "",
) -> Application:
    """Return an application of this node. Raises `Invalid` with every problem."""
    problems = []
    if not NODE_ID.fullmatch(partner) or partner == card.node:
        problems.append(Problem("partner", f"must be the id of another node; {NODE_RULE}", partner))
    if expires_at is not None and expires_at <= now:
        problems.append(Problem("expires_at", f"must lie in the future; it is {moment(now)}", expires_at))
    if kind is Kind.CONTRACT:
        if not re.fullmatch(r"https?://[\x21-\x7e]+", url):
            problems.append(Problem("url", "must be where the partner is reached, https://…", url))
        model: type[BaseModel] = wire.ApplyContract
        given = {**card.public(), **card.credentials(), "expired_time": wire.milliseconds(expires_at)}
        given = {**given, **({"address": address} if address else {}), **fields}
        if urlsplit(str(given["address"])).hostname in ("0.0.0.0", "::"):  # it says on which addresses it listens
            rule = "must be where the partner reaches this node: give --address, or set listen.peer.advertise"
            problems.append(Problem("address", rule, given["address"]))
    else:
        one = wire.AUDITED[kind]
        model = one.body
        given = {"contract_id": contract_id, one.subject: subject, **fields}
        if kind is Kind.DATASET:
            given |= {"time_limit": wire.milliseconds(expires_at), "times_limit": jobs or 0}
    try:
        model.model_validate({"audit_id": "-", **given})
    except ValidationError as error:
        problems += problems_of(error.errors(), model)
    if problems:
        raise Invalid(problems)
    return applied(kind, "", partner, Side.MINE, subject or partner, given, now, expires_at, jobs, url)


def key_id(known: Application) -> str:
    """Return the id of the key that a contract brings; empty: none."""
    given = known.request if known.side is Side.THEIRS else known.answer
    credential = given.get("auth_credential") if known.kind is Kind.CONTRACT else None
    return key_pin(public_key(wire.key_of(credential))) if credential else ""
