"""What this node sends to partners about applications: `gateway.jobs.applications.Calls` over HTTP."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
_NOT_COMPARED = "KEY_NOT_COMPARED"
_KEY_ID = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Card:
    """Who this node is to partners."""

    node: NodeId
    institution: str
    address: Callable[[], str]
    key: Callable[[], KeyPair | None]

    def shown(self) -> dict[str, Any]:
        """Return what every node may know, the public key that signs among it."""
        return {**self.public(), **(self.credentials() if self.key() is not None else {})}

    def public(self) -> dict[str, Any]:
        """Return how this node describes itself."""
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

    def partner_keys(self, new: Application, key: str) -> tuple[str, ...]:
        """Return the public keys that have to sign the partner's answers about a contract: its route's, if any.

        ``key``: the key, or its id, as a person has compared it. Without one the card counts that the address
        shows over TLS. Raises `Invalid` where there is none, unless the partner need not sign.
        """
        route = self._route_of(new.partner)
        if route is not None and route.keys:
            _check_key_in_route(route, key)
            return route.keys
        if key:
            return (self._compared_key(new, key),)
        if new.signing == "off":
            return ()
        over_tls = new.url.lower().startswith("https://") and (route is None or route.via is None)
        card_key = self._key_on_card(new) if over_tls else ""
        if card_key:
            return (card_key,)
        if new.signing == "accepted":
            return ()
        rule = "must be the partner's public key or its id, compared by telephone, as its address is not https"
        if over_tls:
            rule = (
                "must be the partner's public key, compared by telephone, as its product shows none"
            )
        raise Invalid([Problem("key", rule)], reason=_NOT_COMPARED)

    def _compared_key(self, new: Application, key: str) -> str:
        """Return the public key that a person has compared: itself, or of that id on the partner's card."""
        if not _KEY_ID.fullmatch(key):
            try:
                return wire.key_of(key)
            except ValueError:
                rule = "must be a public key (PEM or base64), or its id: sha256: and 64 hexadecimal digits"
                raise Invalid([Problem("key", rule, key)]) from None
        card_key = self._key_on_card(new)
        if not card_key:
            rule = f"must be the public key itself, as {new.partner} shows none"
            raise Invalid([Problem("key", rule, key)], reason=_NOT_COMPARED)
        if _id_of(card_key) != key:
            rule = f"is not the key that {new.partner} shows: {_id_of(card_key)}"
            raise Invalid([Problem("key", rule, key)], reason=_NOT_COMPARED)
        return card_key

    def _key_on_card(self, new: Application) -> str:
        """Return the public key that a node shows to everybody at the address applied to; empty: none."""
        card = self._peer(new).ask(
            f"{INTERCONN}/node/query", {}, "GET", query={"node_id": new.partner}
        )
        credential = card.get("auth_credential")
        if card.get("node_id") != new.partner or not isinstance(credential, str):
            return ""
        try:
            return wire.key_of(credential)
        except ValueError:
            return ""

    def apply(self, new: Application) -> str:
        """Send an application; the id of a contract is chosen by its owner."""
        if new.kind is not Kind.CONTRACT:
            body = {"audit_id": new.id, **new.request}
            self._peer(new).ask(f"{INTERCONN}/{new.kind}/audit/apply", body)
            return new.id
        data = self._peer(new).ask(f"{INTERCONN}/node/contract/apply", new.request)
        found = data.get("contract_id")
        if not isinstance(found, str) or not 1 <= len(found) <= 100:
            raise Refused(
                f"{new.partner} answers a success without a contract_id", reason="NO_ENVELOPE"
            )
        return found

    def deliver(self, known: Application) -> None:
        """Send ``confirm`` or ``terminate``."""
        body = {_id_name(known): known.id}
        if known.notice == "confirm":
            body |= {"status": str(known.status), **confirmation(self._card, known)}
        self._peer(known).ask(f"{_base(known)}/{known.notice}", body)

    def query(self, known: Application) -> Answer:
        """Query the state; nodes of ours include what their confirmation has."""
        peer = self._proven_peer(known) if known.kind is Kind.CONTRACT else self._peer(known)
        data = peer.ask(f"{_base(known)}/query", {}, "GET", query={_id_name(known): known.id})
        model = wire.ConfirmContract if known.kind is Kind.CONTRACT else wire.Confirm
        try:
            return answered(model.model_validate({_id_name(known): known.id, **data}))
        except ValidationError as error:
            text = "; ".join(map(str, problems_of(error.errors(), model)))
            raise Refused(f"{known.partner}: {text}", reason="NO_ENVELOPE") from None

    def listed(
        self,
        partner: NodeId,
        path: str,
        query: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Return what a partner answers to a list or a query of what it offers."""
        return self._peer_of(partner, None).ask(f"{INTERCONN}/{path}", {}, "GET", query=query)

    def _peer(self, known: Application) -> Peer:
        if known.kind is not Kind.CONTRACT:
            return self._peer_of(known.partner, None)
        return self._peer_of(known.partner, self._contract_route(known))

    def _proven_peer(self, known: Application) -> Peer:
        """Return the client whose answers have to be signed by the key that was compared for a contract."""
        route = self._contract_route(known)
        if not route.keys:
            route = replace(route, keys=known.keys, signing=known.signing)
        return self._peer_of(known.partner, route)

    def _contract_route(self, known: Application) -> Route:
        """Return the route of a partner, which it may not have yet: one that is there says how TLS is done."""
        route = self._route_of(known.partner)
        return route or Route(known.partner, known.url.rstrip("/"), signing="accepted")


def _id_of(key: str) -> str:
    return key_pin(public_key(key))


def _check_key_in_route(route: Route, key: str) -> None:
    """Raise `Invalid` for a compared key that is not one of the route's."""
    ids = [_id_of(one) for one in route.keys]
    if key and key not in (*ids, *route.keys):
        rule = f"must be in the route of {route.node}, which has {', '.join(ids)}: edit the route first"
        raise Invalid([Problem("key", rule, key)], reason=_NOT_COMPARED)


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
    key = ""
    if body.status is APPROVED:
        if isinstance(body, wire.ConfirmContract):
            named = {"auth_credential": body.auth_credential, "auth_type": body.auth_type}
            credentials = named if body.auth_credential else {}
            key = wire.key_of(body.auth_credential) if body.auth_credential else ""
            granted = {"expires_at": body.expired_time} if body.expired_time else {}
        elif permit := body.resource_permit:
            granted = {"token": permit.token, "level": permit.resource_level}
            granted |= {"expires_at": permit.time_limit, "most_jobs": permit.times_limit}
    return Answer(body.status, granted, credentials, key)


def _base(known: Application) -> str:
    return (
        f"{INTERCONN}/node/contract"
        if known.kind is Kind.CONTRACT
        else f"{INTERCONN}/{known.kind}/audit"
    )


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
    signing: str = "required",
) -> Application:
    """Return an application of this node. Raises `Invalid` with every problem."""
    problems = []
    if not NODE_ID.fullmatch(partner) or partner == card.node:
        problems.append(Problem("partner", f"must be the id of another node; {NODE_RULE}", partner))
    if expires_at is not None and expires_at <= now:
        problems.append(
            Problem("expires_at", f"must lie in the future; it is {moment(now)}", expires_at)
        )
    if kind is Kind.CONTRACT:
        if not re.fullmatch(r"https?://[\x21-\x7e]+", url):
            problems.append(Problem("url", "must be where the partner is reached, https://…", url))
        model: type[BaseModel] = wire.ApplyContract
        given = {
            **card.public(),
            **card.credentials(),
            "expired_time": wire.milliseconds(expires_at),
        }
        given = {
            **given,
            **({"address": address} if address else {}),
            **fields,
        }
        if urlsplit(str(given["address"])).hostname in (
            "0.0.0.0",
            "::",
        ):  # it says on which addresses it listens
            rule = "must be where the partner reaches this node: give --address, or set listen.peer.advertise"
            problems.append(Problem("address", rule, given["address"]))
    else:
        one = wire.AUDITED[kind]
        model = one.body
        given = {
            "contract_id": contract_id,
            one.subject: subject,
            **fields,
        }
        if kind is Kind.DATASET:
            given |= {"time_limit": wire.milliseconds(expires_at), "times_limit": jobs or 0}
    try:
        model.model_validate({"audit_id": "-", **given})
    except ValidationError as error:
        problems += problems_of(error.errors(), model)
    if problems:
        raise Invalid(problems)
    return applied(
        kind, "", partner, Side.MINE, subject or partner, given, now, expires_at, jobs, url, signing
    )


def key_ids(known: Application, route_keys: Sequence[str]) -> str:
    """Return the ids of a partner's keys for a contract; empty: none.

    What its application brings, while nobody has decided; then what its route has.
    """
    if known.kind is not Kind.CONTRACT:
        return ""
    keys: Sequence[str] = known.keys
    if known.status is APPROVED:
        keys = route_keys
    elif known.side is Side.THEIRS:
        keys = [wire.key_of(known.request["auth_credential"])]
    elif route_keys:
        keys = route_keys
    return ", ".join(map(_id_of, keys))
