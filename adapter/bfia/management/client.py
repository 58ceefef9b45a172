"""Requests to partners about applications: `gateway.jobs.applications.Calls` over HTTP."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from adapter.bfia.management import wire
from adapter.bfia.paths import NODE, ROOT
from adapter.bfia.peer import Peer
from gateway.config.schema.tee import TeePolicy
from gateway.domain.applications import (
    APPROVED,
    UPDATE,
    Application,
    Kind,
    Side,
    new_application,
    requested_scope,
)
from gateway.domain.attestation import AttestationPolicy
from gateway.domain.permit_scope import read_scope
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId, moment
from gateway.errors import MISSING, GatewayError, Invalid, Refused, problems_of
from gateway.identity.keys import KeyPair
from gateway.jobs.applications import PartnerAnswer
from gateway.version import VERSION
from route_table.certificates import key_pin, public_key, signature_algorithm
from route_table.model import NODE_ID, NODE_RULE, Route

_SYSTEM = "bfia-gateway"  # this product, in the description of a node
_NOT_COMPARED = "KEY_NOT_COMPARED"
_KEY_ID = re.compile(r"sha256:[0-9a-f]{64}")
_URL = re.compile(r"https?://[\x21-\x7e]+")
_LONGEST_CONTRACT_ID = 100  # characters
_ALL_ADDRESSES = ("0.0.0.0", "::")  # a node can listen there, but is not reached there


def _no_key() -> KeyPair | None:
    """Return no key pair."""
    return None


def credentials_of(key: str) -> dict[str, str]:
    """Return a public key, in the form of routes, in the form of contracts."""
    algorithm = signature_algorithm(public_key(key))
    return {
        "auth_credential": key,
        "auth_type": wire.AUTH_TYPES[algorithm],
    }


@dataclass(frozen=True)
class Card:
    """This node, as partners see it."""

    node: NodeId
    institution: str
    address: Callable[[], str]  # returns the URL at which partners reach this node
    key: Callable[[], KeyPair | None]  # returns None if this node has no key pair
    # Returns the institution of a partner, by default the partner's id
    institution_of: Callable[[NodeId], str]
    sealing_key: str | None = None  # to which messages for this node are sealed; None without one

    def fields(self) -> dict[str, Any]:
        """Return this node's description of itself, with its public signing key if it has one."""
        if self.key() is None:
            return self.public()
        return {**self.public(), **self.credentials()}

    def public(self) -> dict[str, Any]:
        """Return this node's description of itself, without its key."""
        return {
            "node_id": self.node,
            "address": self.address(),
            "inst_id": self.institution,
            "institution": self.institution,
            "name": self.node,
            "system": _SYSTEM,
            "system_version": VERSION,
            "description": "",
        }

    def credentials(self) -> dict[str, str]:
        """Return the public keys in the form of contracts. Raises `Refused` without a signing key.

        The key to which messages are sealed is an extension of the standard.
        """
        pair = self.key()
        if pair is None:
            text = "this node has no key pair: bfia-gateway identity rotate makes one"
            raise Refused(text, reason="IDENTITY_UNUSABLE")
        credentials = credentials_of(pair.public)
        if self.sealing_key is not None:
            credentials["sealing_key"] = self.sealing_key
        return credentials


@dataclass(frozen=True)
class Draft:
    """An application that a person of this node has asked for, not checked yet."""

    kind: Kind
    partner: NodeId
    subject: str  # id of the dataset, project, flow or model; empty for contracts
    fields: Mapping[str, Any]  # further fields of the request
    expires_at: datetime | None = None
    jobs: int | None = None  # jobs that may use it; None: any number
    # Of a dataset: limits of the permit, the ids by the standard's keys; empty: none.
    scope: Mapping[str, Sequence[str]] = field(default_factory=dict)
    url: str = ""  # of a contract: the partner's URL
    address: str = ""  # of a contract: this node's URL; empty: as this node advertises itself
    contract_id: str = ""
    signing: str = "required"  # of a contract: as the setting of a route
    tee: AttestationPolicy | None = None  # of a contract: the attestation reports of runs


class ManagementClient:
    """Calls partners, including partners without a route."""

    def __init__(
        self,
        card: Card,
        peer_of: Callable[[NodeId, Route | None], Peer],
        route_of: Callable[[NodeId], Route | None],
        previous_key: Callable[[], KeyPair | None] = _no_key,
    ) -> None:
        """``peer_of`` returns the client for a node by a route; None: by the node's stored route.

        ``route_of`` returns the stored route of a node; None without one. ``previous_key`` returns
        the key pair from before a rotation that some partners have not acknowledged; None without
        one.
        """
        self._card = card
        self._peer_of = peer_of
        self._route_of = route_of
        self._previous_key = previous_key

    def partner_keys(
        self,
        new: Application,
        key: str,
    ) -> tuple[str, ...]:
        """Return the public keys that must sign the partner's messages about a contract.

        These are the keys of the partner's route, or else ``key``: a public key or its id, compared
        by a person. Without both it is the key that the partner shows over TLS on its card, the
        description that the partner gives of itself. Empty without any key, if the partner need not
        sign. Raises `Invalid` if the partner has to sign and no key can be trusted, and for a
        ``key`` that is not the partner's.
        """
        route = self._route_of(new.partner)
        if route is not None and route.keys:
            _check_key_in_route(route, key)
            return route.keys
        if key:
            return (self._compared_key(new, key),)
        if new.signing == "off":
            return ()
        over_tls = _is_direct_tls(new, route)
        card_key = ""
        if over_tls:
            card_key = self._key_on_card(new)
        if card_key:
            return (card_key,)
        if new.signing == "accepted":
            return ()
        rule = (
            "must be the partner's public key or its id, compared by telephone, as its address "
            "is not https"
        )
        if over_tls:
            rule = (
                "must be the partner's public key, compared by telephone, as its product shows none"
            )
        raise Invalid([Problem("key", rule)], reason=_NOT_COMPARED)

    def _compared_key(self, new: Application, key: str) -> str:
        """Return a public key that a person has compared.

        ``key`` is that key or its id. The key of an id is looked up on the partner's card.
        """
        if not _KEY_ID.fullmatch(key):
            try:
                return wire.key_of(key)
            except ValueError:
                rule = (
                    "must be a public key (PEM or base64), or its id: sha256: and 64 hexadecimal "
                    "digits"
                )
                raise Invalid([Problem("key", rule, key)]) from None
        card_key = self._key_on_card(new)
        if not card_key:
            rule = f"must be the public key itself, as {new.partner} shows none"
            raise Invalid(
                [Problem("key", rule, key)],
                reason=_NOT_COMPARED,
            )
        if _key_id(card_key) != key:
            rule = f"is not the key that {new.partner} shows: {_key_id(card_key)}"
            raise Invalid(
                [Problem("key", rule, key)],
                reason=_NOT_COMPARED,
            )
        return card_key

    def _key_on_card(self, new: Application) -> str:
        """Return the public key that the partner's card shows; empty if there is none."""
        card = self._peer(new).ask(
            f"{NODE}/query", body={}, method="GET", query={"node_id": new.partner}
        )
        credential = card.get("auth_credential")
        if card.get("node_id") != new.partner or not isinstance(credential, str):
            return ""
        try:
            return wire.key_of(credential)
        except ValueError:
            return ""

    def apply(self, new: Application) -> str:
        """Send an application and return its id; the partner chooses the id of a contract."""
        if new.kind is not Kind.CONTRACT:
            body = {"audit_id": new.id, **new.request}
            self._peer(new).ask(f"{ROOT}/{new.kind}/audit/apply", body)
            return new.id
        data = self._peer(new).ask(f"{NODE}/contract/apply", new.request)
        contract_id = data.get("contract_id")
        if not isinstance(contract_id, str) or not 1 <= len(contract_id) <= _LONGEST_CONTRACT_ID:
            text = f"{new.partner} answers a success without a contract_id"
            raise Refused(text, reason="NO_ENVELOPE")
        return contract_id

    def deliver(self, application: Application) -> None:
        """Send the pending notice: ``confirm``, ``terminate`` or ``update``."""
        if application.notice == UPDATE:
            self._update(application)
            return
        body = {_id_field(application): application.id}
        if application.notice == "confirm":
            body["status"] = str(application.status)
            body |= confirmation(self._card, application)
        self._peer(application).ask(f"{_base_path(application)}/{application.notice}", body)

    def _update(self, contract: Application) -> None:
        """Tell the partner of a contract this node's address and keys.

        The partner accepts only a key that is in its route. This is the key that it has
        acknowledged last, so the request is signed with that one, if it is still here. A partner
        that has got the present key in another way may have removed the earlier one.
        """
        assert contract.announcing is not None, "set with the notice"
        body: dict[str, Any] = {
            **self._card.public(),
            **credentials_of(contract.announcing.key),
            "contract_id": contract.id,
            "address": contract.announcing.address,
        }
        announced = contract.announced
        sealing_key = contract.announcing.sealing_key
        # Sent only if it has changed: the partner's admin may have set another one by hand.
        if announced is None or announced.sealing_key != sealing_key:
            body["sealing_key"] = sealing_key
        peer = self._peer_of(contract.partner, None)
        previous = self._previous_key()
        if previous is not None and announced is not None and announced.key == previous.public:
            with suppress(GatewayError):
                peer.signed_with(previous).ask(f"{NODE}/update", body)
                return
        peer.ask(f"{NODE}/update", body)

    def query(self, application: Application) -> PartnerAnswer:
        """Return the partner's decision.

        A gateway like this one includes the fields of its confirmation. Raises `Refused` for a
        response that is not one of the protocol.
        """
        id_field = {_id_field(application): application.id}
        model: type[wire.Confirm | wire.ConfirmContract] = wire.Confirm
        peer = self._peer(application)
        if application.kind is Kind.CONTRACT:
            model = wire.ConfirmContract
            peer = self._proven_peer(application)
        data = peer.ask(
            f"{_base_path(application)}/query",
            body={},
            method="GET",
            query=id_field,
        )
        try:
            # The model requires the id, which a response need not repeat.
            return read_decision(model.model_validate({**id_field, **data}))
        except ValidationError as error:
            problems = "; ".join(map(str, problems_of(error.errors(), model)))
            raise Refused(f"{application.partner}: {problems}", reason="NO_ENVELOPE") from None

    def fetch_offers(
        self,
        partner: NodeId,
        path: str,
        query: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Return a list of a partner's offers, or one offer, as ``path`` says."""
        return self._peer_of(partner, None).ask(
            f"{ROOT}/{path}", body={}, method="GET", query=query
        )

    def _peer(self, application: Application) -> Peer:
        """Return the client for the partner of an application; only a contract needs no route."""
        if application.kind is not Kind.CONTRACT:
            return self._peer_of(application.partner, None)
        return self._peer_of(application.partner, self._contract_route(application))

    def _proven_peer(self, application: Application) -> Peer:
        """Return a client that checks the signatures of responses by the partner of a contract.

        It uses the keys of the partner's route, or else the contract's compared keys.
        """
        route = self._contract_route(application)
        if not route.keys:
            route = replace(
                route,
                keys=application.keys,
                signing=application.signing,
            )
        return self._peer_of(application.partner, route)

    def _contract_route(self, application: Application) -> Route:
        """Return the partner's route, which also configures TLS.

        If there is none, a provisional route to the address of the contract.
        """
        route = self._route_of(application.partner)
        if route is not None:
            return route
        return Route(
            application.partner,
            application.url.rstrip("/"),
            signing="accepted",  # not required, as the route has no key
        )


def _is_direct_tls(application: Application, route: Route | None) -> bool:
    """True if the partner is reached over TLS and directly: a relay could exchange its key."""
    is_relayed = route is not None and route.via is not None
    return application.url.lower().startswith("https://") and not is_relayed


def _key_id(key: str) -> str:
    """Return the id of a public key."""
    return key_pin(public_key(key))


def _check_key_in_route(route: Route, key: str) -> None:
    """Raise `Invalid` for a compared key that is not one of the route's keys.

    ``key``: a public key or its id; empty if no person has compared one.
    """
    ids = [_key_id(route_key) for route_key in route.keys]
    if key and key not in (*ids, *route.keys):
        rule = (
            f"must be in the route of {route.node}, which has {', '.join(ids)}: edit the route "
            "first"
        )
        raise Invalid(
            [Problem("key", rule, key)],
            reason=_NOT_COMPARED,
        )


def confirmation(card: Card, application: Application) -> dict[str, Any]:
    """Return the fields that this node adds to its decision on a partner's application.

    Empty unless it has approved the application.
    """
    if application.status is not APPROVED or application.side is not Side.THEIRS:
        return {}
    expiry = wire.milliseconds(application.expires_at)
    if application.kind is Kind.CONTRACT:
        fields = {**card.credentials(), "expired_time": expiry}
        if application.tee_approved is not None:
            fields["tee"] = TeePolicy.of(application.tee_approved).model_dump()
        return fields
    permit = {
        "token": application.token,
        "resource_level": wire.AUDITED[application.kind].level,
        "resource_type": str(application.kind).upper(),
        "resource_id": application.subject,
        "resource_node_id": card.node,
        "resource_inst_id": card.institution,
        "request_node_id": application.partner,
        "request_inst_id": card.institution_of(application.partner),
        "time_limit": expiry,
        "times_limit": application.most_jobs or 0,  # 0: any number of jobs
    }
    if application.scope != requested_scope(application):
        permit["auth_scope"] = application.scope.ids_by_key
    return {"resource_permit": permit}


def read_decision(body: wire.Confirm | wire.ConfirmContract) -> PartnerAnswer:
    """Read a partner's decision on an application."""
    if body.status is not APPROVED:
        return PartnerAnswer(body.status, granted={}, credentials={})
    if isinstance(body, wire.ConfirmContract):
        return _read_contract_approval(body)
    permit = body.resource_permit
    if permit is None:
        return PartnerAnswer(body.status, granted={}, credentials={})
    granted = {
        "token": permit.token,
        "level": permit.resource_level,
        "expires_at": permit.time_limit,
        "most_jobs": permit.times_limit,
    }
    if permit.auth_scope is not None:
        granted["scope"] = read_scope(permit.auth_scope.model_dump())
    return PartnerAnswer(body.status, granted, credentials={})


def _read_contract_approval(body: wire.ConfirmContract) -> PartnerAnswer:
    """Read the approval of a contract, with the partner's key if it sends one."""
    granted: dict[str, Any] = {}
    if body.expired_time:
        granted["expires_at"] = body.expired_time
    if body.tee is not None:
        granted["tee_approved"] = body.tee.as_policy()
    if not body.auth_credential:
        return PartnerAnswer(body.status, granted, credentials={})
    credentials = {"auth_credential": body.auth_credential, "auth_type": body.auth_type}
    if body.sealing_key:
        credentials["sealing_key"] = body.sealing_key
    return PartnerAnswer(
        body.status,
        granted,
        credentials=credentials,
        key=wire.key_of(body.auth_credential),
    )


def _base_path(application: Application) -> str:
    """Return the beginning of the paths about an application."""
    if application.kind is Kind.CONTRACT:
        return f"{NODE}/contract"
    return f"{ROOT}/{application.kind}/audit"


def _id_field(application: Application) -> str:
    """Return the name of the field with an application's id."""
    if application.kind is Kind.CONTRACT:
        return "contract_id"
    return "audit_id"


def compose_application(
    card: Card,
    draft: Draft,
    now: datetime,
    tee_problems: Iterable[Problem] = (),
) -> Application:
    """Return an application of this node. Raises `Invalid` with every problem.

    ``tee_problems`` are those with verifying the reports that the draft demands.
    """
    problems = _problems_of_draft(card, draft, now)
    problems += tee_problems
    model: type[BaseModel]
    if draft.kind is Kind.CONTRACT:
        model = wire.ApplyContract
        request = _contract_request(card, draft)
        problems += _problems_of_addresses(draft.url, request["address"])
    else:
        model = wire.AUDITED[draft.kind].body
        request = _audit_request(draft)
    try:
        # The model of an audit requires an id, which is chosen later.
        body = model.model_validate({"audit_id": "-", **request})
    except ValidationError as error:
        problems += map(_with_remedy, problems_of(error.errors(), model))
    else:
        if draft.kind is not Kind.CONTRACT:
            problems += wire.AUDITED[draft.kind].problems_in(request)
    if problems:
        raise Invalid(problems)
    application = new_application(
        draft.kind,
        id_="",  # a contract's id is chosen by the partner, any other when it is stored
        partner=draft.partner,
        side=Side.MINE,
        subject=draft.subject or draft.partner,  # the subject of a contract is the partner
        request=request,
        now=now,
        expires_at=draft.expires_at,
        most_jobs=draft.jobs,
        url=draft.url,
        signing=draft.signing,
    )
    if isinstance(body, wire.ApplyContract) and body.tee is not None:
        return replace(application, tee=body.tee.as_policy())
    return application


def _with_remedy(problem: Problem) -> Problem:
    """Return the problem of a body with the remedy for a missing field."""
    if problem.rule != MISSING:
        return problem
    return problem._replace(rule="is missing: give it in a JSON or YAML file, --fields FILE")


def _problems_of_draft(
    card: Card,
    draft: Draft,
    now: datetime,
) -> list[Problem]:
    """Return the problems of a draft's partner, expiry and scope."""
    problems = []
    if not NODE_ID.fullmatch(draft.partner) or draft.partner == card.node:
        rule = f"must be the id of another node; {NODE_RULE}"
        problems.append(Problem("partner", rule, draft.partner))
    if draft.expires_at is not None and draft.expires_at <= now:
        rule = f"must lie in the future; it is {moment(now)}"
        problems.append(Problem("expires_at", rule, draft.expires_at))
    if draft.scope and draft.kind is not Kind.DATASET:
        rule = "is only for an application for a dataset: leave it out"
        problems.append(Problem("scope", rule, dict(draft.scope)))
    if draft.tee is not None and draft.kind is not Kind.CONTRACT:
        rule = "is only for an application for a contract: leave it out"
        problems.append(Problem("tee", rule))
    return problems


def _problems_of_addresses(url: str, address: Any) -> list[Problem]:
    """Return the problems of the URLs in a contract.

    ``url`` is the partner's; ``address``, as the standard calls the field, is this node's.
    """
    problems = []
    if not _URL.fullmatch(url) or not wire.is_url(url):
        problems.append(Problem("url", "must be where the partner is reached, https://…", url))
    # The body's model reports an address that is not a URL.
    if wire.is_url(str(address)) and urlsplit(str(address)).hostname in _ALL_ADDRESSES:
        rule = (
            "must be where the partner reaches this node: give --address, or set "
            "listen.peer.advertise"
        )
        problems.append(Problem("address", rule, address))
    return problems


def _contract_request(card: Card, draft: Draft) -> dict[str, Any]:
    """Return the body of an application for a contract.

    The draft's fields replace this node's fields of the same name.
    """
    request = {**card.public(), **card.credentials()}
    request["expired_time"] = wire.milliseconds(draft.expires_at)
    if draft.address:
        request["address"] = draft.address
    if draft.tee is not None:
        request["tee"] = TeePolicy.of(draft.tee).model_dump()
    return {**request, **draft.fields}


def _audit_request(draft: Draft) -> dict[str, Any]:
    """Return the body of an application for the use of a dataset, project, flow or model."""
    subject_field = wire.AUDITED[draft.kind].subject
    request = {
        "contract_id": draft.contract_id,
        subject_field: draft.subject,
        **draft.fields,
    }
    if draft.kind is Kind.DATASET:
        request["time_limit"] = wire.milliseconds(draft.expires_at)
        request["times_limit"] = draft.jobs or 0  # 0: any number of jobs
        if draft.scope:
            request["auth_scope"] = {key: list(ids) for key, ids in draft.scope.items()}
    return request


def key_ids(application: Application, route_keys: Sequence[str]) -> str:
    """Return the ids of the partner's keys for a contract, separated by commas.

    Empty if there are none. The keys of an approved contract are those of the route. Before the
    approval, an application of the partner has the key in its request; an application of this node
    has the keys of the route, or the compared ones if the route has none.
    """
    if application.kind is not Kind.CONTRACT:
        return ""
    keys: Sequence[str] = application.keys
    if application.status is APPROVED:
        keys = route_keys
    elif application.side is Side.THEIRS:
        keys = [wire.key_of(application.request["auth_credential"])]
    elif route_keys:
        keys = route_keys
    return ", ".join(map(_key_id, keys))
