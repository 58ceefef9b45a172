"""The certificates of the peer listener: which files, whether they can be used, and what they leave open."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from gateway.config.values import PeerTls
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from route_table import certificates
from route_table.model import Unusable

PATH = "listen.peer.tls"
NEWER = "the file is newer than what is served: restart the node"
_NAMES = {f"{PATH}.ca": f"{PATH}.client_ca"}


@dataclass(frozen=True)
class Tls:
    """PEM files of a listener; with ``client_ca`` whoever connects has to show a certificate that it signed."""

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self, *_: object) -> ssl.SSLContext:
        """Return what TLS is served with. Raises `OSError` for files that cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["http/1.1", "h2"])  # gRPC's clients offer h2 alone
        return context


def problems(tls: PeerTls, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with the files."""
    for found in certificates.problems(tls.identity, PATH, now):
        yield Problem(_NAMES.get(found.path, found.path), found.rule, found.got)
    if tls.revoked is not None and tls.client_ca is None:
        yield Problem(
            f"{PATH}.revoked",
            "needs client_ca, whose authorities sign revocation lists",
            str(tls.revoked),
        )
    elif tls.revoked is not None:
        try:
            certificates.revocation_lists(str(tls.revoked), str(tls.client_ca))
        except Unusable as error:
            yield Problem(f"{PATH}.revoked", str(error), str(tls.revoked))


def files(tls: PeerTls | None) -> dict[str, Sequence[str]]:
    """Return the digest of each file, and until when it is good: what a listener that starts now serves."""
    found = certificates.expiries(tls.identity, PATH) if tls is not None else ()
    return {
        e.path: (sha256(Path(e.file).read_bytes()).hexdigest(), e.ends.isoformat()) for e in found
    }


def expiries(
    tls: PeerTls, served: Mapping[str, Sequence[str]]
) -> Iterator[tuple[certificates.Expiry, str]]:
    """Yield until when what the listener serves is good, and `NEWER` where its file is another one by now."""
    there = files(tls)
    for found in certificates.expiries(tls.identity, PATH):
        digest, ends = served.get(found.path, there[found.path])
        if digest == there[found.path][0]:
            yield found, ""
        else:
            yield found._replace(ends=datetime.fromisoformat(ends)), NEWER


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
