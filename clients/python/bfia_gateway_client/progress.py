"""A job as it goes on, also through a restart of its node; a progress bar in a notebook or on a terminal."""

import html
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TextIO

from bfia_gateway_client.errors import GatewayError, NoAnswer

_WIDTH = 30  # characters of the bar on a terminal
SILENT_SECONDS = 300.0  # of a node that has responded before, such as during an upgrade
STARTING_SECONDS = 30.0  # of a node that has not: it has just been started, or its address is wrong
PAUSE = 0.3  # seconds between two requests
OVER = ("FINISHED", "REJECTED")


class Progress:
    """A progress bar. Use as a context."""

    def __init__(
        self,
        title: str,
        *,
        shown: bool = True,
        screen: TextIO | None = None,
        page: Any = None,
        translate: Callable[[str], str] = str,
    ) -> None:
        """``page``: IPython's ``display``; default: that of the notebook, if this runs in one."""
        self._title = _harmless(title)
        self._translate = translate
        self._screen = screen or sys.stderr
        self._page: Any = None
        if shown:
            self._page = page or _notebook()
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
        """Show that so many more bytes of a total were moved.

        A length of 0 means that all bytes are sent, and the node checks them.
        """
        self._done += length
        text = _amount(self._done)
        part = None
        if total:
            text = f"{text} / {_amount(total)}"
            part = self._done / total
        if not length:
            text = self._translate(f"{text}, checked by the node")
        self.show(part, text)

    def show(self, part: float | None, text: str) -> None:
        """Show the done part, from 0 to 1 or None if it is not known, and a text beside it."""
        line = text
        if part is not None:
            line = f"{part:.3f} {text}"
        if line == self._last:
            return
        self._last = line
        clean_text = _harmless(text)
        if self._page is not None:
            self._on_page(part, clean_text)
        elif self._on_screen:
            self._screen.write(f"\r\x1b[K{self._title}: {_bar(part)}{clean_text}")
            self._screen.flush()

    def _on_page(self, part: float | None, text: str) -> None:
        value = ""
        if part is not None:
            value = f' value="{min(part, 1):.3f}"'
        bar = f"<progress{value}></progress>"
        page = f"<div>{html.escape(self._title)} {bar} {html.escape(text)}</div>"
        if self._handle is None:
            self._handle = self._page(_Html(page, text), display_id=True)
        else:
            self._handle.update(_Html(page, text))


def _bar(part: float | None) -> str:
    if part is None:
        return ""
    filled = round(_WIDTH * min(part, 1))
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {part:4.0%} "


def _harmless(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _amount(count: int) -> str:
    if count >= 2**20:
        return f"{count / 2**20:.1f} MiB"
    return f"{count / 2**10:.1f} KiB"


class _Html:
    """HTML for a notebook, with a plain text for everything else."""

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


def _ignore(notice: str) -> None:
    pass


async def watch_job(
    fetch: Callable[[], Awaitable[dict[str, Any]]],
    sleep: Callable[[float], Awaitable[None]],
    *,
    now: Callable[[], float] = time.monotonic,
    notice: Callable[[str], None] = _ignore,
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """Yield the job until it is over; while the node is silent, its last known state and a notice.

    ``notice`` gets the first notice if no state is known yet. Raises `GatewayError` for a refusal and for a long
    silence.
    """
    job: dict[str, Any] = {}
    silent_since: float | None = None
    while job.get("status") not in OVER:
        trouble = ""
        try:
            job = await fetch()
            silent_since = None
        except GatewayError as error:
            if not _is_silence(error):
                raise
            first = silent_since is None
            if silent_since is None:
                silent_since = now()
            limit = SILENT_SECONDS if job else STARTING_SECONDS
            if now() - silent_since >= limit:
                raise
            trouble = f"{error.message}; retrying for up to {limit:g} s"
            if first and not job:
                notice(trouble)
        if job:
            yield job, trouble
        if job.get("status") not in OVER:
            await sleep(PAUSE)


def _is_silence(error: GatewayError) -> bool:
    return isinstance(error, NoAnswer) or error.reason == "DATABASE_AWAY"
