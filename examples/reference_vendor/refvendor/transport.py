"""Carries a component's messages over the platform's push and pop.

Every part of every message has a topic of its own, made of task, sender, receiver, name, number and part, so
messages of several tasks and of several parties on one node never mix, and a repeated push or pop is harmless.
The first byte of a part says whether another follows.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Mapping

from refvendor import PROVIDER
from refvendor.channel import NOT_YET, Caller, Deadline, payload_of
from refvendor.contract import Log, PeerTimeout, Task, VendorError
from refvendor.forms import Json

CHUNK = 4 * 2**20
POP_SECONDS = 30.0
_LAST, _MORE = b"\x00", b"\x01"
_RELEASE_AT_ONCE = 256 * 2**10


class ChannelNet:
    """A `Net` over HTTP or gRPC. One thread may send while another receives."""

    def __init__(
        self,
        task: Task,
        address: str,
        *,
        session: str,
        token: str,
        trace: str,
        institutions: Mapping[str, str],
        deadline: Deadline,
        log: Log,
        chunk: int = CHUNK,
        form: str = Json.name,
    ) -> None:
        self._task = task
        self._session = session
        self._token = token
        self._trace = trace
        self._institutions = institutions
        self._deadline = deadline
        self._chunk = chunk
        self._pusher = Caller(address, deadline, log, form=form)
        self._popper = Caller(address, deadline, log, form=form)
        self._push_lock, self._pop_lock = threading.Lock(), threading.Lock()
        self._sent: Counter[tuple[str, str]] = Counter()
        self._received: Counter[tuple[str, str]] = Counter()
        self._to_release: list[str] = []
        # A number per push that no earlier attempt of this task has used, or its messages would look repeated.
        self._sequence = secrets.randbits(40) << 20

    def send(
        self,
        to: str,
        name: str,
        payload: bytes,
    ) -> None:
        """Push a message in parts. Raises what `Caller.call` raises."""
        headers = self._headers(to)
        with self._push_lock:
            number = self._sent[to, name]
            self._sent[to, name] += 1
            starts = range(0, max(1, len(payload)), self._chunk)
            for part, start in enumerate(starts):
                more = _MORE if part + 1 < len(starts) else _LAST
                body = {
                    "topic": self._topic(self._task.me, to, name, number, part),
                    "payload": more + payload[start : start + self._chunk],
                    "metadata": {"sequence": str(self._sequence)},
                }
                self._sequence += 1
                self._pusher.call("push", headers, body)

    def recv(self, source: str, name: str) -> bytes:
        """Pop the next message part by part, and release what was read before. Raises `PeerTimeout`."""
        self._node(source)
        with self._pop_lock:
            number = self._received[source, name]
            self._received[source, name] += 1
            parts: list[bytes] = []
            while True:
                topic = self._topic(source, self._task.me, name, number, len(parts))
                data = self._pop(topic, f"{source}'s message {name} {number}")
                parts.append(data[1:])
                self._to_release.append(topic)
                if len(data) > _RELEASE_AT_ONCE:
                    self._release()
                if data[:1] == _LAST:
                    return b"".join(parts)

    def close(self) -> None:
        """Free what the transport still keeps of received messages; never raises."""
        with self._pop_lock:
            self._release()
            self._popper.close()
        with self._push_lock:
            self._pusher.close()

    def _pop(self, topic: str, what: str) -> bytes:
        headers = self._headers(self._task.me) | {"x-ptp-pop-id": secrets.token_hex(16)}
        while True:
            seconds = min(POP_SECONDS, self._deadline.left())
            # Less than a second would be read as a number of seconds by transports that guess the unit.
            body = {"topic": topic, "timeout": max(1000, int(seconds * 1000))}
            answer = self._popper.call("pop", headers, body, waits=seconds)
            data = b"" if answer.get("code") == NOT_YET else payload_of(answer)
            if data:
                return data
            if self._deadline.left() <= 0:
                raise PeerTimeout(f"{what} did not come before the task's deadline")

    def _release(self) -> None:
        headers = self._headers(self._task.me)
        while self._to_release:
            if self._popper.attempt(
                "release", headers, {"topic": self._to_release[0], "timeout": 1000}
            ):
                break
            self._to_release.pop(0)

    def _headers(self, target: str) -> dict[str, str]:
        me = self._task.me
        headers = {
            "x-ptp-session-id": self._session,
            "x-ptp-token": self._token,
            "x-ptp-trace-id": self._trace,
            "x-ptp-tech-provider-code": PROVIDER,
            "x-ptp-source-node-id": self._node(me),
            "x-ptp-target-node-id": self._node(target),
        }
        for header, party in (("x-ptp-source-inst-id", me), ("x-ptp-target-inst-id", target)):
            if institution := self._institutions.get(party):
                headers[header] = institution
        return headers

    def _node(self, party: str) -> str:
        role, _, index = party.partition(".")
        nodes = self._task.parties.get(role, ())
        if not index.isdecimal() or int(index) >= len(nodes):
            raise VendorError(f"{party} is not a party of this task")
        return nodes[int(index)]

    def _topic(
        self,
        source: str,
        to: str,
        name: str,
        number: int,
        part: int,
    ) -> str:
        return f"{self._task.task_id}:{source}:{to}:{name}:{number}:{part}"
