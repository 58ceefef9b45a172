"""Registering, retiring and approving providers: who may, what their images are, and which jobs use them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from anyio import CapacityLimiter

from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid, NotAllowed, NotFound, Refused
from gateway.providers.images import Images, Looked, pinned
from provider_registry.model import InvalidDescription, Provider, bounded, join
from provider_registry.registration import read, read_value
from provider_registry.registry import Change, Registry, Unknown, Written

_SHOWN = 5
"""how many jobs a reason names"""


@dataclass(frozen=True)
class By:
    """Who requests a change. An admin may change every provider, a vendor only its own."""

    name: str = "operator"
    admin: bool = True


def asking(name: str, role: str) -> By:
    """Return who requests a change, as the operators' guard knows it; without tokens a user of this machine."""
    return By(name or "operator", role in ("", "admin"))


@dataclass(frozen=True)
class Gone:
    """What became of providers that were to be deleted."""

    deleted: tuple[str, ...]
    retired: tuple[str, ...]
    """used by jobs that are not over"""


AT_ONCE = 4
"""registrations processed at the same time; others wait without holding a thread"""


class Providers:
    """The provider registry as vendors and admins use it."""

    def __init__(
        self,
        registry: Registry,
        images: Images,
        unfinished: Callable[[], Iterable[JobSpec]],
        *,
        require_image: bool = False,
        storage_rule: Callable[[Sequence[str]], str] = lambda engines: "",
    ) -> None:
        """``unfinished`` yields every job that is not over here.

        ``storage_rule`` says what becomes here of a component with this storageEngine; empty: nothing.

        ``require_image``: an image that cannot be inspected refuses its registration.
        """
        self.registry = registry
        self._images = images
        self._unfinished = unfinished
        self._require_image = require_image
        self._storage_rule = storage_rule
        self.limiter = CapacityLimiter(AT_ONCE)
        """the threads for registrations, which may wait for images"""
        self._reading = Lock()
        """large descriptions are read one at a time, so that other requests get their turn"""

    def register(
        self,
        body: bytes | Mapping[str, Any],
        by: By,
        reason: str = "",
        *,
        strict: bool = False,
        single: bool = False,
    ) -> Written:
        """Register a provider, or one component with its image, whichever the body (or its JSON text) is.

        ``single``: it is the latter where it does not show which. With ``strict`` an image that cannot be
        inspected refuses it. Raises `Invalid` with every problem, `NotAllowed` (NOT_OWNER).
        """
        provider, single = self._read(body, single)
        owner = self.registry.repository.owner(provider.name)
        if owner is not None:
            _refuse_other(provider.name, owner, by)
        looked = self._images.look(provider.every_image(), provider.place, provider.name)
        if unsigned := [one for one in looked if one.unsigned]:
            raise Invalid((_missing(one, single) for one in unsigned), reason=unsigned[0].reason)
        missing = [one for one in looked if one.reason]
        if missing and (strict or self._require_image):
            raise Invalid((_missing(one, single) for one in missing), reason="IMAGE_NOT_USABLE")
        provider = self._with_storages(pinned(provider, looked))
        _refuse_other(
            provider.name,
            self.registry.repository.claim(provider.name, "" if by.admin else by.name),
            by,
        )
        done = self.registry.register_component if single else self.registry.register
        return done(provider, by.name, reason)

    def _with_storages(self, provider: Provider) -> Provider:
        """Warn once where this node has none of the storages that a component lists."""
        found = [
            Problem(
                join("components_description", name, "storageEngine"),
                rule,
                list(one.storage_engines),
            )
            for name, one in provider.components.items()
            if (rule := self._storage_rule(one.storage_engines))
        ]
        return (
            replace(provider, warnings=bounded([*found, *provider.warnings])) if found else provider
        )

    def retire(
        self,
        key: str,
        by: By,
        reason: str = "",
    ) -> Written:
        """Have no new job use a provider. Raises `NotFound`, `NotAllowed`."""
        return self._changed(key, by, lambda: self.registry.retire(key, by.name, reason))

    def unretire(
        self,
        key: str,
        by: By,
        reason: str = "",
    ) -> Written:
        """Take `retire` back. Raises `NotFound`, `NotAllowed`."""
        return self._changed(key, by, lambda: self.registry.unretire(key, by.name, reason))

    def approve(
        self,
        key: str,
        by: By,
        reason: str = "",
        image: str = "",
    ) -> Written:
        """Have the images as they are now be the right ones; with ``image`` only that one."""

        def work() -> Written:
            provider = self.registry.get(key)
            every = provider.every_image()
            if image and image not in every:
                raise NotFound(
                    f"{key} has no image {image}; it has {', '.join(every)}", reason="IMAGE_UNKNOWN"
                )
            looked = self._images.look([image] if image else every, provider.place, provider.name)
            wrong = [f"{one.image}: {_cause(one)}" for one in looked if not one.facts.digest]
            if wrong:
                unsigned = next((one.reason for one in looked if one.unsigned), "IMAGE_NOT_USABLE")
                raise Refused("; ".join(wrong), reason=unsigned)
            digests = {one.image: one.facts.digest for one in looked}
            return self.registry.approve(key, digests, by.name, reason)

        return self._changed(key, by, work)

    def delete(self, by: By, **parts: str) -> Gone:
        """Delete what has all the given parts; what jobs still use is retired instead."""
        if not any(parts.values()):
            raise Invalid([Problem("name", "must be given, or device, version or provider_name")])
        chosen = self.registry.query(**parts)
        for provider in chosen:
            _refuse_other(provider.name, self.owner(provider.name), by)
        users = self._users() if chosen else {}
        deleted, retired = [], []
        for provider in chosen:
            jobs = users.get((provider.name, provider.version), [])
            if jobs:
                shown = ", ".join(jobs[:_SHOWN]) + (", …" if len(jobs) > _SHOWN else "")
                self.registry.retire(provider.key, by.name, f"was to be deleted; used by {shown}")
                retired.append(provider.key)
            else:
                self.registry.remove(provider.key, by.name)
                deleted.append(provider.key)
        return Gone(tuple(deleted), tuple(retired))

    def users(self, provider: Provider) -> list[str]:
        """Return the jobs that are not over and use a provider."""
        return self._users().get((provider.name, provider.version), [])

    def give(self, name: str, owner: str) -> str | None:
        """Make a vendor, by the name of its tokens, the owner of a provider's name; return who was.

        Empty: the node's admins. Raises `NotFound` for a name that was never registered.
        """
        before = self.registry.repository.owner(name)
        if before is None:
            raise NotFound(
                f"no provider {name[:128]} was ever registered", reason="PROVIDER_UNKNOWN"
            )
        self.registry.repository.give(name, owner)
        return before

    def owner(self, name: str) -> str:
        """Return whose a name is; empty: the node's admins', or nobody's yet."""
        return self.registry.repository.owner(name) or ""

    def _changed(
        self,
        key: str,
        by: By,
        work: Callable[[], Written],
    ) -> Written:
        try:
            name = self.registry.get(key).name
            _refuse_other(name, self.owner(name), by)
            return work()
        except Unknown as error:
            raise NotFound(error.message, reason=error.reason) from error

    def _read(self, body: bytes | Mapping[str, Any], single: bool) -> tuple[Provider, bool]:
        """Return (provider, whether the body is one component with its image). Raises `Invalid`."""
        try:
            with self._reading:
                return read(body, single) if isinstance(body, bytes) else read_value(body, single)
        except InvalidDescription as error:
            raise Invalid(error.problems) from error

    def _users(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for spec in self._unfinished():
            for ref in {
                (node.component.provider, node.component.version) for node in spec.dag.nodes
            }:
                jobs = found.setdefault(ref, [])
                if spec.job_id not in jobs:
                    jobs.append(spec.job_id)
        return found


def audited(done: Written) -> dict[str, Any]:
    """Return what the audit keeps of a change: before and after of all that differs."""
    return {
        "provider": done.revision.key,
        "action": str(done.revision.action) if done.written else "unchanged",
        "revision": done.revision.number,
        "changes": shown_changes(done.changes),
    }


def shown_problem(problem: Any) -> dict[str, Any]:
    """Return a warning as answers show it; ``suggestion`` only where there is one."""
    shown = {
        "path": problem.path,
        "rule": problem.rule,
        "got": problem.got,
    }
    return shown | ({"suggestion": problem.suggestion} if problem.suggestion else {})


def shown_changes(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Return changes of a description for JSON."""
    return [change._asdict() for change in changes]


def _refuse_other(
    name: str,
    owner: str,
    by: By,
) -> None:
    if by.admin or owner == by.name:
        return
    whose = f"belongs to {owner}" if owner else "belongs to this node's admins"
    text = f"the provider name {name} {whose}, not to {by.name}; an admin can give it: bfia-gateway provider give"
    raise NotAllowed(text, reason="NOT_OWNER")


def _missing(one: Looked, single: bool) -> Problem:
    rule = f"must be an image that can be inspected ({_cause(one)})"
    return Problem("imageUrl" if single else "metadata.image", rule, one.image)


def _cause(one: Looked) -> str:
    if one.reason:
        return f"{one.reason}: {one.message}"
    return "NO_DIGEST: the engine cannot tell this image from another with the same name"
