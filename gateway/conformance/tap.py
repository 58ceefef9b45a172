"""Writes down what one party asks of its gateway, request by request."""

import json
import threading
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.conformance.evidence import Heard, Said, Spoken
from gateway.errors import NotFound
from gateway.ports import Callback

X = TypeVar("X")

CALLBACK = "/v1/platform/schedule/task/callback"
CHANNEL = "/v1/interconn/chan/"
OPERATIONS = ("push", "pop", "peek", "release")
_LARGEST_ANSWER = 65536


class Ear:
    """What is heard of one party. Used by the event loop and by threads."""

    def __init__(self, run: str) -> None:
        """``run`` is what the query of its callback's address says."""
        self._run = run
        self._lock = threading.Lock()
        self._said: list[Said] = []
        self._refused: list[str] = []
        self._spoken: list[Spoken] = []
        self._strange: list[str] = []
        self.first = threading.Event()
        """set once anything was heard"""
        self.listens = 0
        """callbacks that have come and are not written down yet; the event loop's"""

    @property
    def heard(self) -> Heard:
        """All that was heard so far."""
        with self._lock:
            return Heard(tuple(self._said), tuple(self._refused), tuple(self._spoken), tuple(self._strange))

    def callback(self, said: Callback) -> None:
        """Take in a callback that was read. Raises `NotFound` where it is another run's."""
        if said.run_id not in ("", self._run):
            raise NotFound("that run is not known here", reason="RUN_UNKNOWN")
        own = said.run_id == self._run
        word = Said(str(said.status), said.task_id, said.role, own, said.result_code)
        self._note(self._said, word)

    def refused(self, words: str) -> None:
        """Take in a callback that could not be read, and why."""
        self._note(self._refused, words)

    def spoken(self, word: Spoken) -> None:
        """Take in a call to the channel."""
        self._note(self._spoken, word)

    def strange(self, what: str) -> None:
        """Take in a request that no component has to make."""
        self._note(self._strange, what)

    def _note(self, heard: list[X], one: X) -> None:
        with self._lock:
            heard.append(one)
        self.first.set()


class Tap:
    """Lets requests through and tells the ear of them."""

    def __init__(self, app: ASGIApp, ear: Ear) -> None:
        self._app = app
        self._ear = ear

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the ear of a request and let it through; a callback is answered here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = str(scope["path"])
        if path == CALLBACK:
            await self._callback(scope, receive, send)
            return
        operation = path.removeprefix(CHANNEL)
        if path.startswith(CHANNEL) and operation in OPERATIONS:
            said = {k.decode("latin-1").replace("_", "-"): v.decode("latin-1") for k, v in scope["headers"]}
            token = said.get("x-ptp-token", "")
            self._ear.spoken(Spoken(operation, said.get("x-ptp-session-id", ""), token))
        elif operation != "invoke":  # that is how its partners' gateways reach this one
            self._ear.strange(f"{scope['method']} {path}"[:200])
        await self._app(scope, receive, send)

    async def _callback(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = bytearray()

        async def listening(message: Message) -> None:
            if message["type"] == "http.response.body" and len(answer) < _LARGEST_ANSWER:
                answer.extend(message.get("body", b""))
            await send(message)

        self._ear.listens += 1
        try:
            await self._app(scope, receive, listening)
            if words := _refusal(bytes(answer)):
                self._ear.refused(words)
        finally:
            self._ear.listens -= 1


def _refusal(answer: bytes) -> str:
    """Return the words of an answer that refuses; empty for one that does not."""
    try:
        said = json.loads(answer)
    except ValueError:
        return "no answer could be given"
    return "" if said.get("code") == 0 else str(said.get("msg") or said.get("message") or said)[:500]
