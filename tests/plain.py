"""For requests of tests to nodes that speak plain HTTP."""

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. Without one, httpx reads all certificate authorities of the machine for each client, whatever the
address: some 20 ms of a processor for each request."""
