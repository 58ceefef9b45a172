"""The step of the look at a node that is about certificates and keys.

Its own towards peers, those that routes name, and the public keys that images have to be signed with.
"""

from datetime import UTC, datetime

from gateway.config import peer_tls
from gateway.config.schema import Settings
from gateway.errors import Invalid
from gateway.providers.images import signers_of
from gateway.runtime.checks import Result, Step
from gateway.text import counted
from route_table import certificates
from route_table.live import LiveRoutes

EXPIRES_SOON = 14
"""days"""


def table_of(settings: Settings) -> LiveRoutes:
    """Return the routes of the file, whatever is wrong with the certificates that they name."""
    return LiveRoutes(settings.route_table.file, files=lambda identity, at, now: ())


def certificates_of(settings: Settings) -> Step:
    """Look whether every file can be used, and until when."""
    now = datetime.now(UTC)
    named = [
        (f"routes.{route.node}", route.identity)
        for route in table_of(settings).table.routes.values()
        if route.enabled
    ]
    broken = [str(p) for at, identity in named for p in certificates.problems(identity, at, now)]
    tls = settings.listen.peer.tls
    if tls is not None:
        broken = [*(str(p) for p in peer_tls.problems(tls, now)), *broken]
        named = [(peer_tls.PATH, tls.identity), *named]
    try:
        signers = signers_of(settings.engine.docker.signatures)
    except Invalid as error:  # serve refuses to start for it
        signers = ()
        broken += map(str, error.problems)
    if broken:
        remedy = "put good files there; a running node reads those of routes again by itself"
        return Step("certificates", Result.FAILED, "", "; ".join(broken), remedy)
    found = [expiry for at, identity in named for expiry in certificates.expiries(identity, at)]
    keys = counted(sum(len(one.keys) for one in signers), "key") + " of signers" if signers else ""
    if not found:
        return Step("certificates", Result.OK, keys or "none are named")
    soon = [f"{one.path} ({one.file}) in {(one.ends - now).days} days" for one in found if _soon(one, now)]
    if soon:
        remedy = "renew them; those of routes are read again by themselves, the listener's at the next start"
        return Step("certificates", Result.WARNING, "", f"these expire soon: {', '.join(soon)}", remedy)
    first = min(one.ends for one in found)
    text = f"{counted(len(found), 'file')}, the first to expire on {first.date()}"
    return Step("certificates", Result.OK, f"{text}; {keys}" if keys else text)


def peers_of(settings: Settings) -> Step:
    """Look whether peers prove who they are."""
    gap = peer_tls.unproven(settings.listen.peer.bind, settings.listen.peer.tls)
    if gap:
        remedy = "set listen.peer.tls with client_ca, and peer_certificate in routes: see docs/routes.md"
        return Step("peers", Result.WARNING, "", gap, remedy)
    tls = settings.listen.peer.tls
    if tls is None or tls.client_ca is None:
        return Step("peers", Result.OK, "only this machine reaches the listener for peers")
    return Step("peers", Result.OK, "each peer's certificate is bound to its node id")


def _soon(one: certificates.Expiry, now: datetime) -> bool:
    return (one.ends - now).days < EXPIRES_SOON
