"""A task's access to the node's channel, as FATE's OSX client needs it.

FATE's client sends no token, does not look at a refused push and gives up if the gateway is being
restarted. Its topics do not name the task, though all tasks of a job share a session. `Channel`
adds what is missing and repeats what failed.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SUCCESS = "E0000000000"
# The other node is unreachable, or too many messages are unread: repeated a little later.
PASSING_CODES = ("E0000000607", "E0000000700")
POP_SECONDS = 30  # one request's share of a wait; a gateway that stops ends it
TIMEOUT = 600  # seconds during which a gateway or a partner may be away
PAUSE = 0.2  # seconds before a request is repeated

# Path, body and headers -> the response's body. Raises `OSError` if there is none.
Post = Callable[[str, bytes, Mapping[str, str]], bytes]


class Refused(Exception):
    """The gateway refuses a message for good."""


@dataclass(frozen=True)
class Channel:
    """The node's channel, as this task uses it."""

    task_id: str
    token: str
    post: Post
    messages: Any  # module with the messages of the transport layer
    sleep: Callable[[float], None] = time.sleep

    def push(self, request: Any, headers: Mapping[str, str]) -> Any:
        """Send a message; a repeated one is stored once. Raises `Refused`."""
        request.topic = self._topic(request.topic)
        request.metadata["sequence"] = uuid.uuid4().hex
        return self._call("push", request, headers)

    def pop(self, request: Any, headers: Mapping[str, str]) -> Any:
        """Return the next message of a topic, or a response without one. Raises `Refused`."""
        deadline = time.monotonic() + request.timeout / 1000
        request.topic = self._topic(request.topic)
        request.timeout = POP_SECONDS * 1000
        headers = {**headers, "x-ptp-pop-id": uuid.uuid4().hex}
        while True:
            response = self._call("pop", request, headers)
            if response.payload or time.monotonic() > deadline:
                return response

    def release(self, request: Any, headers: Mapping[str, str]) -> Any:
        """Release nothing: the client names no topic, so it would drop other tasks' messages."""
        return self.messages.TransportOutbound(code=SUCCESS)

    def _topic(self, topic: str) -> str:
        return f"{self.task_id}/{topic}"

    def _call(self, operation: str, request: Any, headers: Mapping[str, str]) -> Any:
        """Return the response to a request, which is repeated while nobody can take it."""
        body = request.SerializeToString()
        headers = {**headers, "x-ptp-token": self.token, "content-type": "application/x-protobuf"}
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                content = self.post(f"/v1/interconn/chan/{operation}", body, headers)
                response = self.messages.TransportOutbound.FromString(content)
                failure = f"{response.code} {response.message}"
            except OSError as error:
                response = None
                failure = str(error)
            if response is not None and response.code == SUCCESS:
                return response
            is_passing = response is None or response.code in PASSING_CODES
            if not is_passing or time.monotonic() > deadline:
                raise Refused(f"{operation} of {request.topic}: {failure}")
            self.sleep(PAUSE)
