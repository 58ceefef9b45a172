"""The states of a job, even across a restart of its node, and a progress bar.

The bar is shown in a notebook or on a terminal.
"""

import html
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TextIO

from bfia_gateway_client.errors import GatewayError, NoAnswer

OVER = ("FINISHED", "REJECTED")  # the final statuses of a job
# Silence tolerated of a node that has responded before, such as during an upgrade
SILENT_SECONDS = 300.0
# Silence tolerated of a node that has not responded yet: it is starting, or the address is wrong
STARTING_SECONDS = 30.0
PAUSE = 0.3  # seconds between two requests
BAR_WIDTH = 30  # characters of the bar on a terminal


class Progress:
    """A progress bar. Use as a context."""

    def __init__(
        self,
        title: str,
        *,
        enabled: bool = True,
        screen: TextIO | None = None,
        page: Any = None,
        translate: Callable[[str], str] = str,
    ) -> None:
        """``enabled``: False shows nothing.

        - ``screen``: the stream of the terminal; default: standard error
        - ``page``: IPython's ``display``; default: that of the notebook, if this runs in one
        - ``translate``: translates the texts of `advance`
        """
        self._title = _printable(title)
        self._translate = translate
        self._screen = screen or sys.stderr
        self._page: Any = None
        if enabled:
            self._page = page or _notebook()
        self._on_screen = enabled and self._page is None and self._screen.isatty()
        self._handle: Any = None  # of the bar in the notebook; its ``update`` replaces the bar
        self._last = ""  # the last progress and text; the same are not shown again
        self._done = 0  # bytes transferred

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_screen and self._last:
            self._screen.write("\n")
            self._screen.flush()

    def advance(self, length: int, total: int | None) -> None:
        """Show that further bytes of a total were transferred; ``total``: None if unknown.

        A length of 0 means that all bytes are sent and the node checks them.
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
        """Show a bar and a text next to it.

        ``part``: the progress from 0 to 1; None if it is unknown.
        """
        line = text
        if part is not None:
            line = f"{part:.3f} {text}"
        if line == self._last:
            return
        self._last = line
        clean_text = _printable(text)
        if self._page is not None:
            self._on_page(part, clean_text)
        elif self._on_screen:
            self._screen.write(f"\r\x1b[K{self._title}: {_bar(part)}{clean_text}")
            self._screen.flush()

    def _on_page(self, part: float | None, text: str) -> None:
        """Show the bar in the notebook, in place of the earlier one."""
        value = ""
        if part is not None:
            value = f' value="{min(part, 1):.3f}"'
        bar = f"<progress{value}></progress>"
        markup = f"<div>{html.escape(self._title)} {bar} {html.escape(text)}</div>"
        if self._handle is None:
            self._handle = self._page(
                _Html(markup, text),
                display_id=True,
            )
        else:
            self._handle.update(_Html(markup, text))


def _bar(part: float | None) -> str:
    """Return the bar for a terminal; empty if the progress is unknown."""
    if part is None:
        return ""
    filled = round(BAR_WIDTH * min(part, 1))
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {part:4.0%} "


def _printable(text: str) -> str:
    """Return a text with ``?`` for line ends and other characters that are not printable."""
    letters = []
    for letter in text:
        if letter.isprintable():
            letters.append(letter)
        else:
            letters.append("?")
    return "".join(letters)


def _amount(count: int) -> str:
    """Return a number of bytes for people."""
    if count >= 2**20:
        return f"{count / 2**20:.1f} MiB"
    return f"{count / 2**10:.1f} KiB"


class _Html:
    """HTML for a notebook, with a plain text for everything else."""

    def __init__(self, markup: str, plain: str) -> None:
        self._markup = markup
        self._plain = plain

    def _repr_html_(self) -> str:
        return self._markup

    def __repr__(self) -> str:
        return self._plain


def _notebook() -> Any:
    """Return IPython's ``display`` in a notebook; None elsewhere, also in IPython's terminal."""
    ipython = sys.modules.get("IPython")
    if not ipython:
        return None
    shell = ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return sys.modules["IPython.display"].display


def _ignore(notice: str) -> None:
    """Do not show a notice."""


async def watch_job(
    fetch: Callable[[], Awaitable[dict[str, Any]]],
    sleep: Callable[[float], Awaitable[None]],
    *,
    now: Callable[[], float] = time.monotonic,
    notice: Callable[[str], None] = _ignore,
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """Yield the job until it is over, each time with a notice, which is empty unless the node is
    silent.

    During a silence the last known state is repeated. Before the first state, ``notice`` receives
    the first notice instead. Raises `GatewayError` for a refusal, and after a silence of
    `SILENT_SECONDS` or `STARTING_SECONDS`.
    """
    job: dict[str, Any] = {}
    silence = _Silence(now)
    while job.get("status") not in OVER:
        trouble = ""
        try:
            job = await fetch()
            silence.end()
        except GatewayError as error:
            trouble = silence.trouble(error, has_responded=bool(job))
            if silence.is_new and not job:
                notice(trouble)
        if job:
            yield job, trouble
        if job.get("status") not in OVER:
            await sleep(PAUSE)


class _Silence:
    """Measures how long a node has been silent."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: float | None = None
        self.is_new = False  # True if the last failed request was the first of its silence

    def end(self) -> None:
        """Note a response of the node."""
        self._since = None

    def trouble(self, error: GatewayError, *, has_responded: bool) -> str:
        """Return the notice for a failed request.

        A node without its database counts as silent. Raises the error if it is another refusal, or
        if the silence is too long.
        """
        is_silence = isinstance(error, NoAnswer) or error.reason == "DATABASE_AWAY"
        if not is_silence:
            raise error
        now = self._now()
        self.is_new = self._since is None
        if self._since is None:
            self._since = now
        limit = STARTING_SECONDS
        if has_responded:
            limit = SILENT_SECONDS
        if now - self._since >= limit:
            raise error
        return f"{error.message}; retrying for up to {limit:g} s"
