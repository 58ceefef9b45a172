"""The connection to a Docker daemon, made when it is first needed."""

import threading
from collections.abc import Mapping
from typing import Any

from docker import APIClient
from docker.errors import TLSParameterError
from docker.tls import TLSConfig
from docker.utils import kwargs_from_env, parse_host

from engines.base import EngineDown
from engines.docker.client import SCHEME, Tunnel
from engines.docker.daemon import Client
from engines.docker.errors import translated

_TIMEOUT = 60
"""seconds for one call; starting a container takes some on a busy machine"""
_POOL = 64
"""connections, of which every stop and every watch holds one for long"""


class Connection:
    """Call it for the client."""

    def __init__(self, base_url: str, tls: Mapping[str, str]) -> None:
        self._base_url = base_url
        self._tunnel = Tunnel(base_url) if base_url.startswith(SCHEME) else None
        self._tls = dict(tls)
        self._lock = threading.Lock()
        self._api: APIClient | None = None
        self._here = False
        self._tunnelled = ""

    def __call__(self) -> APIClient:
        """Return the client. Raises `EngineDown`."""
        with self._lock, translated(EngineDown):
            base_url = self._base_url if self._tunnel is None else f"unix://{self._tunnel.open()}"
            if self._tunnel is not None and base_url != self._tunnelled:
                self._drop()  # it was made anew, elsewhere
                self._tunnelled = base_url
            if self._api is None:
                options: dict[str, Any] = {"base_url": base_url} if base_url else {**kwargs_from_env()}
                if self._tls:
                    options["tls"] = _config(self._tls)
                self._here = _on_this_machine(options.get("base_url"), bool(options.get("tls")))
                self._api = Client(version="auto", timeout=_TIMEOUT, max_pool_size=_POOL, **options)
            return self._api

    def is_here(self) -> bool:
        """Whether the daemon's host is the one we run on, as far as can be told. Raises `EngineDown`."""
        self()
        return self._here and self._tunnel is None

    def close(self) -> None:
        """Close the client and the tunnel; the next call makes new ones."""
        with self._lock:
            self._drop()
            if self._tunnel is not None:
                self._tunnel.close()

    def _drop(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            api.close()


def _config(files: Mapping[str, str]) -> TLSConfig:
    """Raises `EngineDown`, naming the file that cannot be used."""
    pair = (files["cert"], files["key"]) if "cert" in files else None
    try:
        return TLSConfig(client_cert=pair, ca_cert=files["ca"], verify=True)
    except TLSParameterError as error:
        raise EngineDown(f"engine.docker.tls: {error}") from error


def _on_this_machine(base_url: str | None, tls: bool) -> bool:
    """Say whether the daemon is reached by a socket of this machine and not by network."""
    return str(parse_host(base_url, tls=tls)).startswith("http+unix://")
