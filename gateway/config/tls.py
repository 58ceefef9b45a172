"""TLS of the peer listener: problems and expiry of its files."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from gateway.config.schema.listeners import PeerTls
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from route_table import certificates
from route_table.model import Unusable

PATH = "listen.peer.tls"  # the section of the settings with the files
# The note of `expiries` about a changed file.
NEWER = "the file is newer than what is served: restart the node"
# Problems are found by `route_table.certificates`, which names fields as routes do: their ``ca``
# is the listener's ``client_ca``.
_SETTING_NAMES = {f"{PATH}.ca": f"{PATH}.client_ca"}


@dataclass(frozen=True)
class Tls:
    """PEM files of a listener.

    With ``client_ca``, clients must show a certificate of that authority.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self, *_: object) -> ssl.SSLContext:
        """Return the TLS context of a server. Raises `OSError` for files that cannot be used.

        The server passes its configuration and its own way to build a context; neither is used.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["http/1.1", "h2"])  # clients of gRPC offer only h2
        return context


def served(tls: PeerTls | None) -> dict[str, Tls]:
    """Return the TLS files of the listeners with https, by the listener's name.

    Only the peer listener (``peer``) can have https; the result is empty for a node without
    ``tls``. Raises `Invalid` (CERTIFICATE_UNUSABLE) for unusable files.
    """
    if tls is None:
        return {}
    file_problems = list(problems(tls, datetime.now(UTC)))
    if file_problems:
        raise Invalid(file_problems, reason="CERTIFICATE_UNUSABLE")
    identity = tls.identity
    return {"peer": Tls(str(identity.certificate), str(identity.key), identity.ca)}


def problems(tls: PeerTls, now: datetime) -> Iterator[Problem]:
    """Yield the problems of the listener's certificate, key, authorities and revocation lists.

    Each problem has the path of its setting. A certificate that is expired at ``now`` is a problem.
    """
    for problem in certificates.problems(tls.identity, PATH, now):
        path = _SETTING_NAMES.get(problem.path, problem.path)
        yield Problem(path, problem.rule, problem.got)
    if tls.revoked is not None:
        yield from _revocation_problems(tls.revoked, tls.client_ca)


def _revocation_problems(lists: Path, authorities: Path | None) -> Iterator[Problem]:
    """Yield why the revocation lists cannot be used.

    - ``lists``: the file with the lists
    - ``authorities``: the file ``client_ca``, whose authorities must have signed the lists; None if
      it is not set
    """
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
    """Return the version of each certificate file by its setting: digest and end of validity.

    A listener that starts now serves these versions. The digest is SHA-256 in hexadecimal, the end
    a time in ISO 8601. Empty without ``tls``.
    """
    if tls is None:
        return {}
    versions: dict[str, Sequence[str]] = {}
    for expiry in certificates.expiries(tls.identity, PATH):
        digest = sha256(Path(expiry.file).read_bytes()).hexdigest()
        versions[expiry.path] = (digest, expiry.ends.isoformat())
    return versions


def expiries(
    tls: PeerTls, served_versions: Mapping[str, Sequence[str]]
) -> Iterator[tuple[certificates.Expiry, str]]:
    """Yield the end of validity of each certificate that the running listener serves, with a note.

    ``served_versions`` is the result of `files` when the listener started. The note is `NEWER` if
    the file has changed since, and "" otherwise, also for a certificate that ``served_versions``
    does not have.
    """
    current = files(tls)
    for expiry in certificates.expiries(tls.identity, PATH):
        current_digest, _ = current[expiry.path]
        digest, ends = served_versions.get(expiry.path, current[expiry.path])
        if digest == current_digest:
            yield expiry, ""
        else:
            yield expiry._replace(ends=datetime.fromisoformat(ends)), NEWER
