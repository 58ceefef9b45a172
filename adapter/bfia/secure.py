"""TLS towards other nodes: a context for each identity of a route, made anew when one of its files changes."""

import functools
import ssl
from pathlib import Path

import httpx

from gateway.errors import PeerUnreachable
from route_table.model import NO_IDENTITY, Identity

Stamp = tuple[tuple[int, int], ...]
"""what tells that a file is the one that was read: its time and size"""


def stamp(identity: Identity) -> Stamp:
    """Return what changes when a file of an identity does; a renewed certificate needs no restart."""
    files = (identity.ca, identity.certificate, identity.key)
    return tuple(_seen(Path(file)) for file in files if file is not None)


def context(identity: Identity) -> ssl.SSLContext:
    """Return the context of an identity. Raises `PeerUnreachable`, undelivered, where a file cannot be used."""
    if identity == NO_IDENTITY:
        return _usual()
    try:
        if identity.ca is None:
            made = httpx.create_ssl_context(trust_env=False)
        else:
            made = ssl.create_default_context(cafile=identity.ca)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if identity.certificate is not None and identity.key is not None:
            made.load_cert_chain(identity.certificate, identity.key, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        text = f"the certificates that the route names cannot be used: {getattr(error, 'reason', None) or error}"
        raise PeerUnreachable(text, delivered=False) from error
    return made


@functools.cache
def _usual() -> ssl.SSLContext:
    """The machine's certificate authorities; reading them takes some 20 ms of a processor, so once is enough."""
    return httpx.create_ssl_context(trust_env=False)


def asked_name(identity: Identity) -> dict[str, str]:
    """Return the extensions of a request that ask for the certificate's name where that is not the host's."""
    return {} if identity.server_name is None else {"sni_hostname": identity.server_name}


def _seen(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
