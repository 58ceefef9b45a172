"""A party's gateway in a trial: it passes on and records the requests of the party's container."""

import json
import re
import threading
from collections.abc import Iterable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia.channel.codec import decode_answer, decode_ask, read_push, read_topic
from adapter.bfia.channel.message_forms import form_of
from gateway.conformance.evidence import ChannelCall, Requests, StateReport
from gateway.errors import GatewayError, NotFound
from gateway.ports import Callback

CALLBACK = "/v1/platform/schedule/task/callback"
CHANNEL = "/v1/interconn/chan/"
FORWARDED = (CHANNEL + "invoke", CHANNEL + "part")  # requests of the other parties' gateways
OPERATIONS = ("push", "pop", "peek", "release")  # of containers on the channel
MAX_READ = 4 << 20  # bytes copied of a request or response, to read its topic or code
CODE = re.compile(rb"E\d{10}")  # the code of a response, in any of its forms

Headers = Iterable[tuple[bytes, bytes]]


class Station:
    """One party's gateway, and the requests to it.

    Its methods run on the event loop and in other threads.
    """

    def __init__(
        self,
        party: str,
        node: str,
        run: str,
        token: str,
    ) -> None:
        """Take the party and its node.

        - ``run``: id of the run, which the query of the callback's address contains
        - ``token``: the run's token on the channel
        """
        self.party = party
        self.node = node
        self.run = run
        self.token = token
        self.requests = Requests()
        self.first = threading.Event()  # set by the first request
        # Callbacks that have arrived and are not recorded yet; used only in the event loop's thread
        self.pending = 0

    def callback(self, report: Callback) -> None:
        """Record a callback. Raises `NotFound` if it belongs to another run.

        A callback with an unknown status is not recorded here: it is refused, and `recorder`
        records the refusal.
        """
        if report.run_id not in ("", self.run):
            raise NotFound("unknown run", reason="RUN_UNKNOWN")
        if report.status is None:
            return
        used_full_address = report.run_id == self.run
        state = StateReport(
            str(report.status),
            task_id=report.task_id,
            role=report.role,
            used_full_address=used_full_address,
            result_code=report.result_code,
        )
        self.requests.reports.append(state)
        self.first.set()

    def recorder(self, app: ASGIApp) -> ASGIApp:
        """Return an application that passes all requests on and records them.

        Accepted callbacks are recorded by `callback`, refused ones here.
        """

        async def record(
            scope: Scope,
            receive: Receive,
            send: Send,
        ) -> None:
            path = scope["path"]
            if path == CALLBACK:
                await self._record_callback(app, scope, receive, send)
            elif path.removeprefix(CHANNEL) in OPERATIONS:
                await self._record_channel_call(app, scope, receive, send)
            else:
                if path not in FORWARDED:
                    self.requests.other_paths.append(f"{scope['method']} {path}"[:200])
                self.first.set()
                await app(scope, receive, send)

        return record

    async def _record_callback(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a callback on; record the message if it is refused."""
        response = bytearray()

        async def copy_response(message: Message) -> None:
            response.extend(message.get("body", b""))
            await send(message)

        self.pending += 1
        try:
            await app(scope, receive, copy_response)
            body = json.loads(response)
            if body.get("code") != 0:
                text = body.get("msg") or body.get("message") or body
                self.requests.refused.append(str(text)[:500])
                self.first.set()
        finally:
            self.pending -= 1

    async def _record_channel_call(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a request to the channel on, and record it with its response.

        The call is recorded before the response exists, since a party may wait for the response
        until the party is stopped. The topic is read from the complete body, whose form the content
        type names.
        """
        headers = _readable_headers(scope["headers"])
        call = ChannelCall(
            str(scope["path"]).removeprefix(CHANNEL),
            session=headers.get("x-ptp-session-id", ""),
            token=headers.get("x-ptp-token", ""),
            target=headers.get("x-ptp-target-node-id", ""),
        )
        self.requests.channel_calls.append(call)
        self.first.set()
        request = bytearray()
        response = bytearray()

        async def copy_request() -> Message:
            message = await receive()
            _copy_body(message, request)
            if call.topic is None and not message.get("more_body"):
                kind = headers.get("content-type", "")
                call.topic = topic_of(
                    call.operation,
                    bytes(request),
                    scope["headers"],
                    kind,
                )
            return message

        async def copy_response(message: Message) -> None:
            _copy_body(message, response)
            await send(message)

        await app(scope, copy_request, copy_response)
        _read_response(call, bytes(response))


def topic_of(
    operation: str,
    body: bytes,
    headers: Headers,
    content_type: str,
) -> str | None:
    """Return the topic of a request to the channel; None if it cannot be read."""
    topic = read_topic(headers)
    if topic is not None:
        return topic
    with suppress(GatewayError):
        form = form_of(content_type, None)
        if operation == "push":
            push, *_ = read_push([body], form)
            return push.topic
        return decode_ask(body, form).topic
    return None


def _readable_headers(headers: Headers) -> dict[str, str]:
    """Return headers as text, with ``-`` for ``_`` in their names."""
    readable = {}
    for name, value in headers:
        readable[name.decode("latin-1").replace("_", "-")] = value.decode("latin-1")
    return readable


def _copy_body(message: Message, body: bytearray) -> None:
    """Append the body of a message, until about `MAX_READ` bytes are copied."""
    if len(body) < MAX_READ:
        body.extend(message.get("body", b""))


def _read_response(call: ChannelCall, response: bytes) -> None:
    """Note a response's code and text in its call, and whether it carried a message."""
    code = CODE.search(response)
    if code is None:
        return
    call.code = code[0].decode()
    form = "proto"
    if response[:1] == b"{":
        form = ""  # JSON
    try:
        decoded = decode_answer(response, form)
    except GatewayError:
        call.has_message = True  # it was too long to be copied entirely
        return
    call.has_message = bool(decoded.content)
    call.message = decoded.message[:300]
