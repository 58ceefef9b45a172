"""Who sends messages about contracts to a node, in whatever name, from the network."""

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
    return KeyPair(Ed25519PrivateKey.generate())


@dataclass
class Sender:
    """Somebody at the network who sends what it likes, signed with the key that it has."""

    pair: KeyPair | None = field(default_factory=a_key)
    files: Files | None = None
    """of a certificate that the same authority has signed"""

    def ask(
        self,
        node: Gateway,
        method: str,
        path: str,
        body: dict[str, Any],
        source: str,
    ) -> dict[str, Any]:
        """Send a request in the name of a node; return the answer."""
        content, query = b"", ""
        if method == "POST":
            content = json.dumps(body).encode()
        else:
            query = str(httpx.QueryParams(body))
        target = node.settings.node.id
        sent = {
            "content-type": "application/json",
            "x-source-node-id": source,
            "x-target-node-id": target,
        }
        if self.pair is not None:
            signable = Signable(method, path, query, digest(content), source, target)
            sent |= headers(signable, sign(self.pair, signable, str(uuid4()), int(time.time())))
        verify: Any = False
        if self.files is not None:
            verify = ssl.create_default_context()
            verify.check_hostname = False
            verify.verify_mode = ssl.CERT_NONE
            verify.load_cert_chain(self.files.certificate, self.files.key)
        url = f"{node.addresses()['peer']}{path}?{query}".removesuffix("?")
        answer = httpx.request(
            method,
            url,
            content=content,
            headers=sent,
            verify=verify,
            trust_env=False,
            timeout=60,
        )
        answered: dict[str, Any] = answer.json()
        return answered
