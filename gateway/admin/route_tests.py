"""The test of a route as one response, or as server-sent events while it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio import CapacityLimiter
from anyio.streams.memory import MemoryObjectSendStream
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from gateway.admin.deps import Reply
from gateway.domain.spec import NodeId
from gateway.errors import PeerUnreachable
from gateway.runtime.trials import Observe, Step, has_passed

LONGEST_TEST = 120.0  # seconds that the test of a route may take
_MOST_EVENTS = 100  # waiting for a slow reader; a test has fewer steps

# Tests the route to a node, and tells the observer each step; blocks.
TryRoute = Callable[[NodeId, Observe], Sequence[Step]]


@dataclass(frozen=True)
class RouteTests:
    """Tests of routes, in threads of their own."""

    try_route: TryRoute
    limiter: CapacityLimiter  # of these threads

    async def take(self, node: NodeId, observe: Observe) -> dict[str, Any]:
        """Test the route to a node and return the result as responses show it.

        ``observe`` is called in the thread of the test. Raises `PeerUnreachable` after
        `LONGEST_TEST`.
        """
        with anyio.move_on_after(LONGEST_TEST):
            steps = await anyio.to_thread.run_sync(
                self.try_route,
                node,
                observe,
                limiter=self.limiter,
                abandon_on_cancel=True,
            )
            return {"node": node, "good": has_passed(steps), "steps": steps}
        # Reached only after the time limit, which cancels the test and leaves the block.
        error = PeerUnreachable(
            f"the test of the route to {node} did not end within {LONGEST_TEST:g} s"
        )
        error.node = node
        raise error


class RouteTestStream(EventSourceResponse):
    """The steps of a test, each when it was taken; at last the whole result, or the failure.

    The test ends with the connection.
    """

    def __init__(self, tests: RouteTests, node: NodeId) -> None:
        # The body is set in `__call__`, which runs the test.
        super().__init__(iter(()), headers={"cache-control": "no-cache"})
        self._tests = tests
        self._node = node

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run the test while its events are sent."""
        sender, receiver = anyio.create_memory_object_stream[bytes](_MOST_EVENTS)
        self.body_iterator = receiver
        async with receiver, anyio.create_task_group() as group:
            group.start_soon(self._run, sender)
            await super().__call__(scope, receive, send)
            group.cancel_scope.cancel()

    async def _run(self, sender: MemoryObjectSendStream[bytes]) -> None:
        """Run the test, and send its events."""

        def send_step(step: Step) -> None:
            anyio.from_thread.run_sync(sender.send_nowait, _event("step", step))

        async with sender:
            try:
                result = await self._tests.take(self._node, send_step)
            except PeerUnreachable as error:
                await sender.send(_event("problem", {"message": error.message}))
            else:
                await sender.send(_event("end", result))


def _event(name: str, content: Any) -> bytes:
    """Return a server-sent event, with texts in the language of the request."""
    text = bytes(Reply(content).body).decode()
    return format_sse_event(data_str=text, event=name)
