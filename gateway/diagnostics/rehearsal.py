"""Plays the kept exchanges of a node against copies of it: one per version of the gateway."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import yaml

from gateway.config.schema import PREFIX
from gateway.http.exchange_book import MASK, Exchange

NOWHERE = "http://127.0.0.1:9"  # nothing answers there: a copy reaches no other host
START_TIMEOUT = 120.0  # seconds until a copy serves; a migration of a large database takes long
REQUEST_TIMEOUT = 30.0  # seconds
# Settings of the node that a copy keeps: those that decide how requests are answered.
_KEPT_SETTINGS = ("node", "approval", "trust", "limits", "jobs", "retention", "fate", "data")
# Keys of a route that a copy keeps.
_KEPT_ROUTE_KEYS = ("profile", "enabled", "institution", "name")
# Headers that this copy's request brings itself.
_OWN_HEADERS = frozenset({"host", "content-length", "connection", "accept-encoding"})


class RehearsalFailed(Exception):
    """A copy of the node cannot be made or does not start; the text says why."""


@dataclass(frozen=True)
class Played:
    """The response of a copy to an exchange's request."""

    status: int
    code: Any  # of the body; None if it has none
    shape: Mapping[str, str]  # type of each value of the body, by its path


@dataclass(frozen=True)
class Difference:
    """An exchange that the new version answers in another way, and how."""

    exchange: Exchange
    changes: Sequence[str]


# ---------------------------------------------------------------- comparison


def shape(body: Any, path: str = "") -> dict[str, str]:
    """Return the type of each value in JSON by its path; the elements of a list share one path."""
    match body:
        case dict():
            types = {path: "object"}
            for name, part in body.items():
                types |= shape(part, f"{path}.{name}".removeprefix("."))
            return types
        case list():
            types = {path: "list"}
            for part in body:
                types |= shape(part, f"{path}[]")
            return types
        case None:
            return {path: "null"}
        case bool():
            return {path: "true or false"}
        case int() | float():
            return {path: "number"}
    return {path: "text"}


def changes(before: Played, after: Played) -> list[str]:
    """Return what a caller would notice of two responses to the same request.

    Additional fields are no change: callers ignore fields that they do not know.
    """
    if before.status != after.status:
        return [f"status {after.status} instead of {before.status}"]
    if before.code != after.code:
        return [f"code {after.code} instead of {before.code}"]
    texts = []
    for path, kind in before.shape.items():
        new_kind = after.shape.get(path)
        if new_kind is None:
            texts.append(f"{path} is missing")
        elif new_kind != kind and "null" not in (kind, new_kind):
            texts.append(f"{path} is a {new_kind} instead of a {kind}")
    return texts


# ---------------------------------------------------------------- copies


@dataclass(frozen=True)
class Program:
    """A version of the gateway: its command with the arguments before a subcommand."""

    command: Sequence[str]

    def run(self, *arguments: str | Path) -> str:
        """Run a command of the gateway and return its output. Raises `RehearsalFailed`."""
        result = subprocess.run(
            [*self.command, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=_environment(),
            check=False,
        )
        if result.returncode:
            words = (result.stderr or result.stdout).strip()
            raise RehearsalFailed(f"{self.command[0]} {arguments[0]}: {words}")
        return result.stdout


def _environment() -> dict[str, str]:
    """Return this process's environment without settings of the node."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def make_copy(
    program: Program,
    config: Path,
    folder: Path,
) -> Path:
    """Make a copy of a node that reaches no other host; return its configuration.

    The copy has the node's database, in SQLite, and its routes, all of which lead nowhere and ask
    for no signature. Raises `RehearsalFailed`.
    """
    archive = folder.with_suffix(".zip")
    folder.mkdir()
    program.run("backup", archive, "--config", config)
    original = yaml.safe_load(config.read_text(encoding="utf-8"))
    copied_config = folder / "node.yml"
    copied_config.write_text(yaml.safe_dump(_settings(original)), encoding="utf-8")
    (folder / "var").mkdir()
    program.run("restore", archive, "--config", copied_config)
    archive.unlink()
    routes = folder / "routes.yml"
    if routes.exists():
        table = yaml.safe_load(routes.read_text(encoding="utf-8"))
        routes.write_text(yaml.safe_dump(_routes_to_nowhere(table)), encoding="utf-8")
    return copied_config


def _settings(original: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a copy."""
    settings: dict[str, Any] = {}
    for name in _KEPT_SETTINGS:
        if name in original:
            settings[name] = original[name]
    return settings | {
        "listen": {
            "peer": {"bind": "127.0.0.1:0"},
            "container": {"bind": "127.0.0.1:0"},
            "operator": {"bind": "127.0.0.1:0"},
        },
        "database": {"url": "sqlite:///var/gateway.db"},
        "engine": {"kind": "process"},
        "route_table": {"file": "routes.yml"},
        "outbound": {"proxy": NOWHERE},
        "auth": {"mode": "off"},
    }


def _routes_to_nowhere(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a route table whose nodes all have an address at which nothing answers."""
    routes = {}
    for node, entry in table.get("routes", {}).items():
        kept = {name: entry[name] for name in _KEPT_ROUTE_KEYS if name in entry}
        routes[node] = kept | {"url": NOWHERE, "signing": "off"}
    return {**table, "routes": routes}


@contextmanager
def serving(program: Program, config: Path) -> Iterator[str]:
    """Serve a copy for the length of a block; yield the address of its listener for peers.

    Raises `RehearsalFailed`.
    """
    ready = config.with_name("ready.json")
    log_path = config.with_name("gateway.log")
    with log_path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*program.command, "serve", "--config", str(config), "--ready-file", str(ready)],
            stdout=log,
            stderr=log,
            env=_environment(),
        )
    try:
        yield _peer_address(process, ready, log_path)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _peer_address(
    process: subprocess.Popen[bytes],
    ready: Path,
    log_path: Path,
) -> str:
    """Wait until a copy serves; return the address of its listener for peers."""
    deadline = time.monotonic() + START_TIMEOUT
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            last_lines = log_path.read_text(encoding="utf-8").splitlines()[-3:]
            raise RehearsalFailed("the copy does not start: " + " ".join(last_lines))
        time.sleep(0.05)
    return str(json.loads(ready.read_text(encoding="utf-8"))["peer"])


# ---------------------------------------------------------------- rehearsal


def play(address: str, exchange: Exchange) -> Played:
    """Send the request of an exchange to a copy. Raises `RehearsalFailed` without a response."""
    headers = {}
    for name, value in exchange.headers.items():
        # Without masked headers: a wrong signature would be refused.
        if name not in _OWN_HEADERS and value != MASK:
            headers[name] = value
    content = None
    if exchange.request is not None:
        content = json.dumps(exchange.request).encode()
    url = f"{address}{quote(exchange.path)}"
    if exchange.query:
        url += f"?{exchange.query}"
    try:
        response = httpx.request(
            exchange.method,
            url,
            headers=headers,
            content=content,
            timeout=REQUEST_TIMEOUT,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        text = f"{exchange.method} {exchange.path}: {error or type(error).__name__}"
        raise RehearsalFailed(text) from error
    return _played(response)


def _played(response: httpx.Response) -> Played:
    """Return the parts of a response that are compared."""
    try:
        body = response.json()
    except ValueError:
        return Played(response.status_code, None, {"": "no JSON"})
    code = None
    if isinstance(body, dict):
        code = body.get("code")
    return Played(response.status_code, code, shape(body))


def rehearse(
    before: Program,
    after: Program,
    config: Path,
    exchanges: Sequence[Exchange],
    folder: Path,
) -> list[Difference]:
    """Return the exchanges that a new version answers otherwise than the present one.

    - ``config``: configuration of the node, which may be running; it is not changed
    - ``folder``: an empty one, for the copies

    Both versions begin with the same database, so that a difference is one of the versions. Raises
    `RehearsalFailed`.
    """
    copy = make_copy(before, config, folder / "before")
    shutil.copytree(copy.parent, folder / "after")
    differences = []
    with (
        serving(before, copy) as old_address,
        serving(after, folder / "after" / copy.name) as new_address,
    ):
        for exchange in exchanges:
            texts = changes(play(old_address, exchange), play(new_address, exchange))
            if texts:
                differences.append(Difference(exchange, texts))
    return differences
