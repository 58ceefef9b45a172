"""Tries the TLS of a route: who signed the peer's certificate, for which name, until when; if it takes ours."""

import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import SplitResult

from adapter.bfia import secure
from gateway.errors import PeerUnreachable
from gateway.runtime.checks import Result, Step
from route_table.certificates import expiries
from route_table.model import Identity

EXPIRES_SOON = 14
"""days"""

_UNTRUSTED = {2, 18, 19, 20, 21, 27}
"""what OpenSSL's checks answer where an authority is missing, or the certificate is its own"""
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = {62, 63, 64}
_WANTED = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")
_NOT_TAKEN = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "ACCESS_DENIED")


def tried(parts: SplitResult, identity: Identity, seconds: float) -> Step:
    """Shake hands and ask for a page, as a peer that wants a certificate may say so only then."""
    name = identity.server_name or parts.hostname or ""
    version = ""
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 443), seconds) as plain,
            secure.context(identity).wrap_socket(plain, server_hostname=name) as conn,
        ):
            certificate = conn.getpeercert() or {}
            version = conn.version() or "TLS"
            request = f"GET / HTTP/1.1\r\nhost: {parts.hostname}\r\nconnection: close\r\n\r\n"
            conn.sendall(request.encode("latin-1", "replace"))
            conn.recv(1)
    except PeerUnreachable as error:
        return _failed(error.message, "correct ca, certificate and key of the entry")
    except ssl.SSLCertVerificationError as error:
        return _not_trusted(error, name, identity)
    except (ssl.SSLEOFError, ConnectionError) as error:
        if version:  # the newer TLS looks at certificates only when its client is done with the handshake
            return _refused(f"ALERT {_WANTED[0]}, or so it seems, as it hangs up", identity)
        return _failed(f"the connection ended in the handshake: {error}", "look at the peer's TLS settings")
    except ssl.SSLError as error:
        return _refused(error.reason or str(error), identity)
    except TimeoutError:
        return _failed(f"no TLS within {seconds:g} s", "use scheme http, or look at the peer's TLS settings")
    except OSError as error:
        return _failed(f"the connection ended in the handshake: {error}", "look at the peer's TLS settings")
    return _good(certificate, version, identity)


def _good(certificate: Mapping[str, object], version: str, identity: Identity) -> Step:
    now = datetime.now(UTC)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    left = (ends - now).days
    if left < EXPIRES_SOON:
        text = f"the peer's certificate expires in {left} days"
        return Step("tls", Result.WARNING, version, text, "have the peer renew it")
    for found in expiries(identity, "entry"):
        own = (found.ends - now).days
        if own < EXPIRES_SOON:
            text = f"{found.path.partition('.')[2]} in {found.file} expires in {own} days"
            return Step("tls", Result.WARNING, version, text, "renew it; the file is read again by itself")
    return Step("tls", Result.OK, f"{version}, certificate valid until {ends.date()}")


def _not_trusted(error: ssl.SSLCertVerificationError, name: str, identity: Identity) -> Step:
    said = error.verify_message
    if error.verify_code in _OTHER_NAME:
        text = f"the peer's certificate is for another name than {name}: {said}"
        return _failed(text, "set server_name in the entry to a name of that certificate, or correct the address")
    if error.verify_code == _EXPIRED:
        return _failed(
            f"the peer's certificate, or an authority of it, has expired: {said}", "have the peer renew it"
        )
    if error.verify_code == _NOT_YET:
        return _failed(f"the peer's certificate is not valid yet: {said}", "look at both clocks")
    text = f"the peer's certificate is not trusted: {said}"
    if error.verify_code in _UNTRUSTED:
        file = "the file that ca names does not have its authority" if identity.ca else "set ca in the entry"
        return _failed(text, f"{file}: ask the peer for the certificate of its authority")
    return _failed(text, "have the peer install a valid certificate for that name")


def _refused(reason: str, identity: Identity) -> Step:
    """Tell what an alert of the peer, or what is no TLS, means."""
    if any(word in reason for word in _NOT_TAKEN):
        if identity.certificate:
            text = f"the peer does not take the certificate in {identity.certificate}: {reason}"
            return _failed(text, "have its admin take the authority of it into listen.peer.tls.client_ca")
        return _failed(f"the peer ends the handshake: {reason}", "ask its admin which certificates it takes")
    if "ALERT" in reason and any(word in reason for word in _WANTED):
        if identity.certificate:
            text = f"the peer does not take the certificate in {identity.certificate}: {reason}"
            return _failed(text, "ask its admin which authorities it takes")
        text = f"the peer wants a certificate of this node: {reason}"
        return _failed(text, "set certificate and key in the entry to one that the peer's authority has signed")
    return _failed(f"no TLS there: {reason}", "use scheme http, or another port")


def _failed(cause: str, remedy: str) -> Step:
    return Step("tls", Result.FAILED, "", cause, remedy)
