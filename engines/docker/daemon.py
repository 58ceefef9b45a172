"""The Docker library's client, with two of its habits mended."""

import socket

from docker import APIClient
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool
from requests.adapters import BaseAdapter


class Client(APIClient):
    """Takes no proxy and no authorities' certificates from the environment: those would win over ours.

    And leaves nothing open where no daemon listens: the library drops a socket that could not connect without
    closing it.
    """

    trust_env = property(lambda self: False, lambda self, value: None)

    def mount(self, prefix: str | bytes, adapter: BaseAdapter) -> None:
        """Take our adapter for the daemon's socket, whichever the library brings."""
        if isinstance(adapter, UnixHTTPAdapter):  # the library has no other place where one could be given
            adapter = self._custom_adapter = _Adapter(
                f"http+unix://{adapter.socket_path}", adapter.timeout, max_pool_size=adapter.max_pool_size
            )
        super().mount(prefix, adapter)


class _Adapter(UnixHTTPAdapter):
    def get_connection(self, url: bytes | str, proxies: object = None) -> UnixHTTPConnectionPool:
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _Pool(str(url), self.socket_path, self.timeout, self.max_pool_size)
        return pool


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> UnixHTTPConnection:  # type: ignore[override]  # as in the class above it
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[arg-type]


class _Connection(UnixHTTPConnection):
    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock
