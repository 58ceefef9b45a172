"""Domain value <-> JSON; the only code that knows both.

A converter is built once per type from its annotations. What a stored text lacks takes the field's default, so
that a field can be added without rewriting rows; what it has beyond the type is left out.
"""

import json
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gateway.domain.job import Job, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Note
from gateway.domain.states import TaskStatus

T = TypeVar("T")
Convert = Callable[[Any], Any]


def dumps(value: Any) -> str:
    """Write a domain value (or plain data) as JSON text."""
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def loads(cls: type[T], text: str, **elsewhere: Any) -> T:
    """Read a value of this type from what `dumps` wrote; ``elsewhere``: fields that have a column of their own."""
    data = json.loads(text)
    kind: Any = cls
    return cast(T, _of_dataclass(kind)(data, elsewhere) if elsewhere else _reader(kind)(data))


def record(value: Any) -> str:
    """Write a job's record, without what is as by default.

    Its tasks or runs are many and seldom change, so each keeps its text: a value is frozen, a changed one is new.
    """
    parts = []
    for name, kept in _sparse(value).items():
        match kept:
            case dict() if kept and is_dataclass(
                next(iter(kept.values()))
            ):  # a field's values are all of one kind
                text = "{" + ",".join([f"{_quoted(k)}:{_kept(v)}" for k, v in kept.items()]) + "}"
            case tuple() if kept and is_dataclass(kept[0]):
                text = "[" + ",".join(map(_kept, kept)) + "]"
            case _:
                text = _sparsely(kept)
        parts.append(f'"{name}":{text}')
    return "{" + ",".join(parts) + "}"


_quoted = lru_cache(maxsize=16384)(json.dumps)
_TEXT = "_stored_text"


def _kept(part: Any) -> str:
    beside: dict[str, Any] = part.__dict__
    text: str | None = beside.get(_TEXT)
    if text is None:
        text = beside[_TEXT] = _sparsely(part)
    return text


def _sparsely(value: Any) -> str:
    return json.dumps(value, default=_sparse_plain, ensure_ascii=False, separators=(",", ":"))


def to_plain(value: Any) -> Any:
    """Return the value as dictionaries, lists and scalars."""
    return json.loads(dumps(value))


def _sparse(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    return {
        name: kept
        for name, default in _defaults(cls).items()
        if (kept := getattr(value, name)) is not default and kept != default
    }


def _sparse_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _sparse(value)
    return _plain(value)


@cache
def _defaults(cls: type) -> dict[str, Any]:
    """Return each stored field with its default; where it has none, with something that nothing equals."""
    found = {f.name: f for f in fields(cls) if f.name in _stored(cls)}
    return {
        name: f.default_factory() if f.default_factory is not MISSING else f.default for name, f in found.items()
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _stored(type(value))}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"cannot store a {type(value).__name__}")


_ELSEWHERE = ("notes", "spec")
"""Fields of a job's record that have a table or a column of their own."""


@cache
def _stored(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls) if f.init and f.name not in _ELSEWHERE)


@cache
def _reader(annotation: Any) -> Convert:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _optional(annotation)
    if origin is tuple:
        item = _reader(get_args(annotation)[0])
        return lambda values: tuple(map(item, values))
    if origin is not None and issubclass(origin, Mapping):
        key, value = map(_reader, get_args(annotation))
        return lambda pairs: {key(k): value(v) for k, v in pairs.items()}
    if annotation is Any or not isinstance(annotation, type):
        return lambda value: value
    if is_dataclass(annotation):
        return _of_dataclass(annotation)
    if issubclass(annotation, datetime):
        return datetime.fromisoformat
    if issubclass(annotation, Enum):
        return annotation
    return lambda value: value


def _optional(annotation: Any) -> Convert:
    inner = [a for a in get_args(annotation) if a is not type(None)]
    convert: Convert = _reader(inner[0]) if len(inner) == 1 else lambda value: value
    return lambda value: None if value is None else convert(value)


@cache
def _of_dataclass(cls: type) -> Callable[..., Any]:
    hints = get_type_hints(cls)
    known = [f for f in fields(cls) if f.name in _stored(cls)]
    optional = {f.name for f in known if f.default is not MISSING or f.default_factory is not MISSING}
    readers = [(f.name, _reader(hints[f.name]), f.name in optional) for f in known]

    def read(data: Mapping[str, Any], elsewhere: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
        kept = {n: convert(data[n]) for n, convert, has in readers if n in data or not has}
        return cls(**kept, **elsewhere)

    return read


def note_row(job_id: str, side: str, note: Note) -> dict[str, Any]:
    """Return a timeline's line as a row; texts are cut to the columns."""
    return {
        "job_id": job_id,
        "side": side,
        "at": note.at.timestamp() if note.at.year > 1 else 0.0,
        "event": note.event[:255],
        "actor": note.by[:255],
        "detail": dumps(note.detail),
    }


def tasks_of(job: Job) -> Iterable[Task]:
    """Return what has rows of its own in a scheduler's record."""
    return job.tasks.values()


def task_rows(job_id: str, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the row of a task, and those of its earlier attempts, which had other ids."""
    number, status = task.attempt, str(task.status)
    yield {"task_id": task.task_id, "job_id": job_id, "name": task.name, "status": status, "attempt": number}
    for past in task.attempts:
        status = str(TaskStatus.FAILED)
        yield {
            "task_id": past.task_id,
            "job_id": job_id,
            "name": task.name,
            "status": status,
            "attempt": past.number,
        }


def runs_of(local: LocalJob) -> Iterable[Run]:
    """Return what has rows of its own in a participant's record."""
    return local.runs


def run_rows(job_id: str, run: Run) -> Iterator[dict[str, Any]]:
    """Yield the row by which a run is found: by its id, its name, its token, its task."""
    yield {
        "run_id": run.run_id,
        "name": run.name,
        "token": run.token,
        "job_id": job_id,
        "task_id": run.task_id,
        "role": run.party.role,
        "idx": run.party.index,
        "attempt": run.attempt,
        "status": str(run.status),
        "owner": run.owner,
    }


def as_time(seconds: float) -> datetime:
    """Return the time that a column holds as seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
