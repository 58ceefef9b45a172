"""A job as it goes on, also through a restart of its node; a progress bar in a notebook or on a terminal."""

import html
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TextIO

from bfia_gateway_client.errors import GatewayError, NoAnswer

_WIDTH = 30
SILENT_SECONDS = 300.0
"""seconds for which a node that has responded may be silent, such as while it is upgraded"""
STARTING_SECONDS = 30.0
"""seconds for which a node may be silent at first: it has just been started, or its address is wrong"""
PAUSE = 0.3
"""seconds between two requests"""
OVER = ("FINISHED", "REJECTED")


class Progress:
    """How far something is. Use as a context."""

    def __init__(
        self,
        title: str,
        *,
        shown: bool = True,
        screen: TextIO | None = None,
        page: Any = None,
        translate: Callable[[str], str] = str,
    ) -> None:
        """``page``: IPython's ``display``, in whose cell it stands; default: that of the notebook this runs in."""
        self._title = _harmless(title)
        self._translate = translate
        self._screen = screen or sys.stderr
        self._page: Any = (page or _notebook()) if shown else None
        self._on_screen = shown and self._page is None and self._screen.isatty()
        self._handle: Any = None
        self._last = ""
        self._done = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_screen and self._last:
            self._screen.write("\n")
            self._screen.flush()

    def moved(self, length: int, total: int | None) -> None:
        """Show that so many more bytes of a total were moved; none: all are sent, and the node checks them."""
        self._done += length
        text = f"{_amount(self._done)} / {_amount(total)}" if total else _amount(self._done)
        text = text if length else self._translate(f"{text}, checked by the node")
        self.show(self._done / total if total else None, text)

    def show(self, part: float | None, text: str) -> None:
        """Show which part is done, 0 to 1, None where that is not known, and a text beside it."""
        line = f"{part:.3f} {text}" if part is not None else text
        if line == self._last:
            return
        self._last = line
        clean = _harmless(text)
        if self._page is not None:
            self._on_page(part, clean)
        elif self._on_screen:
            filled = round(_WIDTH * min(part, 1)) if part is not None else 0
            bar = (
                f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {part:4.0%} "
                if part is not None
                else ""
            )
            self._screen.write(f"\r\x1b[K{self._title}: {bar}{clean}")
            self._screen.flush()

    def _on_page(self, part: float | None, text: str) -> None:
        value = "" if part is None else f' value="{min(part, 1):.3f}"'
        shown = _Html(
            f"<div>{html.escape(self._title)} <progress{value}></progress> {html.escape(text)}</div>",
            text,
        )
        if self._handle is None:
            self._handle = self._page(shown, display_id=True)
        else:
            self._handle.update(shown)


def _harmless(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _amount(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


class _Html:
    """What a notebook shows."""

    def __init__(self, text: str, plain: str) -> None:
        self._text, self._plain = text, plain

    def _repr_html_(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._plain


def _notebook() -> Any:
    """Return IPython's ``display`` in a notebook; None elsewhere, also in IPython's terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return sys.modules["IPython.display"].display


async def looks(
    fetch: Callable[[], Awaitable[dict[str, Any]]],
    sleep: Callable[[float], Awaitable[None]],
    *,
    now: Callable[[], float] = time.monotonic,
    notice: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """Yield the job until it is over; with a notice where that is its last known state, as the node is silent.

    ``notice`` takes it while nothing is known yet. Raises `GatewayError` for a refusal and a long silence.
    """
    known: dict[str, Any] = {}
    since: float | None = None
    while not known or known["status"] not in OVER:
        try:
            known, since, trouble = await fetch(), None, ""
        except GatewayError as error:
            first, since = since is None, now() if since is None else since
            limit = SILENT_SECONDS if known else STARTING_SECONDS
            silent = isinstance(error, NoAnswer) or error.reason == "DATABASE_AWAY"
            if not silent or now() - since >= limit:
                raise
            trouble = f"{error.message}; retrying for up to {limit:g} s"
            if first and not known:
                notice(trouble)
        if known:
            yield known, trouble
        if known.get("status") not in OVER:
            await sleep(PAUSE)
