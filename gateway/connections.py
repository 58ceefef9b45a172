"""What a listener's connections allow: HTTP/1.1 as uvicorn serves it, with what it leaves open."""

import asyncio
import ssl
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Connection(HttpToolsProtocol):
    """One connection of a listener.

    Requests by TLS carry the client's certificate as the ASGI extension ``tls`` says, as ``client_cert_chain``.
    """

    _extensions: dict[str, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Read the client's certificate once for all requests of the connection."""
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            shown = tls.getpeercert(binary_form=True)
            chain = [] if shown is None else [ssl.DER_cert_to_PEM_cert(shown)]
            self._extensions = {"tls": {"client_cert_chain": chain}}

    def on_message_begin(self) -> None:
        """Add the extension to the scope of each request."""
        super().on_message_begin()
        if self._extensions is not None:
            self.scope["extensions"] = self._extensions
