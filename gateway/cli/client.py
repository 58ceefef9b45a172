"""The command line's way to a running node: its operators' listener over HTTP, and how answers are shown.

Exit codes of all commands that talk to a node: 0 done, 1 the node said no or something failed, 2 bad input or
configuration, 3 no answer from the node.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import quote, urlsplit

import httpx
import typer

from gateway.cli.console import harmless, say, say_json
from gateway.cli.inputs import content, opened, token
from gateway.data.files import NotFit

if TYPE_CHECKING:
    from gateway.config.schema import Settings

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NO_ANSWER = 3

URL = "BFIA_GATEWAY_URL"
TOKEN = "BFIA_GATEWAY_TOKEN"

Config = Annotated[
    Path, typer.Option("--config", "-c", help="The node's configuration file: tells its address and token.")
]
Url = Annotated[
    str, typer.Option("--url", envvar=URL, help=f"The node's operator listener; the token is then {TOKEN}.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, no table.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]
DEFAULT_CONFIG = Path("node.yml")
_IN_COMMANDS = {
    "NO_TOKEN": f"NO_TOKEN: this node wants a token: export {TOKEN}=<token>, or name the --config with its"
    " auth.token; an admin makes one by: bfia-gateway token create NAME --role ROLE",
}
"""what to do about a refusal, for who types commands"""
PIPE_WIDTH = 120
"""columns of a table that is not printed to a terminal; the variable COLUMNS goes before it"""


def _unwatched(count: int, total: int | None) -> None:
    pass


class CallFailed(Exception):
    """What was asked did not work. ``code`` is the command's exit code, ``data`` what the node says beside it."""

    def __init__(self, text: str, code: int = EXIT_FAILED, reason: str = "", data: Any = None) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason
        self.data = data


class Client:
    """Requests to one node. Use as a context."""

    def __init__(self, url: str, word: str = "", *, timeout: float = 60.0, source: str = "the token") -> None:
        """``word`` is the token, ``source`` where it comes from."""
        self.url = url.rstrip("/")
        with fitting():
            self._token = token(word, source)
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("it must read http://host:port")
            secure = (
                parts.scheme == "https"
            )  # else no certificate authorities are read, which takes longer than a call
            self._http = httpx.Client(
                base_url=self.url, headers=headers, timeout=timeout, trust_env=False, verify=secure
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CallFailed(f"{url!r} is no address of a node: {error}", EXIT_BAD_INPUT) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """Ask; values of the query that are None are left out."""
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """Post JSON."""
        return self.call("POST", path, body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        """Delete."""
        return self.call("DELETE", path, query=query)

    def call(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Any:
        """Make one request; return the answer's JSON. Raises `CallFailed` for every other end.

        Parameters of the query that are None or False are left out. A protocol's envelope whose code tells a
        failure is one, whatever the HTTP status.
        """
        with self._reached():
            answer = self._http.request(method, path, json=body, params=_plain(query or {}))
        return self._read(answer)

    def upload(self, path: str, source: Path, media_type: str) -> Any:
        """Post a file as it is, piece by piece; return the answer's JSON. Raises `CallFailed`."""
        try:
            with self._reached(), fitting(), opened(source) as (file, _):
                answer = self._http.post(path, content=file, headers={"content-type": media_type})
        except OSError as error:
            raise CallFailed(f"{source} cannot be read: {error.strerror}", EXIT_BAD_INPUT) from error
        return self._read(answer)

    def send_form(self, path: str, fields: Mapping[str, str], name: str, file: Any) -> Any:
        """Post a form with one file, read piece by piece while it is sent; return the answer's JSON.

        What the node does with the file may take long after the last byte. Raises `CallFailed`.
        """
        parts = {"file": (name, file, "application/octet-stream")}
        with self._reached():
            patient = httpx.Timeout(60.0, read=None)
            answer = self._http.post(path, data=dict(fields), files=parts, timeout=patient)
        return self._read(answer)

    def download(
        self, path: str, target: Path, watch: Callable[[int, int | None], None] = _unwatched, **query: Any
    ) -> int:
        """Write an answer's body into a file, piece by piece; return its length in bytes.

        The file appears only when it is whole, and has the checksum that the node names. ``watch`` is told of
        each piece: its length, and the length of all, if known. Raises `CallFailed`.
        """
        part = target.with_name(target.name + ".part")
        patient = httpx.Timeout(60.0, read=None)  # a node sums up a large file before it sends its first byte
        digest = hashlib.sha256()
        try:
            with (
                self._reached(),
                self._http.stream("GET", path, params=_plain(query), timeout=patient) as answer,
            ):
                if answer.status_code >= 400:
                    answer.read()
                    self._read(answer)
                length = answer.headers.get("content-length", "")
                with part.open("wb") as file:
                    for piece in answer.iter_bytes(1024 * 1024):
                        file.write(piece)
                        digest.update(piece)
                        watch(len(piece), int(length) if length.isdecimal() else None)
                    size = file.tell()
                wanted = answer.headers.get("x-checksum-sha256", "")
            if wanted and wanted != digest.hexdigest():
                text = f"what came has sha256 {digest.hexdigest()}, the node names {wanted}; nothing was kept"
                raise CallFailed(text, reason="CHECKSUM_WRONG")
            part.replace(target)
        except OSError as error:
            raise CallFailed(f"{target} cannot be written: {error.strerror}", EXIT_BAD_INPUT) from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        return size

    def lines(self, path: str, **query: Any) -> Iterator[str]:
        """Yield the lines of an answer that goes on, such as events. Raises `CallFailed`."""
        endless = httpx.Timeout(60.0, read=None)
        with self._reached(), self._http.stream("GET", path, params=_plain(query), timeout=endless) as answer:
            if answer.status_code >= 400:
                answer.read()
                self._read(answer)
            yield from answer.iter_lines()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            said = str(error).replace(self._token, "…") if self._token else str(error)
            text = f"no answer from {self.url}: {type(error).__name__} {said}; is the node up? (--config, --url)"
            raise CallFailed(text.replace("  ", " "), EXIT_NO_ANSWER, "NO_ANSWER") from error

    def _read(self, answer: httpx.Response) -> Any:
        try:
            said = answer.json()
        except ValueError:
            said = None
        if answer.status_code < 400 and said is not None:
            code = said.get("code", 0) if isinstance(said, Mapping) else 0
            if code in (0, 200):
                return said
        if not isinstance(said, Mapping):
            text = (
                f"{self.url} answers HTTP {answer.status_code} without JSON: is this a node's operator listener?"
            )
            raise CallFailed(text, EXIT_FAILED, "NO_ENVELOPE")
        data = said.get("data") if isinstance(said.get("data"), Mapping) else {}
        text = str(said.get("msg") or said.get("message") or said.get("detail") or f"HTTP {answer.status_code}")
        bad = answer.status_code in (400, 422) or said.get("code") in (400, 422)
        reason = str((data or {}).get("reason") or "")
        text = _IN_COMMANDS.get(reason, text)  # the node speaks of requests
        if reason == "PATH_UNKNOWN":
            text = (
                f"{text}; commands need the listener for operators (listen.operator in the node's configuration),"
                f" and {self.url} is another one, or that of an earlier version"
            )
        raise CallFailed(text, EXIT_BAD_INPUT if bad else EXIT_FAILED, reason, data)


def settings_of(config: Path) -> "Settings":
    """Read a configuration. Raises `CallFailed` with every problem."""
    from gateway.config.schema import load
    from gateway.errors import Invalid

    if not config.exists():
        text = (
            f"{config} is not there: go to the node's folder, or name its configuration by --config, or a running"
            " node by --url; bfia-gateway init writes a new one"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
    try:
        return load(config)
    except Invalid as error:
        text = "\n".join([f"{config} cannot be used ({error.reason}):", *(f"  {p}" for p in error.problems)])
        raise CallFailed(text, EXIT_BAD_INPUT, error.reason) from None


def connect(config: Path, url: str = "", *, timeout: float = 60.0) -> Client:
    """Return the way to a node: at ``url`` if given, else where its configuration says. Raises `CallFailed`."""
    if url:
        return Client(url, os.environ.get(TOKEN, ""), timeout=timeout, source=TOKEN)
    settings = settings_of(config)
    host, _, port = settings.listen.operator.bind.rpartition(":")
    if port == "0":
        text = f"{config} lets the operator listener choose its port; name it with --url or {URL}"
        raise CallFailed(text, EXIT_BAD_INPUT)
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
    own = settings.auth.token if settings.auth.mode == "on" else ""
    found, source = (os.environ[TOKEN], TOKEN) if os.environ.get(TOKEN) else (own, f"auth.token of {config}")
    return Client(f"http://{here}:{port}", found, timeout=timeout, source=source)


@contextmanager
def fitting() -> Iterator[None]:
    """Turn what cannot be used of what was given into bad input, `CallFailed`."""
    try:
        yield
    except NotFit as error:
        raise CallFailed(str(error), EXIT_BAD_INPUT) from None


@contextmanager
def reporting(as_json: bool = False) -> Iterator[None]:
    """Turn a failure into words on standard error (with ``as_json`` JSON) and the command's exit code."""
    try:
        yield
    except CallFailed as error:
        if as_json:
            say_json({"error": str(error), "reason": error.reason, "data": error.data}, err=True)
        else:
            say(str(error), err=True)
        raise typer.Exit(error.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a file (``-``: standard input), be it JSON or YAML. Raises `CallFailed`."""
    return read_remarked(file)[0]


def read_remarked(file: Path) -> tuple[dict[str, Any], str]:
    """Return the object in a file, and what is odd about how it is written. Raises `CallFailed`.

    A key that stands twice is refused: of its two values only one would count.
    """
    import yaml

    from gateway.cli.inputs import misfits
    from gateway.config.loader import KeyTwice, each_once, half_a_letter, load_yaml, wrong_in
    from provider_registry.registration import comma_warning, without_trailing_commas

    try:
        with fitting():
            text = content(file).decode()
    except UnicodeDecodeError as error:
        text = f"{file} is no text in UTF-8 (byte {error.start})"
        raise CallFailed(text, EXIT_BAD_INPUT) from None
    except OSError as error:
        raise CallFailed(f"{file} cannot be read: {error.strerror}", EXIT_BAD_INPUT) from None
    commas = 0
    try:
        try:
            body = json.loads(text, object_pairs_hook=each_once)
        except (ValueError, RecursionError) as error:
            wrong: Exception = error
            cleaned, commas = without_trailing_commas(text) if _JSON_BEGINS.match(text) else ("", 0)
            body = json.loads(cleaned, object_pairs_hook=each_once) if commas else load_yaml(text)
    except KeyTwice as error:
        raise CallFailed(f"{file}: {error}; keep one of them", EXIT_BAD_INPUT) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if _JSON_BEGINS.match(text):
            raise CallFailed(f"{file} is no JSON: {wrong_in(wrong)}", EXIT_BAD_INPUT) from None
        raise CallFailed(f"{file} is neither JSON nor YAML: {wrong_in(error)}", EXIT_BAD_INPUT) from None
    if half_a_letter(text, body):
        raise CallFailed(f"{file} holds half of a character, such as \\ud800, which is no text", EXIT_BAD_INPUT)
    if not isinstance(body, dict):
        found = "a list" if isinstance(body, list) else "nothing" if body is None else "a single value"
        raise CallFailed(f"{file} must hold an object (name: value) and holds {found}", EXIT_BAD_INPUT)
    if wrong_there := misfits(body):
        text = "\n".join([f"{file} holds what JSON cannot say:", *(f"  {one}" for one in wrong_there)])
        raise CallFailed(text, EXIT_BAD_INPUT)
    return body, comma_warning(commas) if commas else ""


_JSON_BEGINS = re.compile(r'\s*(\[|\{\s*["}])')
"""what follows may be YAML all the same, but was hardly meant so"""


def segment(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def show(value: Any) -> None:
    """Print JSON for scripts."""
    say_json(value, indent=2)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table for people; what is too long for its column goes on in the next line.

    In a pipe the table is `PIPE_WIDTH` wide, or wider where an id would be broken.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [["" if cell is None else harmless(str(cell)) for cell in row] for row in rows]
    console = Console()
    made = Table(title=Text(harmless(title)) if title else None, title_justify="left", show_edge=False)
    widths: Sequence[int | None] = [None] * len(columns)
    if not console.is_terminal:
        wanted = int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdecimal() else PIPE_WIDTH
        widths = fixed = column_widths(columns, lines, wanted - _BETWEEN * len(columns))
        console = Console(width=sum(fixed) + _BETWEEN * len(columns))
    for column, width in zip(columns, widths, strict=True):
        made.add_column(Text(harmless(column)), overflow="fold", width=width)
    for line in lines:
        made.add_row(*(Text(cell) for cell in line))
    console.print(made)


_BETWEEN = 3
"""columns of the screen from one cell to the next"""


def column_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Share ``room`` out among a table's columns: its longest word for each, then more for the narrowest first.

    They take more than there is where the longest words need it, and no more than the text needs.
    """
    from rich.cells import cell_len

    widths, wanted = [], []
    for cells in zip(columns, *rows, strict=True):
        words = (cell_len(word) for cell in cells for word in cell.split())
        widths.append(min(_LONGEST_WORD, max(words, default=0)))
        wanted.append(max(cell_len(line) for cell in cells for line in (cell.splitlines() or [""])))
    for _ in range(room - sum(widths)):
        short = [i for i, width in enumerate(widths) if width < wanted[i]]
        if not short:
            break
        widths[min(short, key=widths.__getitem__)] += 1
    return widths


_LONGEST_WORD = 80
"""a digest with its sort fits"""


def amount(count: int) -> str:
    """Return bytes in words: ``3.4 MiB``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _plain(query: Mapping[str, Any]) -> dict[str, Any]:
    return {k: ("1" if v is True else v) for k, v in query.items() if v is not None and v is not False}


Moved = Callable[[int], None]
"""takes how many bytes more have been moved"""


class Watched:
    """A file for reading that tells how far its reader is."""

    def __init__(self, file: IO[bytes], moved: Moved, whole: Callable[[], None]) -> None:
        self._file = file
        self._moved = moved
        self._whole = whole

    def read(self, size: int = -1) -> bytes:
        """Read on, and tell how much, or (at the end) that it was all."""
        data = self._file.read(size)
        if data:
            self._moved(len(data))
        else:
            self._whole()
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; the reader asks so for the length, and nothing is told."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return where the reader is."""
        return self._file.tell()


class Bar:
    """A progress bar on standard error; nothing at all where that is no terminal."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TransferSpeedColumn,
        )

        console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, disable=quiet or not console.is_terminal
        )
        self._task = self._progress.add_task("", total=None)

    def begin(self, text: str, total: int | None) -> None:
        """Say what is moved, and how many bytes of it there are; None: not known."""
        self._progress.reset(self._task, description=harmless(text), total=total)

    def moved(self, count: int) -> None:
        """Move it on by so many bytes."""
        self._progress.advance(self._task, count)

    def says(self, text: str) -> None:
        """Change what it says."""
        self._progress.update(self._task, description=harmless(text))

    @contextmanager
    def shown(self) -> Iterator["Bar"]:
        """Show it until the block ends."""
        with self._progress:
            yield self


@contextmanager
def bar(text: str, total: int | None, quiet: bool) -> Iterator[Bar]:
    """Show a progress bar until the block ends. ``quiet``: never."""
    with Bar(quiet).shown() as one:
        one.begin(text, total)
        yield one


_PATIENCE = 2.0
"""seconds"""
_MOST = 100

Offer = Callable[[typer.Context, str], list[str]]


def _offering(path: str, names: Callable[[Any], Iterable[str]], **query: Any) -> Offer:
    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        config = Path(str(ctx.params.get("config") or DEFAULT_CONFIG))
        with suppress(CallFailed, OSError, LookupError, TypeError):
            with connect(config, str(ctx.params.get("url") or ""), timeout=_PATIENCE) as node:
                found = dict.fromkeys(names(node.get(path, **query)))
            return [name for name in found if name.startswith(incomplete)][:_MOST]
        return []

    return offer


jobs = _offering("/api/v1/jobs", lambda found: (job["job_id"] for job in found["jobs"]), limit=_MOST)
JobId = Annotated[str, typer.Argument(help="The job's id.", autocompletion=jobs)]
"""the argument of every command about one job"""
nodes = _offering("/api/v1/routes", lambda found: (route["node"] for route in found["routes"]), limit=1000)
datasets = _offering(
    "/api/v1/datasets", lambda found: (one["dataset_id"] for one in found["datasets"]), limit=1000
)
components = _offering(
    "/api/v1/providers",
    lambda found: (f"{p['name']}:{p['version']}/{name}" for p in found["providers"] for name in p["components"]),
    retired="false",
    limit=1000,
)
providers = _offering(
    "/api/v1/providers", lambda found: (one["provider_name"] for one in found["providers"]), limit=1000
)
