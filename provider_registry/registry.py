"""The providers that are registered here, and how a job's component is found among them."""

import json
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from provider_registry.model import (
    ANY,
    DEVICES,
    Component,
    Provider,
    as_text,
    bounded,
    join,
    near,
    shorten,
)
from provider_registry.registration import DEVICE

_ALIKE = 0.75
"""how alike a registered name must be to be the one that was meant"""
MOST_CHANGES = 200
_PARTS = re.compile(r"[0-9]+|[^0-9.]+")
_NAMES = ("name", "value", "resultCode")
"""by which of its fields an entry of a list is recognised, if each entry has it"""
_ABSENT: Any = object()


class Action(StrEnum):
    """What was done to a provider."""

    REGISTERED = "registered"
    UPDATED = "updated"
    RETIRED = "retired"
    UNRETIRED = "unretired"
    APPROVED = "approved"
    PINNED = "pinned"
    """the node itself, when an image that was not here at the registration was here for the first time"""
    DELETED = "deleted"


@dataclass(frozen=True)
class Revision:
    """A state of a provider and who made it so. Numbers count from 1 per key, and go on after a deletion."""

    key: str
    number: int
    at: datetime
    author: str
    action: Action
    reason: str
    provider: Provider
    """as it was from then on; of a deletion, as it was until then"""


class Change(NamedTuple):
    """One difference. ``before`` is None where something is new, ``after`` where it is gone."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {as_text(self.after)}"
        if self.after is None:
            return f"- {self.path}: {as_text(self.before)}"
        before, after = as_text(self.before), as_text(self.after)
        if before == after:  # of another type
            before, after = json.dumps(self.before), json.dumps(self.after)
        return f"~ {self.path}: {before} → {after}"


def changes(before: Provider | None, after: Provider | None) -> tuple[Change, ...]:
    """Return how two states of a provider differ, each place with both values cut short; `MOST_CHANGES` at most.

    Entries of lists are compared by their names, so that moving one is not a change. Warnings are not compared.
    """
    old, new = (
        {**p.document(), "warnings": None} if p else {"warnings": None} for p in (before, after)
    )
    return tuple(islice(_differences("", old, new), MOST_CHANGES))


def _differences(
    path: str,
    old: Any,
    new: Any,
) -> Iterator[Change]:
    if old == new and type(old) is type(new):
        return
    old_parts, new_parts = parts(old), parts(new)
    if old_parts is None or new_parts is None:
        yield Change(path, _shown(old), _shown(new))
        return
    for name in dict.fromkeys((*old_parts, *new_parts)):
        at = f"{path}[{name}]" if isinstance(new, list) else join(path, name)
        yield from _differences(at, old_parts.get(name, _ABSENT), new_parts.get(name, _ABSENT))


def parts(value: Any) -> Mapping[str, Any] | None:
    """Return an object, or a list whose entries have names, as parts by name; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(entry, Mapping) for entry in value)
    ):
        return None
    for name_field in _NAMES:
        names = [entry.get(name_field) for entry in value]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return {str(name)[:128]: entry for name, entry in zip(names, value, strict=True)}
    return None


def _shown(value: Any) -> Any:
    return None if value is _ABSENT else "null" if value is None else shorten(value)


def order(version: str) -> tuple[Any, ...]:
    """Return what versions are sorted by: 1.9 before 1.10, 2.0.0-rc1 before 2.0.0; no two versions are alike.

    What follows a ``+`` counts only between versions that are otherwise the same.
    """
    main, _, before = version.partition("+")[0].removeprefix("v").partition("-")
    return _version_parts(main), not before, _version_parts(before), version


def _version_parts(text: str) -> tuple[tuple[int, int, str], ...]:
    found: list[tuple[int, int, str]] = [
        (1, int(p), "") if p.isdecimal() else (0, 0, p) for p in _PARTS.findall(text)
    ]
    while found and found[-1] == (1, 0, ""):
        found.pop()
    return tuple(found)


class Stale(Exception):
    """Somebody else wrote the revision of that number."""


class Repository(Protocol):
    """Where providers are kept, by `Provider.key`. Safe to use from several threads and processes."""

    def get(self, key: str) -> Provider | None:
        """Return what is registered now, retired or not."""

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""

    def write(self, revision: Revision) -> None:
        """Store a revision and its provider as the present state. Raises `Stale` if its number is taken."""

    def newest(self, key: str) -> int:
        """Return the number of the last revision; 0 if there was never one."""

    def history(
        self,
        key: str,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Revision]:
        """Return revisions, newest first; with ``before`` those of lower numbers."""

    def since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment if another one followed it, else None."""

    def owner(self, name: str) -> str | None:
        """Return who owns a provider's name; empty: the node's admins; None: nobody yet."""

    def claim(self, name: str, owner: str) -> str:
        """Set the owner of a name that has none; return who owns it now."""

    def give(self, name: str, owner: str) -> None:
        """Set the owner of a name."""


T = TypeVar("T")
_SHOWN = 10
"""how many known names a message lists"""
_ONCE = (Action.UPDATED, Action.RETIRED, Action.UNRETIRED, Action.PINNED)
"""what makes no revision where nothing would change"""
_TRIES = 16
"""how often a change is made again because another one came first"""


class Unknown(Exception):
    """No such component is registered. ``reason`` says which part of its key is unknown."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Written:
    """A change that was made, and what there was before it."""

    revision: Revision
    before: Provider | None
    created: bool
    written: bool = True
    """False where it was so before: ``revision`` is then the newest there is"""

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What is different now, component by component."""
        gone = self.revision.action is Action.DELETED
        return changes(self.before, None if gone else self.revision.provider)


class Registry:
    """Registers, finds, lists, retires and removes providers; every change is a `Revision`.

    ``provider_name`` in a query is ``name``, ``name:version``, ``name@device`` or the full key; ``*`` stands for
    any part. Names that are not given do not restrict.
    """

    def __init__(
        self, repository: Repository, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.repository = repository
        self._clock = clock
        self._view = threading.local()

    @contextmanager
    def one_view(self) -> Iterator[None]:
        """Have `find` read each provider once, as long as this thread stays within."""
        outer: dict[Hashable, Any] | None = getattr(self._view, "read", None)
        self._view.read = {} if outer is None else outer
        try:
            yield
        finally:
            self._view.read = outer

    def register(
        self,
        provider: Provider,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Store a provider; one of the same key is replaced. The same once more: no revision.

        It stays retired if it was, and an approved image that cannot be inspected now stays approved.
        """

        def replaced(known: Provider | None) -> Provider:
            if known is None:
                return provider
            kept = {i: known.digests[i] for i in provider.every_image() if i in known.digests}
            return replace(provider, retired=known.retired, digests={**kept, **provider.digests})

        return self._write(provider.key, replaced, Action.UPDATED, author, reason)

    def register_component(
        self,
        provider: Provider,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Add the components of ``provider`` to the registered one of its key; ``created`` if any is new there.

        A component keeps the image it was registered with, also where that is not the provider's.
        """

        def joined(known: Provider | None) -> Provider:
            return provider if known is None else _merged(known, provider)

        done = self._write(provider.key, joined, Action.UPDATED, author, reason)
        known = done.before.components.keys() if done.before else frozenset()
        return replace(done, created=not provider.components.keys() <= known)

    def retire(
        self,
        key: str,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Retire a provider: new jobs cannot use it, those under way continue. A repetition makes no revision.

        Raises `Unknown`.
        """
        return self._change(key, lambda p: replace(p, retired=True), Action.RETIRED, author, reason)

    def unretire(
        self,
        key: str,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Take `retire` back. Raises `Unknown`."""
        return self._change(
            key, lambda p: replace(p, retired=False), Action.UNRETIRED, author, reason
        )

    def approve(
        self,
        key: str,
        digests: dict[str, str],
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Have these images, by their digests, be the right ones from now on. Raises `Unknown`."""
        return self._change(
            key,
            lambda p: replace(p, digests={**p.digests, **digests}),
            Action.APPROVED,
            author,
            reason,
        )

    def pin(
        self,
        provider: str,
        version: str,
        image: str,
        digest: str,
    ) -> str:
        """Have an image that has no approved digest be the right one by this digest; return what is approved.

        A deleted provider is left alone.
        """
        why, digests = f"{image} was started for the first time", {image: digest}
        try:
            key = self._named(provider, version).key
            done = self._change(
                key,
                lambda p: replace(p, digests={**digests, **p.digests}),
                Action.PINNED,
                "gateway",
                why,
            )
        except Unknown:
            return digest
        return done.revision.provider.digests[image]

    def remove(self, key: str, author: str = "") -> Written:
        """Remove one provider; its history stays. Raises `Unknown`."""
        return self._change(key, lambda p: p, Action.DELETED, author, "")

    def history(
        self,
        key: str,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Revision]:
        """Return what happened to a provider, newest first. Raises `Unknown` if nothing ever did."""
        found = self.repository.history(key, before, limit)
        if not found and not self.repository.newest(key):
            raise self._unknown(*_parts(key))
        return found

    def revision(self, key: str, number: int) -> Revision:
        """Return one revision. Raises `Unknown`."""
        found = self.repository.history(key, number + 1, 1)
        if not found or found[0].number != number:
            raise Unknown("VERSION_UNKNOWN", f"{shorten(key)} has no revision {number}")
        return found[0]

    def get(self, key: str) -> Provider:
        """Return a provider, retired or not. Raises `Unknown`."""
        if (found := self.repository.get(key)) is None:
            raise self._unknown(*_parts(key))
        return found

    def named(self, name: str) -> Provider:
        """Return the provider of a full name, or the newest of those that a name without all its parts stands for.

        One in use comes before a retired one. Raises `Unknown`.
        """
        provider, version, device = _parts(name)
        candidates = self.query(provider, device, version) if provider else []
        if not candidates:
            raise self._unknown(provider, version, device)
        in_use = [candidate for candidate in candidates if not candidate.retired]
        return max(in_use or candidates, key=_newest_on_first_device)

    def find(
        self,
        provider: str,
        version: str,
        name: str,
        at: datetime | None = None,
    ) -> tuple[Provider, Component]:
        """Return the component and the provider that has it; raises Unknown.

        ``at`` is when the job began that asks: it gets what was registered then, whatever became of that since,
        only with the images that are approved now.
        """
        found = self._named(provider, version, at)
        if found.retired:
            others = [p.version for p in self._of_jobs(provider) if not p.retired]
            rest = (
                f"versions in use are {_some(others)}"
                if others
                else "no other version is registered"
            )
            until = "until an admin takes it back (bfia-gateway provider unretire)"
            text = f"provider {found.key} is retired: jobs that begin now cannot use it {until}; {rest}"
            raise Unknown("PROVIDER_RETIRED", text)
        if name not in found.components:
            meant = near(name, found.components, _ALIKE)
            rest = f"has no component {shorten(name)}; it has {_some(found.components)}"
            rest += f" (did you mean {meant}?)" if meant else ""
            raise Unknown("COMPONENT_UNKNOWN", f"provider {found.key} {rest}")
        return found, found.components[name]

    def newest(self, provider: str, name: str) -> str:
        """Return the highest version of a provider that is not retired and has a component. Raises `Unknown`."""
        known = self._of_jobs(provider) if provider and provider != ANY else []
        fit = [p.version for p in known if name in p.components and not p.retired]
        if fit:
            return max(fit, key=order)
        if not known:
            raise self._unknown(provider, ANY, DEVICE)
        if all(p.retired for p in known):
            raise Unknown(
                "PROVIDER_RETIRED", f"every version of provider {shorten(provider)} is retired"
            )
        in_use = _some(p.version for p in known if not p.retired)
        raise Unknown(
            "COMPONENT_UNKNOWN",
            f"no version of provider {shorten(provider)} in use ({in_use}) has a component {shorten(name)}",
        )

    def query(
        self,
        name: str | None = None,
        device: str | None = None,
        version: str | None = None,
        provider_name: str | None = None,
    ) -> list[Provider]:
        """Return the providers that have all the given parts."""
        wanted = [(name, version, device), _parts(provider_name)]
        return [
            p
            for p in self.repository.list()
            if all(
                part in (None, "", "*", own)
                for parts in wanted
                for part, own in zip(parts, (p.name, p.version, p.device), strict=True)
            )
        ]

    def _of_jobs(self, provider: str) -> list[Provider]:
        return [known for known in self.query(name=provider) if known.device in DEVICES]

    def _named(
        self,
        provider: str,
        version: str,
        at: datetime | None = None,
    ) -> Provider:
        """Return what a job means, on the first device that it is registered for. Raises `Unknown`."""
        for device in DEVICES:
            key = f"{provider}:{version}@{device}"
            found = self._once(key, partial(self.repository.get, key))
            past = (
                self._once((key, at), partial(self.repository.since, key, at))
                if at is not None
                else None
            )
            if past is not None and past.action is not Action.DELETED:
                now_approved = found.digests if found is not None else {}
                return replace(past.provider, digests={**past.provider.digests, **now_approved})
            if found is not None:
                return found
        raise self._unknown(provider, version, DEVICE)

    def _once(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return what was read for this key in the open view, or read it."""
        known = getattr(self._view, "read", None)
        if known is None:
            return read()
        if key not in known:
            known[key] = read()
        found: T = known[key]
        return found

    def _change(
        self,
        key: str,
        change: Callable[[Provider], Provider],
        action: Action,
        author: str,
        reason: str,
    ) -> Written:
        """Do as `_write` with a provider that is there. Raises `Unknown`."""

        def changed(known: Provider | None) -> Provider:
            if known is None:
                raise self._unknown(*_parts(key))
            return change(known)

        return self._write(key, changed, action, author, reason)

    def _write(
        self,
        key: str,
        make: Callable[[Provider | None], Provider],
        action: Action,
        author: str,
        reason: str,
    ) -> Written:
        """Make the next revision of what there is; begin again if another came first."""
        for left in reversed(range(_TRIES)):
            newest = next(iter(self.repository.history(key, limit=1)), None)
            before = None if newest is None or newest.action is Action.DELETED else newest.provider
            after = make(before)
            if newest is not None and after == before and action in _ONCE:
                return Written(newest, before, False, written=False)
            done = Action.REGISTERED if action is Action.UPDATED and before is None else action
            number = newest.number + 1 if newest is not None else 1
            revision = Revision(key, number, self._clock(), author, done, reason, after)
            try:
                self.repository.write(revision)
            except Stale:
                if not left:
                    raise
                continue
            return Written(revision, before, before is None)
        raise AssertionError("unreachable")

    def _unknown(
        self,
        provider: str,
        version: str,
        device: str,
    ) -> Unknown:
        device = device or DEVICE
        same_name = self.query(name=provider) if provider and provider != "*" else []
        here = [p.version for p in same_name if p.device == device]
        if same_name and (not version or version in here):
            keys = _some(p.key for p in same_name)
            text = f"name a version and a device of provider {shorten(provider)}: {keys}"
            return Unknown("VERSION_UNKNOWN", text)
        if here:
            rest = f"has no version {shorten(version)}; it has {_some(here)}"
            return Unknown("VERSION_UNKNOWN", f"provider {shorten(provider)} on {device} {rest}")
        text = f"no provider {shorten(provider)} is registered"
        text += f" on {device}" if same_name or device != DEVICE else ""
        elsewhere = f"it is registered as {_some(p.key for p in same_name)}"
        if not same_name and (
            meant := near(provider, {p.name: None for p in self.repository.list()}, _ALIKE)
        ):
            text += f", but {meant} is: did you mean that?"
        register = "register it with: bfia-gateway provider register FILE"
        return Unknown("PROVIDER_UNKNOWN", f"{text}; {elsewhere if same_name else register}")


def _merged(known: Provider, added: Provider) -> Provider:
    places = [join("components_description", name) for name in added.components]
    replaced = tuple(place + mark for place in places for mark in ".[")
    images = {name: image for name, image in known.images.items() if name not in added.components}
    if added.image != known.image:
        images |= dict.fromkeys(added.components, added.image)
    return replace(
        known,
        components={**known.components, **added.components},
        images=images,
        digests={**known.digests, **added.digests},
        warnings=bounded(
            [w for w in known.warnings if not w.path.startswith(replaced)] + list(added.warnings)
        ),
    )


def _newest_on_first_device(provider: Provider) -> tuple[Any, ...]:
    known = provider.device in DEVICES
    return order(provider.version), -DEVICES.index(provider.device) if known else -len(DEVICES)


def _parts(provider_name: str | None) -> tuple[str, str, str]:
    """Split ``name:version@device`` into its parts; a part that is not there is empty."""
    rest, _, device = (provider_name or "").partition("@")
    name, _, version = rest.partition(":")
    return name, version, device


def _some(names: Iterable[str]) -> str:
    every = list(names)
    shown = ", ".join(every[:_SHOWN]) or "none"
    return f"{shown}, …" if len(every) > _SHOWN else shown
