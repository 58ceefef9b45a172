"""A TLS context for tests that call nodes by plain HTTP."""

import ssl

# Without a context of its own, each httpx client reads all certificate authorities of the machine,
# also for plain HTTP: 20 ms of processor time per request.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
