"""A sender of messages about contracts, in the name of any node and with any key."""

import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.bootstrap.node import Gateway
from gateway.identity.keys import KeyPair
from gateway.identity.signatures import Signable, digest, headers, sign
from tests.certificates import Files
from tests.trust.agreeing import INTERCONN

APPLY = f"{INTERCONN}/node/contract/apply"


def a_key() -> KeyPair:
    """Generate a key pair."""
    return KeyPair(Ed25519PrivateKey.generate())


@dataclass
class Sender:
    """Anybody on the network: sends any request, signed with its own key."""

    pair: KeyPair | None = field(default_factory=a_key)  # None: sends unsigned requests
    files: Files | None = None  # a client certificate of the partners' authority

    def ask(
        self,
        node: Gateway,
        method: str,
        path: str,
        body: dict[str, Any],
        source: str,
    ) -> dict[str, Any]:
        """Send a request in the name of ``source``; return the body of the response."""
        content = b""
        query = ""
        if method == "POST":
            content = json.dumps(body).encode()
        else:
            query = str(httpx.QueryParams(body))
        target = node.settings.node.id
        request_headers = {
            "content-type": "application/json",
            "x-source-node-id": source,
            "x-target-node-id": target,
        }
        if self.pair is not None:
            signable = Signable(
                method,
                path,
                query,
                digest(content),
                source,
                target,
            )
            signature = sign(
                self.pair,
                signable,
                str(uuid4()),
                int(time.time()),
            )
            request_headers |= headers(signable, signature)
        url = f"{node.addresses()['peer']}{path}?{query}".removesuffix("?")
        response = httpx.request(
            method,
            url,
            content=content,
            headers=request_headers,
            verify=self._tls_context(),
            trust_env=False,
            timeout=300,
        )
        result: dict[str, Any] = response.json()
        return result

    def _tls_context(self) -> ssl.SSLContext | bool:
        """Return a context with the client certificate; False if there is none to show."""
        if self.files is None:
            return False
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(
            self.files.certificate,
            self.files.key,
        )
        return context
