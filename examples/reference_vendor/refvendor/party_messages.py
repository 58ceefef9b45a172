"""Carries a component's messages over the platform's push and pop.

Every part of every message has a topic of its own, made of task, sender, receiver, name, number and
part. So messages of several tasks, and of several parties on one node, never mix, and a repeated
push or pop does no harm. The first byte of a part says whether another part follows.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter

from refvendor import PROVIDER
from refvendor.contract import Log, PeerTimeout, Task, VendorError
from refvendor.env import Session
from refvendor.forms import Call, JsonForm
from refvendor.transport_calls import NOT_YET, Caller, Deadline, payload_of

PART_SIZE = 4 * 2**20  # bytes of a payload per push
POP_SECONDS = 30.0  # that a transport may hold a pop
# Transports that guess the unit of a timeout would read a smaller number as seconds.
SHORTEST_TIMEOUT = 1000  # milliseconds
# Parts larger than this are released as soon as they are read, others when the run ends.
LARGEST_UNRELEASED = 256 * 2**10  # bytes
LAST_PART = b"\x00"
MORE_PARTS = b"\x01"


class ChannelNet:
    """A `Net` over HTTP or gRPC. One thread may send while another receives."""

    def __init__(
        self,
        task: Task,
        address: str,
        session: Session,
        deadline: Deadline,
        log: Log,
        *,
        part_size: int = PART_SIZE,
        form: str = JsonForm.name,
    ) -> None:
        """``address`` is that of the transport module, ``form`` one of `FORMS`.

        Raises `BadParameters`.
        """
        self._task = task
        self._session = session
        self._deadline = deadline
        self._part_size = part_size
        self._pusher = Caller(
            address,
            deadline,
            log,
            form=form,
        )
        self._popper = Caller(
            address,
            deadline,
            log,
            form=form,
        )
        self._push_lock = threading.Lock()
        self._pop_lock = threading.Lock()
        # messages so far by party and name
        self._sent: Counter[tuple[str, str]] = Counter()
        self._received: Counter[tuple[str, str]] = Counter()
        self._read_topics: list[str] = []  # not released yet
        # Random, as a number from an earlier attempt of this task would make a push look repeated.
        self._sequence = secrets.randbits(40) << 20

    def send(
        self,
        to: str,
        name: str,
        payload: bytes,
    ) -> None:
        """Push a message in parts. Raises `PeerTimeout`, `ChannelRefused`."""
        headers = self._headers(to)
        with self._push_lock:
            number = self._sent[to, name]
            self._sent[to, name] += 1
            starts = range(
                0,
                max(1, len(payload)),
                self._part_size,
            )
            for part, start in enumerate(starts):
                is_last = part + 1 == len(starts)
                flag = LAST_PART if is_last else MORE_PARTS
                call = Call(
                    topic=self._topic(
                        self._task.me,
                        to,
                        name,
                        number,
                        part,
                    ),
                    payload=flag + payload[start : start + self._part_size],
                    sequence=str(self._sequence),
                )
                self._sequence += 1
                self._pusher.call("push", headers, call)

    def recv(self, source: str, name: str) -> bytes:
        """Pop the next message part by part. Raises `PeerTimeout`, `ChannelRefused`."""
        self._node(source)
        with self._pop_lock:
            number = self._received[source, name]
            self._received[source, name] += 1
            parts: list[bytes] = []
            is_last = False
            while not is_last:
                topic = self._topic(
                    source,
                    self._task.me,
                    name,
                    number,
                    len(parts),
                )
                data = self._pop(topic, f"{source}'s message {name} {number}")
                is_last = data[:1] == LAST_PART
                parts.append(data[1:])
                self._read_topics.append(topic)
                if len(data) > LARGEST_UNRELEASED:
                    self._release()
            return b"".join(parts)

    def push(
        self,
        to: str,
        payload: bytes,
    ) -> None:
        """Push bytes as they are. Raises `PeerTimeout`, `ChannelRefused`."""
        headers = self._headers(to)
        with self._push_lock:
            call = Call(
                topic=f"{self._task.me}-{to}",
                payload=payload,
                sequence=str(self._sequence),
            )
            self._sequence += 1
            self._pusher.call("push", headers, call)

    def pop(
        self,
        source: str,
    ) -> bytes:
        """Pop the next bytes of a party. Raises `PeerTimeout`, `ChannelRefused`.

        The topic is never released: that would delete what the next task of the job finds there.
        """
        self._node(source)
        with self._pop_lock:
            return self._pop(f"{source}-{self._task.me}", f"{source}'s next message")

    def close(self) -> None:
        """Release the received messages that the transport still stores. Never raises."""
        with self._pop_lock:
            self._release()
            self._popper.close()
        with self._push_lock:
            self._pusher.close()

    def _pop(self, topic: str, description: str) -> bytes:
        """Pop a part as soon as it is there; all tries have one pop id. Raises `PeerTimeout`."""
        headers = self._headers(self._task.me) | {"x-ptp-pop-id": secrets.token_hex(16)}
        while True:
            seconds = min(POP_SECONDS, self._deadline.remaining())
            call = Call(topic, timeout=max(SHORTEST_TIMEOUT, int(seconds * 1000)))
            response = self._popper.call(
                "pop",
                headers,
                call,
                hold_seconds=seconds,
            )
            if response.code != NOT_YET:
                data = payload_of(response)
                if data:
                    return data
            if self._deadline.remaining() <= 0:
                raise PeerTimeout(f"{description} did not come before the task's deadline")

    def _release(self) -> None:
        """Let the transport delete messages that were read; stop at the first failure."""
        headers = self._headers(self._task.me)
        while self._read_topics:
            call = Call(
                self._read_topics[0],
                timeout=SHORTEST_TIMEOUT,
            )
            if not self._popper.call_once("release", headers, call):
                return
            self._read_topics.pop(0)

    def _headers(
        self,
        target: str,
    ) -> dict[str, str]:
        """Return the headers of a call whose messages go from this party to ``target``."""
        me = self._task.me
        headers = {
            "x-ptp-session-id": self._session.session_id,
            "x-ptp-token": self._session.token,
            "x-ptp-trace-id": self._session.trace_id,
            "x-ptp-tech-provider-code": PROVIDER,
            "x-ptp-source-node-id": self._node(me),
            "x-ptp-target-node-id": self._node(target),
        }
        institutions = self._session.institutions
        if institutions.get(me):
            headers["x-ptp-source-inst-id"] = institutions[me]
        if institutions.get(target):
            headers["x-ptp-target-inst-id"] = institutions[target]
        return headers

    def _node(self, party: str) -> str:
        """Return the node id of a party. Raises `VendorError` if it is not in the task."""
        role, _, index = party.partition(".")
        if not index.isdecimal() or int(index) >= self._task.count(role):
            raise VendorError(f"{party} is not a party of this task")
        return self._task.parties[role][int(index)]

    def _topic(
        self,
        source: str,
        to: str,
        name: str,
        number: int,
        part: int,
    ) -> str:
        return f"{self._task.task_id}:{source}:{to}:{name}:{number}:{part}"
