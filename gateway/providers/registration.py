"""Registering, retiring, approving and deleting providers.

A change requires the permission to make it. A registration inspects the provider's images. A
provider that unfinished jobs use is retired instead of deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from types import MappingProxyType
from typing import Any

from anyio import CapacityLimiter

from gateway.config.schema.engine import Allowance
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid, NotAllowed, NotFound, Refused
from gateway.providers.images import Images, InspectedImage, pin_images
from gateway.providers.rights import rights_in_words
from provider_registry.model import (
    ENGINE_UNSUITABLE,
    InvalidDescription,
    Provider,
    bounded,
    join,
)
from provider_registry.registration import read, read_value
from provider_registry.registry import Registry, Unknown, Written
from provider_registry.revisions import Change

MAX_CONCURRENT = 4  # registrations at the same time; further ones wait without a thread
_MAX_LISTED_JOBS = 5  # jobs named in the reason of a provider's retirement
_MAX_NAME = 128  # characters of a provider's name that a message repeats


@dataclass(frozen=True)
class Requester:
    """The person who requests a change.

    An admin may change every provider, a vendor only its own.
    """

    name: str = "operator"
    admin: bool = True  # False for a vendor

    @property
    def as_owner(self) -> str:
        """The owner of provider names that the requester registers; empty for the node's admins."""
        if self.admin:
            return ""
        return self.name


def requester_of(name: str, role: str) -> Requester:
    """Return the requester with the name and role that the operators' listener has found.

    An empty role is that of a user of this machine, who is an admin.
    """
    return Requester(name or "operator", admin=role in ("", "admin"))


@dataclass(frozen=True)
class Deletion:
    """The result of deleting providers: the keys of those deleted, and of those only retired."""

    deleted: tuple[str, ...]
    retired: tuple[str, ...]  # because unfinished jobs use them


def accept_any_storage(engines: Sequence[str]) -> str:
    """Return an empty text: this node can use a component with any storage engines."""
    return ""


def demand_no_reports(provider: str) -> Sequence[Problem]:
    """Return nothing: this node demands no attestation reports of a provider's runs."""
    return ()


class Providers:
    """The provider registry as vendors and admins use it."""

    def __init__(
        self,
        registry: Registry,
        images: Images,
        unfinished: Callable[[], Iterable[JobSpec]],
        *,
        require_image: bool = False,
        allow: Mapping[str, Allowance] = MappingProxyType({}),
        attested: Mapping[str, str] = MappingProxyType({}),
        storage_rule: Callable[[Sequence[str]], str] = accept_any_storage,
        report_problems: Callable[[str], Sequence[Problem]] = demand_no_reports,
    ) -> None:
        """Build the use cases from their parts.

        - ``unfinished`` returns the specification of every unfinished job of this node
        - ``require_image``: refuse every registration with an image that cannot be inspected
        - ``allow``: additional rights of providers' containers, by the provider's name
        - ``attested``: TEE platforms of which runs must bring reports, by the provider's name
        - ``storage_rule`` returns why this node cannot use a component's storage engines; empty if
          it can
        - ``report_problems`` returns why this node can verify no report that it demands of a
          provider's runs, by the provider's name
        """
        self.registry = registry
        self._images = images
        self._unfinished = unfinished
        self._require_image = require_image
        self._allow = allow
        self._attested = attested
        self._storage_rule = storage_rule
        self._report_problems = report_problems
        # Limits the threads that the listeners use for registrations, as these may wait long for
        # images.
        self.limiter = CapacityLimiter(MAX_CONCURRENT)
        # Parsing a large description keeps the processor busy: one at a time, so that other
        # requests get their turn.
        self._reading = Lock()

    # ------------------------------------------------------------ registering

    def register(
        self,
        body: bytes | Mapping[str, Any],
        by: Requester,
        reason: str = "",
        *,
        strict: bool = False,
        single: bool = False,
    ) -> Written:
        """Register a provider, or one component with its image.

        - ``body``: the request's body, as JSON text or parsed
        - ``strict``: refuse the registration if an image cannot be inspected
        - ``single``: read the body as one component if it could be either

        Raises `Invalid` with every problem, and `NotAllowed` (NOT_OWNER).
        """
        # From here on ``single`` is True if the body actually is one component.
        provider, single = self._read(body, single)
        owner = self.registry.repository.owner(provider.name)
        if owner is not None:  # None: the name is free
            _check_owner(provider.name, owner, by)
        strict = strict or self._require_image
        provider = self._with_images(
            provider,
            strict=strict,
            single=single,
        )
        provider = self._with_storage_warnings(provider)
        provider = self._with_report_warnings(provider)
        # Another requester may have registered the name during the inspection.
        owner = self.registry.repository.claim(provider.name, by.as_owner)
        _check_owner(provider.name, owner, by)
        if single:
            return self.registry.register_component(provider, by.name, reason)
        return self.registry.register(provider, by.name, reason)

    def _read(
        self,
        body: bytes | Mapping[str, Any],
        single: bool,
    ) -> tuple[Provider, bool]:
        """Return the provider, and whether the body is one component with its image.

        Raises `Invalid`.
        """
        try:
            with self._reading:
                if isinstance(body, bytes):
                    return read(body, single)
                return read_value(body, single)
        except InvalidDescription as error:
            raise Invalid(error.problems) from error

    def _with_images(
        self,
        provider: Provider,
        *,
        strict: bool,
        single: bool,
    ) -> Provider:
        """Return a provider with the digests of its images, and warnings about the images.

        Images that do not run on the provider's engine are not inspected there. Raises `Invalid`.
        """
        unsuitable = self._images.unsuitable_engine(provider)
        if unsuitable:
            warning = _unsuitable_engine(provider, unsuitable)
            if strict:
                raise Invalid([warning], reason=ENGINE_UNSUITABLE)
            return replace(provider, warnings=bounded([warning, *provider.warnings]))
        images = self._images.inspect(
            provider.every_image(),
            provider.place,
            provider.name,
        )
        _check_images(images, strict=strict, single=single)
        return pin_images(provider, images)

    def _with_storage_warnings(self, provider: Provider) -> Provider:
        """Add a warning for each component whose storage engines this node does not have."""
        warnings = []
        for name, component in provider.components.items():
            rule = self._storage_rule(component.storage_engines)
            if rule:
                path = join("components_description", name, "storageEngine")
                warnings.append(Problem(path, rule, list(component.storage_engines)))
        if not warnings:
            return provider
        return replace(provider, warnings=bounded([*warnings, *provider.warnings]))

    def _with_report_warnings(self, provider: Provider) -> Provider:
        """Add a warning for attestation reports of its runs that this node cannot verify."""
        warnings = []
        for problem in self._report_problems(provider.name):
            rule = (
                f"{problem.rule}; jobs that need this provider are refused here "
                "(TEE_NOT_VERIFIABLE)"
            )
            warnings.append(Problem(problem.path, rule, problem.got))
        if not warnings:
            return provider
        return replace(provider, warnings=bounded([*warnings, *provider.warnings]))

    # ------------------------------------------------------------ changing

    def retire(
        self,
        key: str,
        by: Requester,
        reason: str = "",
    ) -> Written:
        """Exclude a provider from new jobs. Raises `NotFound`, `NotAllowed`."""
        with self._changing(key, by):
            return self.registry.retire(key, by.name, reason)

    def unretire(
        self,
        key: str,
        by: Requester,
        reason: str = "",
    ) -> Written:
        """Undo `retire`. Raises `NotFound`, `NotAllowed`."""
        with self._changing(key, by):
            return self.registry.unretire(key, by.name, reason)

    def approve(
        self,
        key: str,
        by: Requester,
        reason: str = "",
        image: str = "",
    ) -> Written:
        """Pin the current digests of a provider's images, or of one ``image``.

        Raises `NotFound`, `NotAllowed`, and `Refused` for images that cannot be inspected.
        """
        with self._changing(key, by) as provider:  # turns `Unknown` into `NotFound`
            all_images = provider.every_image()
            if image and image not in all_images:
                text = f"{key} has no image {image}; it has {', '.join(all_images)}"
                raise NotFound(text, reason="IMAGE_UNKNOWN")
            names = [image] if image else all_images
            images = self._images.inspect(names, provider.place, provider.name)
            _check_digests(images)
            digests = {image.name: image.facts.digest for image in images}
            return self.registry.approve(key, digests, by.name, reason)

    def delete(self, by: Requester, **parts: str) -> Deletion:
        """Delete the providers that match all parts of a name; retire any provider in use instead.

        ``parts`` are the arguments of `Registry.query`. Raises `Invalid` if no part is given, and
        `NotAllowed` if the requester may not change all of these providers; then none is changed.
        """
        if not any(parts.values()):
            raise Invalid([Problem("name", "must be given, or device, version or provider_name")])
        providers = self.registry.query(**parts)
        for provider in providers:
            _check_owner(provider.name, self.owner(provider.name), by)
        jobs_by_provider = self._jobs_by_provider() if providers else {}
        deleted = []
        retired = []
        for provider in providers:
            jobs = jobs_by_provider.get(
                (provider.name, provider.version),
                [],
            )
            if jobs:
                self.registry.retire(
                    provider.key,
                    by.name,
                    _reason_to_retire(jobs),
                )
                retired.append(provider.key)
            else:
                self.registry.remove(provider.key, by.name)
                deleted.append(provider.key)
        return Deletion(tuple(deleted), tuple(retired))

    @contextmanager
    def _changing(
        self,
        key: str,
        by: Requester,
    ) -> Iterator[Provider]:
        """Yield a provider that the requester may change. Raises `NotFound`, `NotAllowed`.

        `NotFound` is also raised if the provider is deleted before the caller's change.
        """
        try:
            provider = self.registry.get(key)
            _check_owner(provider.name, self.owner(provider.name), by)
            yield provider
        except Unknown as error:
            raise NotFound(error.message, reason=error.reason) from error

    # ------------------------------------------------------------ owners, rights and jobs

    def owner(self, name: str) -> str:
        """Return the owner of a provider's name; empty for the node's admins or a free name."""
        return self.registry.repository.owner(name) or ""

    def granted(self, name: str) -> tuple[str, ...]:
        """Return what the admin allows a provider's containers beyond the usual, in words."""
        return rights_in_words(self._allow.get(name, Allowance()))

    def attestation(self, name: str) -> str:
        """Return the TEE platform of which a provider's runs must bring reports; "" for none."""
        return self._attested.get(name, "")

    def give(self, name: str, owner: str) -> str | None:
        """Make a vendor the owner of a provider's name, and return the former owner.

        ``owner``: the name of the vendor's tokens; empty: the node's admins. Raises `NotFound` for
        a name that was never registered.
        """
        former = self.registry.repository.owner(name)
        if former is None:
            text = f"no provider {name[:_MAX_NAME]} was ever registered"
            raise NotFound(text, reason="PROVIDER_UNKNOWN")
        self.registry.repository.give(name, owner)
        return former

    def jobs_using(self, provider: Provider) -> list[str]:
        """Return the ids of the unfinished jobs that use a provider."""
        return self._jobs_by_provider().get((provider.name, provider.version), [])

    def _jobs_by_provider(self) -> dict[tuple[str, str], list[str]]:
        """Return the ids of unfinished jobs by the name and version of the providers they use."""
        jobs_by_provider: dict[tuple[str, str], list[str]] = {}
        for spec in self._unfinished():
            components = [task.component for task in spec.dag.nodes]
            for provider in {(component.provider, component.version) for component in components}:
                jobs = jobs_by_provider.setdefault(provider, [])
                if spec.job_id not in jobs:
                    jobs.append(spec.job_id)
        return jobs_by_provider


# ------------------------------------------------------------ checks


def _check_owner(
    name: str,
    owner: str,
    by: Requester,
) -> None:
    """Raise `NotAllowed` unless a requester may change the providers of a name."""
    if by.admin or owner == by.name:
        return
    holder = owner or "this node's admins"
    text = (
        f"the provider name {name} belongs to {holder}, not to {by.name}; an admin can give it: "
        "bfia-gateway provider give"
    )
    raise NotAllowed(text, reason="NOT_OWNER")


def _unsuitable_engine(provider: Provider, kind: str) -> Problem:
    """Return the problem of images that do not run on the kind of engine that they get here."""
    rule = (
        f"does not list {kind}, the kind of engine that the provider gets here: jobs that need it "
        "are refused at this node (ENGINE_UNSUITABLE)"
    )
    return Problem(
        "metadata.engine_kinds",
        rule,
        list(provider.engine_kinds),
    )


def _check_images(
    images: Sequence[InspectedImage],
    *,
    strict: bool,
    single: bool,
) -> None:
    """Raise `Invalid` for unsigned images; with ``strict``, for all that cannot be inspected.

    ``single``: the body is one component, in which the image has another path.
    """
    path = "imageUrl" if single else "metadata.image"
    unsigned = [image for image in images if image.is_unsigned]
    if unsigned:
        raise Invalid(
            _image_problems(unsigned, path),
            reason=unsigned[0].reason,
        )
    if not strict:
        return
    unusable = [image for image in images if image.reason]
    if unusable:
        raise Invalid(
            _image_problems(unusable, path),
            reason="IMAGE_NOT_USABLE",
        )


def _image_problems(
    images: Iterable[InspectedImage],
    path: str,
) -> Iterator[Problem]:
    """Yield a problem for each image; ``path`` is the image's path in the request's body."""
    for image in images:
        rule = f"must be an image that can be inspected ({_cause(image)})"
        yield Problem(path, rule, image.name)


def _check_digests(images: Sequence[InspectedImage]) -> None:
    """Raise `Refused` unless every image has a digest.

    Its ``reason`` is that of the first unsigned image; IMAGE_NOT_USABLE without one.
    """
    without_digest = [image for image in images if not image.facts.digest]
    if not without_digest:
        return
    reasons = [image.reason for image in images if image.is_unsigned]
    reason = next(iter(reasons), "IMAGE_NOT_USABLE")
    text = "; ".join(f"{image.name}: {_cause(image)}" for image in without_digest)
    raise Refused(text, reason=reason)


def _cause(image: InspectedImage) -> str:
    """Return why an image cannot be inspected, or has no digest."""
    if image.reason:
        return f"{image.reason}: {image.message}"
    return "NO_DIGEST: the engine cannot tell this image from another with the same name"


def _reason_to_retire(jobs: Sequence[str]) -> str:
    """Return the reason of retiring, instead of deleting, a provider that these jobs use."""
    listed = ", ".join(jobs[:_MAX_LISTED_JOBS])
    if len(jobs) > _MAX_LISTED_JOBS:
        listed += ", …"
    return f"was to be deleted; used by {listed}"


# ------------------------------------------------------------ JSON


def audit_detail(result: Written) -> dict[str, Any]:
    """Return the audit log's record of a change, with both values of each difference."""
    action = "unchanged"
    if result.written:
        action = str(result.revision.action)
    return {
        "provider": result.revision.key,
        "action": action,
        "revision": result.revision.number,
        "changes": changes_as_json(result.changes),
    }


def problem_as_json(problem: Problem) -> dict[str, Any]:
    """Return a warning for a response; ``suggestion`` only if there is one."""
    body = {
        "path": problem.path,
        "rule": problem.rule,
        "got": problem.got,
    }
    if problem.suggestion:
        body["suggestion"] = problem.suggestion
    return body


def changes_as_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Return the differences between two states of a provider for a response."""
    return [change._asdict() for change in changes]
