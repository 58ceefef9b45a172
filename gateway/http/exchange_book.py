"""The last requests of each partner and their responses, without values: to rehearse an upgrade."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from starlette.types import Scope

from gateway.domain.spec import NodeId
from gateway.http.exchanges import PassedExchange

K = TypeVar("K")
V = TypeVar("V")

FOLDER = "exchanges"  # below the state directory: a file per partner
KINDS = 20  # kept per partner: the last exchange of each kind
MAX_BODY = 64 * 1024  # bytes; exchanges with a longer body are not kept
MAX_HEAD = 16 * 1024  # bytes of path, query and headers; exchanges with more are not kept
# Partners whose exchanges wait to be written, with nodes without a route if those are accepted
_MAX_PARTNERS = 100
MASK = "x"  # in place of a text
# Parts of a body whose texts are kept: a job's plan, without which no job could be created.
_KEPT_PARTS = frozenset({"dag", "role", "initiator"})
MASKED_PARTS = frozenset({"task_params"})
# Fields whose values are kept wherever they stand.
_KEPT_FIELDS = frozenset(
    {
        "code",
        "cpu",
        "disk",
        "flow_id",
        "inst_id",
        "job_id",
        "memory",
        "node_id",
        "party_id",
        "reason",
        "session_id",
        "status",
        "sync_type",
        "task_id",
        "task_name",
        "type",
        "version",
    }
)
_KEPT_HEADERS = frozenset({"content-type", "accept"})
_NODE_HEADERS = "node-id"  # end of the names of headers that hold a node's id


@dataclass(frozen=True)
class Exchange:
    """A partner's request and the response of this node.

    ``request`` and ``response`` are the bodies as JSON without their values, None for none. The
    headers are without their values as well, except those that say how a body is to be read.
    """

    partner: NodeId
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    request: Any
    status: int
    response: Any
    at: str  # UTC, ISO 8601

    @property
    def kind(self) -> tuple[str, str, int, Any]:
        """What makes two exchanges alike: the path, and the status and code of the response."""
        code = None
        if isinstance(self.response, dict):
            code = self.response.get("code")
        return self.method, self.path, self.status, code

    @property
    def is_playable(self) -> bool:
        """Whether the request can be sent again; a peer may send characters that clients refuse."""
        texts = [self.path, self.query, *self.headers.values()]
        return all(text.isascii() and text.isprintable() for text in texts)


@dataclass(frozen=True)
class RawExchange:
    """An exchange as it was on the wire; the bodies hold values."""

    partner: NodeId
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    request: bytes
    status: int
    response: bytes
    at: str

    def masked(self) -> Exchange | None:
        """Return the exchange without values; None if a body is not JSON, or too deep."""
        try:
            request = masked(_json_or_none(self.request))
            response = masked(_json_or_none(self.response))
        except (ValueError, RecursionError):
            return None
        headers = {name: _masked_header(name, value) for name, value in self.headers.items()}
        return Exchange(
            self.partner,
            self.method,
            self.path,
            self.query,
            headers,
            request,
            self.status,
            response,
            self.at,
        )


def _json_or_none(body: bytes) -> Any:
    """Return a body's JSON; None for an empty body. Raises ValueError."""
    if not body:
        return None
    return json.loads(body)


def _masked_header(name: str, value: str) -> str:
    """Return the value of a header that may be kept, or a mask."""
    if name in _KEPT_HEADERS or name.endswith(_NODE_HEADERS):
        return value
    return MASK


def masked(
    value: Any,
    field: str = "",
    *,
    is_kept: bool = False,
) -> Any:
    """Return JSON of the same form, with "x" for texts and 1 for numbers.

    ``field``: the name of the field that holds the value; ``is_kept``: the value is in a part of
    the body that is kept. True, false and null stay.
    """
    match value:
        case dict():
            fields = {}
            for name, part in value.items():
                keeps_part = (is_kept or name in _KEPT_PARTS) and name not in MASKED_PARTS
                fields[name] = masked(part, name, is_kept=keeps_part)
            return fields
        case list():
            return [masked(part, field, is_kept=is_kept) for part in value]
    if value is None or isinstance(value, bool) or is_kept or field in _KEPT_FIELDS:
        return value
    if isinstance(value, str):
        return MASK
    return type(value)(1)


def note_exchange(
    note: Callable[[RawExchange], None],
    clock: Callable[[], datetime],
    exchange: PassedExchange,
) -> None:
    """Pass an exchange to ``note`` if it is complete, and short enough to be kept."""
    request = exchange.request
    response = exchange.response
    if not (exchange.is_complete and request.is_kept and response.is_kept):
        return
    scope = exchange.scope
    if _head_size(scope) > MAX_HEAD:
        return
    note(
        RawExchange(
            exchange.partner,
            scope["method"],
            scope["path"],
            scope["query_string"].decode("latin-1"),
            _headers(scope),
            bytes(request.content),
            exchange.status,
            bytes(response.content),
            clock().isoformat(),
        )
    )


def _head_size(scope: Scope) -> int:
    """Return the bytes of a request's path, query and headers."""
    size = len(scope["path"]) + len(scope["query_string"])
    for name, value in scope["headers"]:
        size += len(name) + len(value)
    return size


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request, in lower case and with hyphens."""
    headers = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower().replace("_", "-")
        headers[key] = value.decode("latin-1")
    return headers


class ExchangeBook:
    """Keeps the last exchanges of each partner in memory, and writes them to files now and then."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the files' folder; it is created with the first file."""
        self._folder = folder
        self._lock = Lock()
        # By partner and kind, the oldest first
        self._new: dict[NodeId, dict[tuple[str, str, int], RawExchange]] = {}

    def __len__(self) -> int:
        """Return the number of exchanges that wait to be written."""
        return sum(map(len, self._new.values()))

    def add(self, exchange: RawExchange) -> None:
        """Keep an exchange in place of the last one of its kind; the oldest ones make room."""
        kind = (exchange.method, exchange.path, exchange.status)
        with self._lock:
            latest = self._new.setdefault(exchange.partner, {})
            latest.pop(kind, None)
            latest[kind] = exchange
            _drop_oldest(latest, KINDS)
            _drop_oldest(self._new, _MAX_PARTNERS)

    def save(self) -> None:
        """Write the exchanges since the last call. Raises OSError."""
        with self._lock:
            by_partner = self._new
            self._new = {}
        for partner, latest in by_partner.items():
            exchanges = []
            for raw in latest.values():
                exchange = raw.masked()
                if exchange is not None and exchange.is_playable:
                    exchanges.append(exchange)
            if exchanges:
                self._save_partner(partner, exchanges)

    def _save_partner(
        self,
        partner: NodeId,
        latest: Iterable[Exchange],
    ) -> None:
        """Add exchanges to a partner's file. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        file = self._folder / f"{quote(partner, safe='')}.json"
        by_kind = {repr(exchange.kind): exchange for exchange in _read(file)}
        for exchange in latest:
            by_kind[repr(exchange.kind)] = exchange
        newest_first = sorted(by_kind.values(), key=_time, reverse=True)
        text = json.dumps([asdict(exchange) for exchange in newest_first[:KINDS]])
        part = file.with_suffix(".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        part.replace(file)


def _drop_oldest(entries: dict[K, V], limit: int) -> None:
    """Remove the oldest entry of a dictionary with more than ``limit`` entries."""
    if len(entries) > limit:
        del entries[next(iter(entries))]


def _time(exchange: Exchange) -> str:
    """Return when a request arrived."""
    return exchange.at


def kept_exchanges(folder: Path) -> Sequence[Exchange]:
    """Return the exchanges in the files of a folder, each partner's oldest first."""
    exchanges: list[Exchange] = []
    for file in sorted(folder.glob("*.json")):
        partner = unquote(file.stem)
        for exchange in reversed(_read(file)):
            exchanges.append(replace(exchange, partner=partner))
    return exchanges


def _read(file: Path) -> Sequence[Exchange]:
    """Return the exchanges in a file; none if it is missing or cannot be read as such."""
    exchanges: list[Exchange] = []
    with suppress(OSError, ValueError, TypeError):
        for fields in json.loads(file.read_text(encoding="utf-8")):
            exchanges.append(Exchange(**fields))
    return exchanges
