"""Routes that an application gets when a request first needs them."""

from collections.abc import Callable
from threading import Lock

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send


class LateRoutes:
    """An application whose routes are built in part, until a request is for another path.

    The other routes and their models take 8 MB, which an idle node saves.
    """

    def __init__(
        self,
        app: ASGIApp,
        early_paths: tuple[str, ...],
        add_others: Callable[[], None],
    ) -> None:
        """Serve an application that has the routes of the early paths.

        - ``early_paths``: the beginnings of their paths
        - ``add_others`` adds all other routes to it
        """
        self._app = app
        self._early_paths = early_paths
        self._add_others = add_others
        self._lock = Lock()
        self._is_complete = False

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve a request; the first one for another path waits until the routes are built."""
        if not self._is_complete and self._is_for_others(scope):
            await run_in_threadpool(self.complete)  # the event loop serves other requests meanwhile
        await self._app(scope, receive, send)

    def complete(self) -> None:
        """Add the other routes, unless they have been added."""
        with self._lock:
            if not self._is_complete:
                self._add_others()
                self._is_complete = True

    def _is_for_others(self, scope: Scope) -> bool:
        return scope["type"] == "http" and not scope["path"].startswith(self._early_paths)
