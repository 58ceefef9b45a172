"""``/api/v1`` about the node: error reasons, storages, certificates and its invitation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Body, Depends, Header, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import Field

from gateway.admin.deps import Input, Reply, api_router, service
from gateway.admin.responses import node as responses
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.config.statement_keys import statement_keys_of
from gateway.data.combined_storage import Storages
from gateway.data.remote import Remote
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotFound, StorageFailed, near
from gateway.http.listening_file import serving
from gateway.identity.invitations import (
    digits_of,
    parse_invitation,
    sealing_between,
    six_words,
    way_between,
)
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.language import catalogue
from gateway.ports import Clock
from route_table import certificates
from route_table.live import LiveRoutes
from route_table.model import link_url

_Address = Annotated[
    str,
    Query(
        max_length=500,
        description="where the partner reaches this node; default: listen.peer.advertise; "
        "link://, followed by this node's id, if this node dials the partner",
    ),
]
_INVITATION_EXAMPLE = {
    "node": "JG0100002200000020",
    "address": "https://gw.example:7380",
    "keys": ["MCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs="],
    "sealing_key": "MCowBQYDK2VuAyEA3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=",
}
_WORDS_EXAMPLES = {
    "partner": Example(
        value={"invitation": _INVITATION_EXAMPLE, "address": "https://bfia.bank.example:7380"}
    )
}


class Invited(Input):
    """A partner's invitation, and the address for this node's own invitation."""

    invitation: dict[str, Any] = Field(description="as the partner's node printed it")
    address: str = Field(
        default="",
        max_length=500,
        description="Where the partner reaches this node; default: listen.peer.advertise; "
        "link://, followed by this node's id, if this node dials the partner.",
    )


@dataclass(frozen=True)
class AboutServices:
    """The services that these paths use."""

    settings: Settings
    storage: Storages
    routes: LiveRoutes
    clock: Clock


_Services = Annotated[AboutServices, Depends(service(AboutServices))]
router = api_router()


@router.get(
    "/reasons/{reason}",
    summary="What a reason means and what to do next, in the reader's language",
    response_model=responses.ReasonExplained,
)
def reason(
    request: Request,
    reason: str,
    accept_language: Annotated[str, Header(description="en or zh")] = "",
) -> Response:
    explanation = catalogue.reason_of(reason)
    if explanation is None:
        text = f"no reason is called {reason[:80]}"
        suggestion = near(reason, catalogue.reasons())
        if suggestion:
            text += f"; did you mean {suggestion}?"
        raise NotFound(text, reason="REASON_UNKNOWN")
    language = catalogue.of_header(accept_language)
    return Reply(
        {
            "reason": reason,
            "means": explanation.means[language],
            "next_step": explanation.next_step[language],
        }
    )


@router.get(
    "/storages",
    summary="Where this node keeps data, and whether that answers",
    response_model=responses.StoragesHere,
)
def storages(services: _Services) -> Response:
    """``uploads``: an upload that names no storage goes there."""
    storage = services.storage
    failures = storage.failures()
    entries = [
        _remote_entry(name, remote_storage.remote, failures.get(name))
        for name, remote_storage in storage.remotes.items()
    ]
    local = {
        "name": "file",
        "kind": "file",
        "url": f"file://{storage.root}",
        "ok": storage.root.is_dir(),
        "cause": "",
    }
    entries.append(local)
    for entry in entries:
        entry["uploads"] = entry is entries[0]  # the first storage is the default
    return Reply({"storages": entries})


@router.get(
    "/certificates",
    summary="Until when the certificates are good that settings and routes name",
    response_model=responses.CertificatesHere,
    name="ends",
)
def list_certificates(services: _Services) -> Response:
    """One entry per file, sorted by expiry. If a file has several certificates, the earliest expiry
    counts; for a file of authorities, the latest.

    The listener's entry describes the certificate that is being served; ``cause`` says so if the
    file has been replaced since then.
    """
    return Reply({"certificates": certificate_entries(services, services.clock())})


@router.get(
    "/invitation",
    summary="This node's id, address and public keys, for a partner to accept",
    response_model=responses.Invitation,
)
def invitation(services: _Services, address: _Address = "") -> Response:
    """Nothing in it is secret."""
    return Reply(_own_invitation(services.settings, address))


@router.post(
    "/invitation/words",
    summary="Six words for people at both nodes to compare; changes nothing",
    response_model=responses.InvitationWords,
)
def words(
    services: _Services,
    body: Annotated[Invited, Body(openapi_examples=_WORDS_EXAMPLES)],
) -> Response:
    """The words are derived from both invitations. To accept one, add a route with its keys."""
    invitation_here = _own_invitation(services.settings, body.address)
    partner = parse_invitation(body.invitation, invitation_here["node"])
    shared_words = six_words(invitation_here, partner)
    way = way_between(invitation_here, partner)
    table = services.routes.table
    return Reply(
        {
            **partner,
            "words": shared_words,
            "digits": digits_of(shared_words),
            "sealing": sealing_between(invitation_here, partner),
            "way": way,
            "version": table.version,
            "has_route": partner["node"] in table.routes,
        }
    )


def certificate_entries(services: AboutServices, now: datetime) -> list[dict[str, Any]]:
    """Return the certificates that settings and routes name, sorted by expiry."""
    expiries = [*_expiries_of_routes(services.routes), *_expiries_of_listener(services.settings)]
    expiries.sort(key=_time_of_expiry)
    return [
        {
            "where": expiry.path,
            "file": expiry.file,
            "ends": expiry.ends,
            "days": (expiry.ends - now).days,
            "cause": cause,
        }
        for expiry, cause in expiries
    ]


def _time_of_expiry(expiry_and_cause: tuple[certificates.Expiry, str]) -> datetime:
    expiry, _ = expiry_and_cause
    return expiry.ends


def _remote_entry(
    name: str,
    remote: Remote,
    failure: StorageFailed | None,
) -> dict[str, Any]:
    """Return a storage as responses show it; ``failure``: why its last access failed."""
    cause = ""
    if failure is not None:
        cause = f"{failure.reason}: {failure.message}"
    return {
        "name": name,
        "kind": remote.kind,
        "url": f"{remote.kind}://{remote.host}:{remote.port}/{remote.folder.strip('/')}",
        "ok": failure is None,
        "cause": cause,
    }


def _expiries_of_routes(routes: LiveRoutes) -> Iterator[tuple[certificates.Expiry, str]]:
    """Yield the expiries of the certificates in enabled routes, each with an empty cause."""
    for route in routes.table.routes.values():
        if route.enabled:
            for expiry in certificates.expiries(route.identity, f"routes.{route.node}"):
                yield expiry, ""


def _expiries_of_listener(settings: Settings) -> Iterator[tuple[certificates.Expiry, str]]:
    """Yield the expiries of the certificates that the listener for peers serves, with causes.

    A cause is empty, or says that the file has been replaced since the listener loaded it.
    """
    tls = settings.listen.peer.tls
    if tls is None:
        return
    served = serving(settings.state_dir)
    files: Mapping[str, Sequence[str]] = {}
    if served is not None:
        files = served.files
    yield from peer_tls.expiries(tls, files)


def _own_invitation(settings: Settings, address: str) -> dict[str, Any]:
    """Return this node's invitation.

    Raises `Invalid` without a usable address, `NotFound` without a key pair.
    """
    address = address or str(settings.listen.peer.advertise or "")
    is_usable = address.lower().startswith(("http://", "https://"))
    if not is_usable and address != link_url(settings.node.id):
        rule = "must be where the partner reaches this node, with https:// or http://"
        raise Invalid([Problem("address", rule, address[:200])])
    keys = statement_keys_of(settings).for_partners
    if not keys:
        raise NotFound("this node has no key pair: bfia-gateway identity rotate makes one")
    invitation: dict[str, Any] = {
        "node": settings.node.id,
        "address": address,
        "keys": keys,
    }
    pair = SealingKeyFile(settings.state_dir).read()
    if pair is not None:
        invitation["sealing_key"] = pair.public
    return invitation
