"""Requests to the peers' listener of a node, byte by byte as an attacker sends them."""

import time
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from gateway.bootstrap.node import Gateway
from gateway.identity.keys import KeyPair
from gateway.identity.signatures import Signable, digest, sign
from tests.inprocess import ME, PEER, ask

CONTROL = "/v1/interconn/schedule"
POLL = f"{CONTROL}/task/poll"


@dataclass(frozen=True)
class PeerRequest:
    """A request as it goes over the wire: by default an unsigned one of `PEER` to `ME`."""

    method: str = "POST"
    path: str = POLL
    query: str = ""
    body: bytes = b'{"task_id": "t", "role": "guest"}'
    headers: tuple[tuple[str, str], ...] = (
        ("x-source-node-id", PEER),
        ("x-target-node-id", ME),
    )

    def header(self, name: str) -> str:
        """Return the value of a header. Raises `KeyError`."""
        return dict(self.headers)[name]

    def with_header(
        self,
        name: str,
        value: str,
    ) -> "PeerRequest":
        """Return the request with another value of a header, which is added if it is missing."""
        headers = dict(self.headers)
        headers[name] = value
        return replace(
            self,
            headers=tuple(headers.items()),
        )

    def signed(
        self,
        pair: KeyPair,
        created: int | None = None,
        target: str = ME,
    ) -> "PeerRequest":
        """Return the request signed for ``target``, at ``created`` (epoch seconds; default now)."""
        if created is None:
            created = int(time.time())
        body_digest = digest(self.body)
        source = self.header("x-source-node-id")
        signable = Signable(
            self.method,
            self.path,
            self.query,
            body_digest,
            source,
            target,
        )
        signature = sign(
            pair,
            signable,
            uuid4().hex,
            created,
        )
        signed = self.with_header("content-digest", body_digest)
        return signed.with_header("x-auth-sign", signature)

    def send_to(
        self,
        node: Gateway,
    ) -> dict[str, Any]:
        """Send the request; return the body of the response."""
        path = self.path
        if self.query:
            path = f"{path}?{self.query}"
        headers = [*self.headers, ("content-type", "application/json")]
        response = ask(
            node,
            "peer",
            self.method,
            path,
            content=self.body,
            headers=headers,
        )
        body = response.json()
        assert isinstance(body, dict)
        return body

    def refusal_of(self, node: Gateway) -> str:
        """Send the request; return the reason of the refusal, "" if it is served."""
        return reason_of(self.send_to(node))


def reason_of(body: dict[str, Any]) -> str:
    """Return the reason of a refusal, "" for another response."""
    return str(body.get("data", {}).get("reason", ""))
