"""The node that is checked: requests to it, each bounded in time, size and rate, and recorded."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from gateway.conformance.platforms.answers import Answer, read_answer
from gateway.conformance.platforms.findings import Evidence, Exchange, assume
from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from gateway.identity.signatures import Signable, digest, headers, sign

REQUEST_SECONDS = 10.0  # for one response: deployed platforms give up then and send again
LARGEST_ANSWER = 1 << 20  # bytes of a response that are read
_JSON = "application/json"


@dataclass(frozen=True)
class Identity:
    """Who the check is for the node."""

    node_id: NodeId
    # Signs the requests; None sends them unsigned.
    key: KeyPair | None = None


class CheckedNode:
    """Sends requests to the node, at most ``per_second`` of them, and records the exchanges."""

    def __init__(
        self,
        url: str,
        node_id: NodeId,
        identity: Identity,
        evidence: Evidence,
        *,
        per_second: float = 20.0,
        http: httpx.Client | None = None,
    ) -> None:
        """``url``: the address of the node's listener for peers. ``http``: with its TLS settings.

        ``per_second``: most requests in a second.
        """
        self.url = url.rstrip("/")
        self.node_id = node_id
        self.identity = identity
        self.evidence = evidence
        self._interval = 1 / per_second
        self._next_request = 0.0  # by time.monotonic
        self._http = http or httpx.Client(trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        method: str = "POST",
        query: Mapping[str, str] | None = None,
        seconds: float = REQUEST_SECONDS,
        **extra_headers: str,
    ) -> Answer:
        """Send a JSON body to a path of the control or management layer and read the response.

        ``extra_headers`` replace headers, with underscores for hyphens; "" removes one. Raises
        `CannotTry` if the node does not serve the path.
        """
        content = b""
        if body is not None:
            content = json.dumps(body).encode()
        changes = {name.replace("_", "-"): value for name, value in extra_headers.items()}
        exchange = self.send(
            method,
            path,
            content,
            query=query,
            changes=changes,
            seconds=seconds,
        )
        response = read_answer(exchange)
        assume(not response.is_unserved, f"the node does not serve {method} {path}")
        return response

    def ask_altered(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a request whose body is changed after it was signed."""
        request = self._http.build_request("POST", self.url + path)
        signed_headers = self._headers(request, json.dumps(body).encode())
        altered = json.dumps({**body, "altered": True}).encode()
        return read_answer(
            self.repeat(
                httpx.Request(
                    "POST",
                    request.url,
                    headers=signed_headers,
                    content=altered,
                )
            )
        )

    def ask_late(
        self,
        path: str,
        body: Mapping[str, Any],
        age: int,
    ) -> Answer:
        """Send a request that was signed ``age`` seconds ago."""
        content = json.dumps(body).encode()
        request = self._http.build_request("POST", self.url + path)
        sent_headers = self._headers(request, content, int(time.time()) - age)
        return read_answer(
            self.repeat(
                httpx.Request(
                    "POST",
                    request.url,
                    headers=sent_headers,
                    content=content,
                )
            )
        )

    def send(
        self,
        method: str,
        path: str,
        content: bytes,
        *,
        query: Mapping[str, str] | None = None,
        changes: Mapping[str, str] | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Exchange:
        """Send a request with any content; ``changes`` replace headers, an empty one removes it.

        A failure of the connection is part of the exchange, no error.
        """
        request = self._http.build_request(
            method,
            self.url + path,
            content=content,
            params=dict(query or {}) or None,
        )
        all_headers = self._headers(request, content) | dict(changes or {})
        sent_headers = {name: value for name, value in all_headers.items() if value}
        return self.repeat(
            httpx.Request(
                method,
                request.url,
                headers=sent_headers,
                content=content,
            ),
            seconds,
        )

    def repeat(self, request: httpx.Request, seconds: float = REQUEST_SECONDS) -> Exchange:
        """Send a prepared request as it is; a second time, it is a replay."""
        self._wait_for_turn()
        started = time.monotonic()
        sent = Exchange(
            to_node=True,
            method=request.method,
            target=request.url.raw_path.decode(),
            sent_headers=dict(request.headers),
            sent=request.content,
        )
        exchange = self._exchange(request, sent, seconds, started)
        self.evidence.add(exchange)
        return exchange

    def _headers(
        self,
        request: httpx.Request,
        content: bytes,
        at: int | None = None,
    ) -> dict[str, str]:
        """Return the common headers of a request, signed if the check has a key.

        ``at``: the time of the signature in seconds since 1970; None is now.
        """
        nonce = str(uuid4())
        signed_at = int(time.time()) if at is None else at
        common = {
            "content-type": _JSON,
            "x-source-node-id": self.identity.node_id,
            "x-node-id": self.identity.node_id,  # as peers of before version 1.2 read it
            "x-target-node-id": self.node_id,
            "x-nonce": nonce,
            "x-trace-id": uuid4().hex,
            "x-timestamp": str(signed_at * 1000),
            "x-csrf-protection": "1",
        }
        if self.identity.key is None:
            return common
        message = Signable(
            method=request.method,
            path=request.url.path,
            query=request.url.query.decode(),
            digest=digest(content),
            source=self.identity.node_id,
            target=self.node_id,
        )
        signature = sign(
            self.identity.key,
            message,
            nonce,
            signed_at,
        )
        return common | headers(message, signature)

    def _exchange(
        self,
        request: httpx.Request,
        sent: Exchange,
        seconds: float,
        started: float,
    ) -> Exchange:
        """Send a request and read its response within the time and the size allowed."""
        deadline = started + seconds
        received = bytearray()
        status = None
        failure = ""
        response_headers: dict[str, str] = {}
        request.extensions = {"timeout": httpx.Timeout(seconds).as_dict()}
        try:
            response = self._http.send(request, stream=True)
            try:
                status = response.status_code
                response_headers = dict(response.headers)
                failure = _read_into(received, response, deadline, seconds)
            finally:
                response.close()
        except httpx.TimeoutException:
            failure = _late(seconds)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            failure = f"no response: {error or type(error).__name__}"
        return Exchange(
            to_node=True,
            method=sent.method,
            target=sent.target,
            sent_headers=sent.sent_headers,
            sent=sent.sent,
            status=None if failure else status,
            headers=response_headers,
            received=bytes(received),
            seconds=time.monotonic() - started,
            failure=failure,
        )

    def _wait_for_turn(self) -> None:
        """Wait until a further request keeps the rate."""
        now = time.monotonic()
        if self._next_request > now:
            time.sleep(self._next_request - now)
        self._next_request = max(now, self._next_request) + self._interval


def _read_into(
    received: bytearray,
    response: httpx.Response,
    deadline: float,
    seconds: float,
) -> str:
    """Read a response's body; return why it could not be read completely, or an empty text."""
    for chunk in response.iter_bytes():
        received += chunk
        if len(received) > LARGEST_ANSWER:
            del received[LARGEST_ANSWER:]
            return f"the response has more than {LARGEST_ANSWER >> 20} MiB"
        if time.monotonic() > deadline:
            return _late(seconds)
    return ""


def _late(seconds: float) -> str:
    """Return that no complete response came in time."""
    return f"no complete response within {seconds:g} s"
