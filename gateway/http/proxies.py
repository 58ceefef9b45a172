"""Requests that come through a reverse proxy, which ends TLS and hands on the client's certificate.

The proxy writes the certificate into the header ``client-cert``, as RFC 9440 (2.2) has it or as
percent-encoded PEM (nginx's ``$ssl_client_escaped_cert``), and appends the client's address to
``x-forwarded-for``. Only the addresses in ``listen.peer.trusted_proxies`` may set them.
"""

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.connection import LINK
from gateway.links.accepting import Arrival

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CERTIFICATE = b"client-cert"
_ADDRESSES = b"x-forwarded-for"


def through_proxies(app: ASGIApp, proxies: Sequence[Network]) -> ASGIApp:
    """Give each request the certificate and the address of the client before the proxy.

    Requests from other addresses have no certificate, whatever their headers say. Requests over a
    link do not pass the proxy one by one, so that their headers are not the proxy's either; they
    have the certificate with which the link was opened.
    """

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        chain: Sequence[str] = ()
        extensions = scope.get("extensions") or {}
        if LINK in extensions:
            chain = extensions[LINK].certificates
        elif _is_of(scope, proxies):
            chain = _certificates(scope)
            _set_client(scope)
        scope["headers"] = [header for header in scope["headers"] if header[0] != CERTIFICATE]
        scope["extensions"] = {
            **extensions,
            "tls": {"client_cert_chain": list(chain)},
        }
        await app(scope, receive, send)

    return serve


def arrival_before(arrival: Arrival, proxies: Sequence[Network]) -> Arrival:
    """Return the opening of a link as its client sent it to the proxy.

    Without proxies, it stays as it is. From other addresses than theirs, it has no certificate.
    """
    if not proxies:
        return arrival
    scope = dict(arrival.scope)
    chain: Sequence[str] = ()
    if _is_of(scope, proxies):
        chain = _certificates(scope)
        _set_client(scope)
    return replace(arrival, scope=scope, certificates=chain)


def _is_of(scope: Scope, proxies: Sequence[Network]) -> bool:
    """Return whether a request's connection comes from one of the proxies."""
    client = scope.get("client") or ("",)
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    # A listener for IPv6 shows addresses of IPv4 as ::ffff:10.0.0.1.
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in proxies)


def _values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header; empty values count as none."""
    values = [value for header, value in scope["headers"] if header == name]
    texts = [value.decode("latin-1").strip() for value in values]
    return list(filter(None, texts))


def _certificates(scope: Scope) -> list[str]:
    """Return the certificate of a request as PEM text; empty without a readable one.

    It is also empty with two headers: one of them is not the proxy's.
    """
    values = _values(scope, CERTIFICATE)
    if len(values) != 1:
        return []
    try:
        return [_as_pem(values[0])]
    except ValueError:
        return []


@lru_cache(maxsize=256)
def _as_pem(value: str) -> str:
    """Return the certificate in a header's value as PEM text. Raises ValueError."""
    is_byte_sequence = value.startswith(":") and value.endswith(":")
    if is_byte_sequence:
        der = base64.b64decode(value[1:-1], validate=True)
        certificate = x509.load_der_x509_certificate(der)
    else:
        certificate = x509.load_pem_x509_certificate(unquote(value).encode())
    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def _set_client(scope: Scope) -> None:
    """Set the address of a request to the last one of ``x-forwarded-for``, which the proxy wrote.

    The address stays that of the proxy if the header is missing or has no address there.
    """
    values = _values(scope, _ADDRESSES)
    if not values:
        return
    last = values[-1].rpartition(",")[2].strip()
    try:
        address = ipaddress.ip_address(last)
    except ValueError:
        return
    scope["client"] = (str(address), 0)
