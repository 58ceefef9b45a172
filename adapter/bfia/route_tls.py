"""The step of a route's test that tries TLS."""

import contextlib
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime

from adapter.bfia.connections import context
from adapter.bfia.outbound import open_socket, proxy_of
from gateway.errors import PeerUnreachable
from gateway.runtime import trials
from gateway.runtime.trials import Step
from route_table.certificates import expiries
from route_table.model import Identity
from route_table.proxies import Proxy

# Fault and remedy of a certificate for another name
_OTHER_NAME = (
    "is for another name than {name}",
    "set server_name in the entry to a name of that certificate, or correct the address",
)

EXPIRES_SOON = 14  # days before its expiry in which a certificate causes a warning
CONNECT_SECONDS = 3.0  # to open a connection
# OpenSSL's code -> the fault of a certificate, and its remedy. Any other code means that the
# certificate's authority is not trusted.
_VERIFY_CODES = {
    9: ("is not valid yet", "look at both clocks"),
    10: ("has expired, or an authority of it has", "have the peer renew it"),
    **dict.fromkeys((62, 63, 64), _OTHER_NAME),  # host name, e-mail address, IP address
}
# Beginnings of OpenSSL's names for a peer's complaints about this node's certificate.
_ALERTS = tuple(
    f"ALERT_{name}"
    for name in (
        "CERTIFICATE",
        "BAD_CERTIFICATE",
        "UNKNOWN_CA",
        "HANDSHAKE_FAILURE",
        "ACCESS_DENIED",
    )
)
# The remedy if a certificate of this node has expired, or expires soon
_RENEW_REMEDY = "renew it; the file is read again by itself"


def try_tls(host: str, port: int, identity: Identity) -> Step:
    """Shake hands and request a page; return the outcome of the step.

    The request is needed because in TLS 1.3 a peer rejects this node's certificate only after the
    handshake.
    """
    name = identity.server_name or host
    version = ""
    try:
        with (
            open_socket(host, port, CONNECT_SECONDS, proxy_of(identity)) as plain,
            context(identity).wrap_socket(plain, server_hostname=name) as conn,
        ):
            certificate = conn.getpeercert() or {}
            version = conn.version() or "TLS"
            request = f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            conn.sendall(request.encode("latin-1", "replace"))
            if not conn.recv(1):  # a gateway that rejects the certificate closes without an alert
                raise ConnectionError("it ends the connection")
    except PeerUnreachable as error:
        return trials.failed(error.message, "correct ca, certificate and key of the entry")
    except ssl.SSLCertVerificationError as error:
        return _untrusted(error, name, identity)
    except OSError as error:
        return _broken_handshake(error, version, identity)
    return _trusted(certificate, version, identity)


def _broken_handshake(error: OSError, version: str, identity: Identity) -> Step:
    """Return the outcome of a connection that broke off.

    ``version``: the version of TLS, empty if the handshake was not finished.

    The peer rejects this node's certificate if it says so by an alert, or if it closes the
    connection after the handshake: some peers send no alert.
    """
    is_closed = isinstance(error, ssl.SSLEOFError | ConnectionError)
    is_closed_after_handshake = is_closed and bool(version)
    reason = getattr(error, "reason", None) or str(error)
    if is_closed_after_handshake or any(alert in reason for alert in _ALERTS):
        return _certificate_refused(reason, identity)
    remedy = "use scheme http, or another port, or look at the peer's TLS settings"
    return trials.failed(f"no TLS there: {reason}", remedy)


def speaks_tls(
    host: str,
    port: int,
    proxy: Proxy | None = None,
) -> bool:
    """True if the port accepts a TLS handshake, whatever its certificate."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    with (
        contextlib.suppress(OSError),
        open_socket(host, port, CONNECT_SECONDS, proxy) as plain,
        unchecked.wrap_socket(plain, server_hostname=host),
    ):
        return True
    return False


def _untrusted(error: ssl.SSLCertVerificationError, name: str, identity: Identity) -> Step:
    """Return the outcome of a handshake with a certificate that is not trusted."""
    cause, remedy = _VERIFY_CODES.get(error.verify_code, ("is not trusted", ""))
    if not remedy:
        hint = "set ca in the entry"
        if identity.ca:
            hint = "the file that ca names does not have its authority"
        remedy = f"{hint}: ask the peer for the certificate of its authority"
    text = f"the peer's certificate {cause.format(name=name)}: {error.verify_message}"
    return trials.failed(text, remedy)


def _certificate_refused(reason: str, identity: Identity) -> Step:
    """Return the outcome of a connection that the peer ended over this node's certificate."""
    if not identity.certificate:
        remedy = "set certificate and key in the entry to one that the peer's authority has signed"
        return trials.failed(f"the peer wants a certificate of this node: {reason}", remedy)
    only_certificate = Identity(certificate=identity.certificate)
    for expiry in expiries(only_certificate, path="entry"):
        if expiry.ends < datetime.now(UTC):
            text = f"this node's certificate in {expiry.file} has expired on {expiry.ends.date()}"
            return trials.failed(text, _RENEW_REMEDY)
    text = f"the peer does not accept the certificate in {identity.certificate}: {reason}"
    remedy = "have its admin add the authority of it to listen.peer.tls.client_ca"
    return trials.failed(text, remedy)


def _trusted(
    certificate: Mapping[str, object],
    version: str,
    identity: Identity,
) -> Step:
    """Return the outcome of a good handshake: a warning if a certificate expires soon.

    ``certificate``: the peer's; the certificates of ``identity`` are this node's.
    """
    now = datetime.now(UTC)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    certificates = [("the peer's certificate", ends, "have the peer renew it")]
    for expiry in expiries(identity, path="entry"):
        _, _, setting = expiry.path.partition(".")  # path is entry.ca or entry.certificate
        certificates.append((f"{setting} in {expiry.file}", expiry.ends, _RENEW_REMEDY))
    for name, end, remedy in certificates:
        days = (end - now).days
        if days < EXPIRES_SOON:
            return trials.warning(f"{name} expires in {days} days", remedy, version)
    return trials.ok(f"{version}, certificate valid until {ends.date()}")
