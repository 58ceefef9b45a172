"""HTTP clients for peers, kept open by address and TLS identity; a renewed certificate needs no restart."""

import functools
import ssl
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import httpx

from gateway.errors import PeerUnreachable
from route_table.certificates import stamp
from route_table.model import NO_IDENTITY, Identity

C = TypeVar("C")
K = TypeVar("K", bound=Hashable)


class Clients(Generic[K, C]):
    """One client per key; one whose identity's files have changed is replaced, and kept for its running calls."""

    def __init__(self, make: Callable[[K, ssl.SSLContext], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._current: dict[K, tuple[list[tuple[int, int]], C]] = {}
        self._former: list[C] = []

    def get(self, key: K, identity: Identity) -> C:
        """Return the client for a key. Raises `PeerUnreachable` where the identity's files cannot be used."""
        current = _stamp(identity)
        with self._lock:
            known = self._current.get(key)
            if known is not None and known[0] == current:
                return known[1]
            client = self._make(key, context(identity))
            if known is not None:
                self._former.append(known[1])
            self._current[key] = (current, client)
            return client

    def clear(self) -> list[C]:
        """Forget every client, and return them to be closed."""
        with self._lock:
            found = [*(client for _, client in self._current.values()), *self._former]
            self._current.clear()
            self._former.clear()
        return found


def context(identity: Identity) -> ssl.SSLContext:
    """Return the TLS context of an identity. Raises `PeerUnreachable` where a file of it cannot be used."""
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
    """The machine's certificate authorities; reading them takes some 20 ms."""
    return httpx.create_ssl_context(trust_env=False)


def asked_name(identity: Identity) -> dict[str, str]:
    """Return a request's extensions where the certificate has another name than the host."""
    return {} if identity.server_name is None else {"sni_hostname": identity.server_name}


def _stamp(identity: Identity) -> list[tuple[int, int]]:
    """Return what changes when a file of an identity does."""
    files = (identity.ca, identity.certificate, identity.key)
    return [stamp(file) for file in files if file is not None]
