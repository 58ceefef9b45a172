"""What a node says of itself to its people: reasons in their language, storages, certificates, its invitation."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import Field

from gateway.admin.deps import AdminParts, Input, Paths, Reply, shape
from gateway.config import tls as peer_tls
from gateway.data.remote_storage import Remote
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotFound, StorageFailed, near
from gateway.http.server import serving
from gateway.identity.keys import Keyring, invitation_of, six_words
from gateway.language import catalogue
from route_table import certificates

_REASON = shape(
    "ReasonExplained",
    reason=str,
    means=str,
    next_step=str,
)
_STORAGE = shape(
    "StorageHere",
    name=str,
    kind=str,
    url=str,
    uploads=bool,
    ok=bool,
    cause=str,
)
_STORAGES = shape("StoragesHere", storages=[_STORAGE])
_EXPIRY = shape(
    "CertificateEnd",
    where=str,
    file=str,
    ends=datetime,
    days=int,
    cause=str,
)
_CERTIFICATES = shape("CertificatesHere", certificates=[_EXPIRY])
_INVITATION = shape(
    "Invitation",
    node=str,
    address=str,
    keys=list[str],
)
_WORDS = shape(
    "InvitationWords",
    node=str,
    address=str,
    keys=list[str],
    words=str,
    version=int,
    has_route=bool,
)
_Address = Annotated[
    str,
    Query(
        max_length=500,
        description="where the partner reaches this node; default: listen.peer.advertise",
    ),
]
_INVITED = {
    "node": "JG0100002200000020",
    "address": "https://gw.example:7380",
    "keys": ["MCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs="],
}
_ACCEPTING = {
    "partner": Example(value={"invitation": _INVITED, "address": "https://bfia.bank.example:7380"})
}


class Invited(Input):
    """A partner's invitation, and the address in this node's own."""

    invitation: dict[str, Any] = Field(description="as the partner's node printed it")
    address: str = Field(
        default="",
        max_length=500,
        description="Default: listen.peer.advertise.",
    )


def router(parts: AdminParts) -> APIRouter:
    """Return the paths."""
    paths = Paths()
    settings = parts.settings

    @paths(
        "GET",
        "/reasons/{reason}",
        "What a reason means and what to do next, in the reader's language",
        _REASON,
    )
    def reason(
        request: Request,
        reason: str,
        accept_language: Annotated[str, Header(description="en or zh")] = "",
    ) -> Response:
        if (found := catalogue.reason_of(reason)) is None:
            there = near(reason, catalogue.reasons())
            text = f"no reason is called {reason[:80]}" + (
                f"; did you mean {there}?" if there else ""
            )
            raise NotFound(text, reason="REASON_UNKNOWN")
        language = catalogue.of_header(accept_language)
        return Reply(
            {
                "reason": reason,
                "means": found.means[language],
                "next_step": found.next_step[language],
            }
        )

    @paths("GET", "/storages", "Where this node keeps data, and whether that answers", _STORAGES)
    def storages() -> Response:
        """``uploads``: an upload that names no storage goes there."""
        folder, remotes = parts.storage.root, parts.storage.remotes
        here = {
            "name": "file",
            "kind": "file",
            "url": f"file://{folder}",
            "ok": folder.is_dir(),
            "cause": "",
        }
        failed = parts.storage.failures()
        found = [_answer(name, one.remote, failed.get(name)) for name, one in remotes.items()]
        return Reply(
            {"storages": [{**one, "uploads": n == 0} for n, one in enumerate([*found, here])]}
        )

    @paths(
        "GET",
        "/certificates",
        "Until when the certificates are good that settings and routes name",
        _CERTIFICATES,
    )
    def ends() -> Response:
        """Of several in one file the one that ends first, of authorities the last. The soonest first.

        Of the listener's, what it serves; ``cause`` says so where the file is another one by now.
        """
        now, tls = parts.clock(), settings.listen.peer.tls
        routes = [r for r in parts.routes.table.routes.values() if r.enabled]
        found = [
            (e, "") for r in routes for e in certificates.expiries(r.identity, f"routes.{r.node}")
        ]
        if tls is not None:
            here = serving(settings.state_dir)
            found += peer_tls.expiries(tls, here.files if here else {})
        shown = [
            {
                "where": e.path,
                "file": e.file,
                "ends": e.ends,
                "days": (e.ends - now).days,
                "cause": cause,
            }
            for e, cause in sorted(found, key=lambda one: one[0].ends)
        ]
        return Reply({"certificates": shown})

    def own(address: str) -> dict[str, Any]:
        address = address or str(settings.listen.peer.advertise or "")
        if not address.lower().startswith(("http://", "https://")):
            rule = "must be where the partner reaches this node, with https:// or http://"
            raise Invalid([Problem("address", rule, address[:200])])
        keys = [pair.public for pair in Keyring(settings.state_dir).pairs.values()]
        if not keys:
            raise NotFound("this node has no key pair: bfia-gateway identity rotate makes one")
        return {
            "node": settings.node.id,
            "address": address,
            "keys": keys,
        }

    @paths(
        "GET",
        "/invitation",
        "This node's id, address and public keys, for a partner to accept",
        _INVITATION,
    )
    def invitation(address: _Address = "") -> Response:
        """Nothing in it is secret."""
        return Reply(own(address))

    @paths(
        "POST",
        "/invitation/words",
        "Six words for people at both nodes to compare; changes nothing",
        _WORDS,
    )
    def words(body: Annotated[Invited, Body(openapi_examples=_ACCEPTING)]) -> Response:
        """The words stand for both invitations; to accept one, add its route with the keys."""
        mine = own(body.address)
        theirs = invitation_of(body.invitation, mine["node"])
        table = parts.routes.table
        about = {"version": table.version, "has_route": theirs["node"] in table.routes}
        return Reply(
            {
                **theirs,
                "words": six_words(mine, theirs),
                **about,
            }
        )

    return paths.router


def _answer(
    name: str,
    at: Remote,
    failed: StorageFailed | None,
) -> dict[str, Any]:
    url = f"{at.kind}://{at.host}:{at.port}/{at.folder.strip('/')}"
    cause = f"{failed.reason}: {failed.message}" if failed else ""
    return {
        "name": name,
        "kind": at.kind,
        "url": url,
        "ok": not failed,
        "cause": cause,
    }
