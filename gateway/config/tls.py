"""The certificates of the peer listener: their files, problems and ends, and listeners that prove nothing."""

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
# Settings of the listener that routes call by another name.
_SETTING_NAMES = {f"{PATH}.ca": f"{PATH}.client_ca"}


@dataclass(frozen=True)
class Tls:
    """PEM files of a listener; with ``client_ca``, clients need a certificate of that authority."""

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self, *_: object) -> ssl.SSLContext:
        """Return the TLS context of a server. Raises `OSError` for files that cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["http/1.1", "h2"])  # gRPC's clients offer h2 alone
        return context


def served(tls: PeerTls | None) -> dict[str, Tls]:
    """Return the TLS files of the listeners with https, by their names.

    Raises `Invalid` for unusable files.
    """
    if tls is None:
        return {}
    file_problems = list(problems(tls, datetime.now(UTC)))
    if file_problems:
        raise Invalid(file_problems, reason="CERTIFICATE_UNUSABLE")
    identity = tls.identity
    return {"peer": Tls(str(identity.certificate), str(identity.key), identity.ca)}


def problems(tls: PeerTls, now: datetime) -> Iterator[Problem]:
    """Yield the problems of the files."""
    for problem in certificates.problems(tls.identity, PATH, now):
        path = _SETTING_NAMES.get(problem.path, problem.path)
        yield Problem(path, problem.rule, problem.got)
    if tls.revoked is not None:
        yield from _revocation_problems(tls.revoked, tls.client_ca)


def _revocation_problems(lists: Path, authorities: Path | None) -> Iterator[Problem]:
    setting = f"{PATH}.revoked"
    if authorities is None:
        rule = "needs client_ca, whose authorities sign revocation lists"
        yield Problem(setting, rule, str(lists))
        return
    try:
        certificates.revocation_lists(str(lists), str(authorities))
    except Unusable as error:
        yield Problem(setting, str(error), str(lists))


def files(tls: PeerTls | None) -> dict[str, Sequence[str]]:
    """Return digest and end (ISO 8601) of each file by its setting, as a listener that starts now serves them."""
    if tls is None:
        return {}
    versions: dict[str, Sequence[str]] = {}
    for expiry in certificates.expiries(tls.identity, PATH):
        digest = sha256(Path(expiry.file).read_bytes()).hexdigest()
        versions[expiry.path] = (digest, expiry.ends.isoformat())
    return versions


def expiries(
    tls: PeerTls, served: Mapping[str, Sequence[str]]
) -> Iterator[tuple[certificates.Expiry, str]]:
    """Yield the end of each certificate that the listener serves, with `NEWER` if its file has changed since.

    ``served`` holds what `files` returned when the listener started.
    """
    current = files(tls)
    for expiry in certificates.expiries(tls.identity, PATH):
        current_digest, _ = current[expiry.path]
        digest, ends = served.get(expiry.path, current[expiry.path])
        if digest == current_digest:
            yield expiry, ""
        else:
            yield expiry._replace(ends=datetime.fromisoformat(ends)), NEWER


def unproven(bind: str, tls: PeerTls | None) -> str:
    """Return the gap of a listener that other machines reach and at which peers prove nothing.

    "" if there is none.
    """
    host = bind.rpartition(":")[0].strip("[]")
    asks_for_certificate = tls is not None and tls.client_ca is not None
    if asks_for_certificate or _is_loopback(host):
        return ""
    return f"whoever reaches {bind} can claim to be any peer: peers show no certificate"


def _is_loopback(host: str) -> bool:
    """Return whether a host is this machine only.

    A name other than localhost may be any address.
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
