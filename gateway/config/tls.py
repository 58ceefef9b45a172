"""The certificates of the peer listener: which files, whether they can be used, and what they leave open."""

from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from pydantic import Field

from gateway.config.values import Section
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.http.server import Tls
from route_table import certificates
from route_table.model import Identity, Unusable

PATH = "listen.peer.tls"
_NAMES = {f"{PATH}.ca": f"{PATH}.client_ca"}


class PeerTls(Section):
    """PEM files; they are read at the start."""

    certificate: Path = Field(description="PEM file of this node's certificate, with its chain.")
    key: Path = Field(description="PEM file of its key, without a password.")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities of peers' certificates; null: peers need not show one.",
    )

    revoked: Path | None = Field(
        default=None,
        description="File of revocation lists signed by client_ca, PEM or DER; read again when it changes.",
    )

    @property
    def identity(self) -> Identity:
        """The same as routes have it."""
        ca = str(self.client_ca) if self.client_ca is not None else None
        return Identity(ca, str(self.certificate), str(self.key))


def problems(tls: PeerTls, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with the files."""
    for found in certificates.problems(tls.identity, PATH, now):
        yield Problem(_NAMES.get(found.path, found.path), found.rule, found.got)
    if tls.revoked is not None and tls.client_ca is None:
        yield Problem(
            f"{PATH}.revoked", "needs client_ca, whose authorities sign revocation lists", str(tls.revoked)
        )
    elif tls.revoked is not None:
        try:
            certificates.revocation_lists(str(tls.revoked), str(tls.client_ca))
        except Unusable as error:
            yield Problem(f"{PATH}.revoked", str(error), str(tls.revoked))


def unproven(bind: str, tls: PeerTls | None) -> str:
    """Return what is open where other machines reach the listener and peers prove nothing; empty where they do."""
    host = bind.rpartition(":")[0].strip("[]")
    try:
        here_only = host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name: who reaches it is not known here
        here_only = False
    if here_only or (tls is not None and tls.client_ca is not None):
        return ""
    return f"whoever reaches {bind} can claim to be any peer: peers show no certificate"


def served(tls: PeerTls | None) -> dict[str, Tls]:
    """Return which listeners are served by https, for `gateway.http.server.serve`. Raises `Invalid`."""
    if tls is None:
        return {}
    found = list(problems(tls, datetime.now(UTC)))
    if found:
        raise Invalid(found, reason="CERTIFICATE_UNUSABLE")
    files = tls.identity
    return {"peer": Tls(str(files.certificate), str(files.key), files.ca)}
