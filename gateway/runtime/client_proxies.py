"""The proxies of HTTP clients."""

import httpx

from route_table.proxies import Proxy


def client_proxy(proxy: Proxy | None) -> httpx.Proxy | None:
    """Return a proxy in the form that `httpx` takes; None for None.

    Raises `ProxyFailed` if the password of the proxy's user cannot be read.
    """
    if proxy is None:
        return None
    return httpx.Proxy(f"http://{proxy.address}", auth=proxy.login())
