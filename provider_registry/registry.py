"""The registered providers, their revisions, and the search for a job's component."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from provider_registry.model import (
    ANY,
    DEVICES,
    Component,
    Problem,
    Provider,
    bounded,
    join,
    near,
    shorten,
)
from provider_registry.registration import DEVICE
from provider_registry.revisions import (
    IDEMPOTENT,
    Action,
    Change,
    Revision,
    changes,
)
from provider_registry.versions import version_order

MAX_LISTED_NAMES = 10  # names that a message lists at most
MAX_WRITE_ATTEMPTS = 16  # attempts to store a change while other writers are faster
SIMILARITY = 0.75  # least similarity of a registered name that the error suggests
# The paths of an image's name in a request for a provider, and in one for a single component.
IMAGE_PATHS = ("metadata.image", "imageUrl")

T = TypeVar("T")

# ------------------------------------------------------------ storage


class Stale(Exception):
    """Another writer has already stored a revision with this number."""


class Repository(Protocol):
    """Stores providers by `Provider.key`.

    Implementations are safe for several threads and processes.
    """

    def get(self, key: str) -> Provider | None:
        """Return the registered provider, retired or not; None if there is none."""

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""

    def write(self, revision: Revision) -> None:
        """Store a revision, and its provider as the present state. Raises `Stale`."""

    def newest_number(self, key: str) -> int:
        """Return the number of the last revision; 0 if there never was one."""

    def history(
        self,
        key: str,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Revision]:
        """Return at most ``limit`` revisions, newest first.

        With ``before``, only lower numbers than that.
        """

    def superseded_since(
        self,
        key: str,
        moment: datetime,
    ) -> Revision | None:
        """Return the revision that was the newest one at a moment, if a later one has replaced it.

        Returns None if there is no later one, or if there was no revision yet at that moment.
        """

    def owner(self, name: str) -> str | None:
        """Return the owner of a provider's name: a user, or "" for the node's admins.

        Returns None if the name has no owner yet.
        """

    def claim(self, name: str, owner: str) -> str:
        """Set the owner of a name that has none; return the owner that the name then has."""

    def give(self, name: str, owner: str) -> None:
        """Set the owner of a name, even if it has another one."""


class Unknown(Exception):
    """A job or a request names a component or provider that is unknown, or retired.

    ``reason`` is the symbol of a reason, such as COMPONENT_UNKNOWN.
    """

    def __init__(self, reason: str, message: str) -> None:
        """Take a reason's symbol, such as VERSION_UNKNOWN, and a message for people."""
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Written:
    """The result of a change of a provider."""

    revision: Revision  # the new one; the newest one if nothing had to change
    before: Provider | None  # the state before the change; None if there was none
    # The provider is new, or (from `Registry.register_component`) one of its components is.
    created: bool
    written: bool = True  # a revision was stored; False if nothing had to change

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The differences between both states.

        The revision of a deletion still has the provider, but here there is none afterwards.
        """
        if self.revision.action is Action.DELETED:
            return changes(self.before, None)
        return changes(self.before, self.revision.provider)


# ------------------------------------------------------------ the registry


def _utc_now() -> datetime:
    """Return the time in UTC, in which revisions are dated."""
    return datetime.now(UTC)


def _registered_state(newest: Revision | None) -> Provider | None:
    """Return the provider after its newest revision; None if it is deleted or has no revision."""
    if newest is None or newest.action is Action.DELETED:
        return None
    return newest.provider


def _replacement(registered: Provider, provider: Provider) -> Provider:
    """Return a provider with what it keeps of the registered one that it replaces.

    It stays retired, and its images keep approved digests that ``provider`` does not replace.
    """
    digests = {}
    for image in provider.every_image():
        if image in registered.digests:
            digests[image] = registered.digests[image]
    digests |= provider.digests
    return replace(
        provider,
        retired=registered.retired,
        digests=digests,
    )


def _version_unknown(
    same_name: Sequence[Provider],
    version: str,
    device: str,
) -> Unknown:
    """Return the error of a version that a registered provider does not have on a device.

    ``same_name`` are the provider's registered versions on all devices, at least one. ``version``
    is "" if the key names none.
    """
    provider = shorten(same_name[0].name)
    keys = _name_list(registered.key for registered in same_name)
    on_device = [registered.version for registered in same_name if registered.device == device]
    # A key without a device is not found even if the default device, which is ``device`` then, has
    # the version.
    if not version or version in on_device:
        text = f"name a version and a device of provider {provider}: {keys}"
        return Unknown("VERSION_UNKNOWN", text)
    if on_device:
        rest = f"has no version {shorten(version)}; it has {_name_list(on_device)}"
        return Unknown("VERSION_UNKNOWN", f"provider {provider} on {device} {rest}")
    text = f"no provider {provider} is registered on {device}"
    return Unknown("PROVIDER_UNKNOWN", f"{text}; it is registered as {keys}")


class Registry:
    """Registers, finds, lists, retires and removes providers; every change is a `Revision`.

    A query may name a provider by ``name``, ``name:version``, ``name@device`` or its full key, in
    which ``*`` matches any part. An absent part does not restrict the result.

    Methods that change a provider take the ``author`` and the ``reason`` of its revision.
    """

    def __init__(
        self,
        repository: Repository,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        """Take the storage of the providers, and the clock that dates revisions."""
        self.repository = repository
        self._clock = clock
        # A thread with an open `one_view` has the attribute ``values``: those that it has read so
        # far, by the keys of `_read_once`. Other threads have None or no such attribute.
        self._view = threading.local()

    @contextmanager
    def one_view(self) -> Iterator[None]:
        """Let `find` read each provider only once in this thread while the context is open.

        Contexts may be nested; they share their values.
        """
        outer: dict[Hashable, Any] | None = getattr(
            self._view,
            "values",
            None,
        )
        if outer is None:
            self._view.values = {}
        try:
            yield
        finally:
            self._view.values = outer  # None after the outermost context

    def register(
        self,
        provider: Provider,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Store a provider, which replaces a registered one with the same key.

        No revision is made if that changes nothing. A retired provider stays retired. An image that
        comes without a digest, as it could not be inspected, keeps its approved digest. Raises
        `Stale` if other writers were faster.
        """

        def replace_registered(registered: Provider | None) -> Provider:
            if registered is None:
                return provider
            return _replacement(registered, provider)

        return self._write(
            provider.key,
            replace_registered,
            Action.UPDATED,
            author,
            reason,
        )

    def register_component(
        self,
        provider: Provider,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Add the components of ``provider`` to the registered provider with the same key.

        ``created`` of the result is True if any of them is new. The added components keep the image
        of ``provider``, even if the registered provider has another one. Raises `Stale` if other
        writers were faster.
        """

        def add_components(registered: Provider | None) -> Provider:
            if registered is None:
                return provider
            return _merge(registered, provider)

        written = self._write(
            provider.key,
            add_components,
            Action.UPDATED,
            author,
            reason,
        )
        if written.before is None:
            return written
        new_components = provider.components.keys() - written.before.components.keys()
        return replace(written, created=bool(new_components))

    def retire(
        self,
        key: str,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Retire a provider: new jobs cannot use it, running ones continue. Raises `Unknown`.

        No revision is made if it is retired already. Raises `Stale` if other writers were faster.
        """

        def set_retired(provider: Provider) -> Provider:
            return replace(provider, retired=True)

        return self._change(key, set_retired, Action.RETIRED, author, reason)

    def unretire(
        self,
        key: str,
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Let new jobs use a retired provider again. Raises `Unknown`.

        No revision is made if it is not retired. Raises `Stale` if other writers were faster.
        """

        def set_in_use(provider: Provider) -> Provider:
            return replace(provider, retired=False)

        return self._change(key, set_in_use, Action.UNRETIRED, author, reason)

    def approve(
        self,
        key: str,
        digests: dict[str, str],
        author: str = "",
        reason: str = "",
    ) -> Written:
        """Approve images by their digests: from now on, only these may run. Raises `Unknown`.

        ``digests`` are by the image's name; images that it leaves out keep their approved digest.
        A revision is made even if the digests were approved before. Raises `Stale` if other writers
        were faster.
        """

        def add_digests(provider: Provider) -> Provider:
            return replace(provider, digests={**provider.digests, **digests})

        return self._change(key, add_digests, Action.APPROVED, author, reason)

    def pin(
        self,
        provider: str,
        version: str,
        image: str,
        digest: str,
    ) -> str:
        """Approve the digest of an image that has none yet; return the approved digest.

        An image that already has an approved digest keeps it, and that digest is returned. If the
        provider is not registered any more, as it was deleted while a job used it, nothing is
        written, and ``digest`` is returned.
        """

        def add_digest(registered: Provider) -> Provider:
            # The registered digests come last, because an approved digest must not be replaced.
            return replace(registered, digests={image: digest, **registered.digests})

        reason = f"{image} was started for the first time"
        try:
            key = self._find_version(provider, version).key
            written = self._change(
                key,
                add_digest,
                Action.PINNED,
                author="gateway",
                reason=reason,
            )
        except Unknown:
            return digest
        return written.revision.provider.digests[image]

    def remove(
        self,
        key: str,
        author: str = "",
    ) -> Written:
        """Remove a provider; its revisions stay. Raises `Unknown`.

        The result has the last state of the provider. Raises `Stale` if other writers were faster.
        """

        def unchanged(provider: Provider) -> Provider:
            return provider

        return self._change(key, unchanged, Action.DELETED, author, reason="")

    def history(
        self,
        key: str,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Revision]:
        """Return a provider's revisions, newest first; see `Repository.history`.

        Raises `Unknown` if the key never had a revision.
        """
        revisions = self.repository.history(key, before, limit)
        if not revisions and not self.repository.newest_number(key):
            raise self._unknown(*_split_key(key))
        return revisions

    def revision(self, key: str, number: int) -> Revision:
        """Return one revision. Raises `Unknown`.

        The reason is VERSION_UNKNOWN, also for a key that never had a revision.
        """
        revisions = self.repository.history(key, before=number + 1, limit=1)
        if not revisions or revisions[0].number != number:
            raise Unknown("VERSION_UNKNOWN", f"{shorten(key)} has no revision {number}")
        return revisions[0]

    def get(self, key: str) -> Provider:
        """Return a provider, retired or not. Raises `Unknown`.

        The reason is VERSION_UNKNOWN if the device has other versions of the provider, or if the
        key of a registered name has no version; else PROVIDER_UNKNOWN.
        """
        provider = self.repository.get(key)
        if provider is None:
            raise self._unknown(*_split_key(key))
        return provider

    def named(self, name: str) -> Provider:
        """Return the provider of a full key, or the newest one that a partial name matches.

        Providers in use precede retired ones. Raises `Unknown`.
        """
        provider, version, device = _split_key(name)
        candidates = []
        if provider:
            candidates = self.query(name=provider, version=version, device=device)
        if not candidates:
            raise self._unknown(provider, version, device)
        in_use = _not_retired(candidates)
        return max(in_use or candidates, key=_version_and_device_order)

    def find(
        self,
        provider: str,
        version: str,
        name: str,
        at: datetime | None = None,
    ) -> tuple[Provider, Component]:
        """Return a component and its provider. Raises `Unknown`.

        ``at`` is the start of a job: the provider is returned as it was registered then, even if it
        was changed, retired or deleted since, but with the digests approved today. If ``at`` is
        None, the provider is returned as it is registered today.
        """
        registered = self._find_version(provider, version, at)
        if registered.retired:
            raise self._retired(registered)
        component = registered.components.get(name)
        if component is None:
            raise _component_unknown(registered, name)
        return registered, component

    def newest_version(self, provider: str, name: str) -> str:
        """Return the newest version of a provider that is in use and has a component.

        ``provider`` is the provider's name, ``name`` the component's. Raises `Unknown` with the
        reason PROVIDER_UNKNOWN, PROVIDER_RETIRED (no version is in use) or COMPONENT_UNKNOWN.
        """
        in_use = self._versions_in_use(provider)
        with_component = [
            registered.version for registered in in_use if name in registered.components
        ]
        if with_component:
            return max(with_component, key=version_order)
        numbers = _name_list(registered.version for registered in in_use)
        text = (
            f"no version of provider {shorten(provider)} in use ({numbers}) "
            f"has a component {shorten(name)}"
        )
        raise Unknown("COMPONENT_UNKNOWN", text)

    def _versions_in_use(self, provider: str) -> list[Provider]:
        """Return the versions of a provider that new jobs may use, at least one.

        Raises `Unknown`.
        """
        versions = []
        if provider not in ("", ANY):  # in a query, both would match the providers of every name
            versions = self._versions_for_jobs(provider)
        if not versions:
            raise self._unknown(provider, ANY, DEVICE)
        in_use = _not_retired(versions)
        if not in_use:
            text = f"every version of provider {shorten(provider)} is retired"
            raise Unknown("PROVIDER_RETIRED", text)
        return in_use

    def query(
        self,
        name: str | None = None,
        device: str | None = None,
        version: str | None = None,
        provider_name: str | None = None,
    ) -> list[Provider]:
        """Return the providers that match all given parts; without any part, all providers.

        ``provider_name`` may hold several parts, see `Registry`; the others are one part each.
        """
        patterns = (
            (name, version, device),
            _split_key(provider_name),
        )
        return [
            provider
            for provider in self.repository.list()
            if all(_matches(provider, pattern) for pattern in patterns)
        ]

    def _versions_for_jobs(self, provider: str) -> list[Provider]:
        """Return all versions of a provider on the devices that jobs use.

        Retired versions are among them; empty for an unknown name.
        """
        versions = self.query(name=provider)
        return [registered for registered in versions if registered.device in DEVICES]

    def _find_version(
        self,
        provider: str,
        version: str,
        at: datetime | None = None,
    ) -> Provider:
        """Return a version of a provider, from the first device that has it. Raises `Unknown`.

        ``at``: as in `find`.
        """
        for device in DEVICES:
            registered = self._read_state(f"{provider}:{version}@{device}", at)
            if registered is not None:
                return registered
        raise self._unknown(provider, version, DEVICE)

    def _read_state(
        self,
        key: str,
        at: datetime | None,
    ) -> Provider | None:
        """Return a provider as it was registered at a moment, or is today if ``at`` is None.

        If none was registered at that moment, today's provider is returned; None if there is none
        today either.
        """
        registered = self._read_once(
            key,
            partial(self.repository.get, key),
        )
        if at is None:
            return registered
        past = self._read_once(
            (key, at),
            partial(self.repository.superseded_since, key, at),
        )
        # Without ``past``, the state of that moment is still today's, or there was none yet.
        if past is None or past.action is Action.DELETED:
            return registered
        return _with_approved_digests(past.provider, registered)

    def _read_once(
        self,
        key: Hashable,
        read: Callable[[], T],
    ) -> T:
        """Return a value read from the repository; in an open view, the one that was read first.

        ``key`` identifies the value in the view, ``read`` reads it.
        """
        view: dict[Hashable, T] | None = getattr(
            self._view,
            "values",
            None,
        )
        if view is None:
            return read()
        if key not in view:
            view[key] = read()
        return view[key]

    def _change(
        self,
        key: str,
        change: Callable[[Provider], Provider],
        action: Action,
        author: str,
        reason: str,
    ) -> Written:
        """Change a registered provider. Raises `Unknown`.

        ``change`` computes the new state from the present one.
        """

        def change_registered(registered: Provider | None) -> Provider:
            if registered is None:
                raise self._unknown(*_split_key(key))
            return change(registered)

        return self._write(key, change_registered, action, author, reason)

    def _write(
        self,
        key: str,
        change: Callable[[Provider | None], Provider],
        action: Action,
        author: str,
        reason: str,
    ) -> Written:
        """Change a provider and store its next revision.

        ``change`` computes the new state from the present one, which is None if the provider is
        not registered. It is called again if another writer was faster. Raises `Stale` after
        `MAX_WRITE_ATTEMPTS` attempts.
        """
        attempts = 0
        while True:
            attempts += 1
            newest = self._newest_revision(key)
            before = _registered_state(newest)
            after = change(before)
            # Equal states may differ in JSON: Python takes 1 for equal to true.
            is_unchanged = after == before and not changes(before, after)
            needs_no_revision = is_unchanged and action in IDEMPOTENT
            if newest is not None and needs_no_revision:
                return Written(
                    newest,
                    before,
                    created=False,
                    written=False,
                )
            is_first = action is Action.UPDATED and before is None
            revision = Revision(
                key=key,
                number=newest.number + 1 if newest else 1,
                at=self._clock(),
                author=author,
                action=Action.REGISTERED if is_first else action,
                reason=reason,
                provider=after,
            )
            try:
                self.repository.write(revision)
            except Stale:
                if attempts == MAX_WRITE_ATTEMPTS:
                    raise
                continue
            return Written(
                revision,
                before,
                created=before is None,
            )

    def _newest_revision(self, key: str) -> Revision | None:
        """Return the last revision of a key; None if there never was one.

        It may be a deletion: the numbers of revisions continue after it.
        """
        for revision in self.repository.history(key, limit=1):
            return revision
        return None

    def _retired(self, provider: Provider) -> Unknown:
        """Return the error of a job that names a retired provider.

        Its message lists the versions in use, and the way for an admin to allow the provider again.
        """
        versions = self._versions_for_jobs(provider.name)
        in_use = [registered.version for registered in versions if not registered.retired]
        rest = "no other version is registered"
        if in_use:
            rest = f"versions in use are {_name_list(in_use)}"
        until = "until an admin takes it back (bfia-gateway provider unretire)"
        text = (
            f"provider {provider.key} is retired: jobs that begin now cannot use it {until}; {rest}"
        )
        return Unknown("PROVIDER_RETIRED", text)

    def _unknown(
        self,
        provider: str,
        version: str,
        device: str,
    ) -> Unknown:
        """Return the error of a key that is not registered.

        Its message lists the registered keys with the same name, or suggests a similar name. An
        empty part of the key was not given.
        """
        device = device or DEVICE
        same_name = []
        if provider not in ("", ANY):
            same_name = self.query(name=provider)
        if not same_name:
            return self._provider_unknown(provider, device)
        return _version_unknown(same_name, version, device)

    def _provider_unknown(self, provider: str, device: str) -> Unknown:
        """Return the error of a name that is not registered.

        The message has the most similar name or, without one, the command that registers a
        provider. It names the device unless it is the default one.
        """
        text = f"no provider {shorten(provider)} is registered"
        if device != DEVICE:
            text += f" on {device}"
        names = dict.fromkeys(registered.name for registered in self.repository.list())
        similar = near(provider, names, SIMILARITY)
        if similar:
            return Unknown("PROVIDER_UNKNOWN", f"{text}, but {similar} is: did you mean that?")
        register = "register it with: bfia-gateway provider register FILE"
        return Unknown("PROVIDER_UNKNOWN", f"{text}; {register}")


def _with_approved_digests(past: Provider, registered: Provider | None) -> Provider:
    """Return a past state of a provider with the digests that are approved today.

    Without a provider today (``registered`` is None), the past state keeps its own digests.
    """
    if registered is None:
        return past
    return replace(past, digests={**past.digests, **registered.digests})


def _component_unknown(provider: Provider, name: str) -> Unknown:
    """Return the error of a component that a provider does not have, with a similar one.

    The message also lists the first components that the provider does have.
    """
    names = _name_list(provider.components)
    rest = f"has no component {shorten(name)}; it has {names}"
    similar = near(name, provider.components, SIMILARITY)
    if similar:
        rest += f" (did you mean {similar}?)"
    return Unknown("COMPONENT_UNKNOWN", f"provider {provider.key} {rest}")


def _merge(registered: Provider, added: Provider) -> Provider:
    """Return a registered provider with the components of another one with the same key.

    An added component replaces a registered one of the same name, with its image and warnings.
    """
    images = {
        name: image for name, image in registered.images.items() if name not in added.components
    }
    if added.image != registered.image:
        images |= dict.fromkeys(added.components, added.image)
    merged = replace(
        registered,
        components={**registered.components, **added.components},
        images=images,
        digests={**registered.digests, **added.digests},
    )
    warnings = [
        *_remaining_warnings(registered, added, merged),
        *_warnings_of_added(registered, added),
    ]
    return replace(merged, warnings=bounded(warnings))


def _remaining_warnings(
    registered: Provider,
    added: Provider,
    merged: Provider,
) -> list[Problem]:
    """Return the warnings of a registered provider that stay when components are added to it.

    Two sorts of warnings are dropped: those about the added components and their image, which come
    again with the components if they still hold, and those about images that the merged provider
    does not have.
    """
    paths = [join("components_description", name) for name in added.components]
    prefixes = tuple(path + separator for path in paths for separator in (".", "["))
    other_images = set(merged.every_image()) - set(added.every_image())
    # The value (``got``) of a warning about an image is the image's name, shortened.
    names_of_other_images = list(map(shorten, other_images))
    remaining = []
    for warning in registered.warnings:
        goes = warning in added.warnings or warning.path in paths
        if warning.path in IMAGE_PATHS:
            goes = warning.got not in names_of_other_images
        if not goes and not warning.path.startswith(prefixes):
            remaining.append(warning)
    return remaining


def _warnings_of_added(registered: Provider, added: Provider) -> list[Problem]:
    """Return the warnings that come with added components.

    Left out is the warning that a label of the image names a component that is not registered, if
    the registered provider has that component: the image was compared with the added ones alone.
    """
    other_components = registered.components.keys() - added.components.keys()
    paths = {join("components_description", name) for name in other_components}
    return [warning for warning in added.warnings if warning.path not in paths]


def _not_retired(providers: Iterable[Provider]) -> list[Provider]:
    """Return the providers that new jobs may use."""
    return [provider for provider in providers if not provider.retired]


def _version_and_device_order(provider: Provider) -> tuple[Any, ...]:
    """Return a sort key by which the newest version, on the first of `DEVICES`, is the greatest."""
    position = len(DEVICES)
    if provider.device in DEVICES:
        position = DEVICES.index(provider.device)
    return version_order(provider.version), -position


def _split_key(provider_name: str | None) -> tuple[str, str, str]:
    """Split ``name:version@device`` into its three parts; absent ones are ""."""
    rest, _, device = (provider_name or "").partition("@")
    name, _, version = rest.partition(":")
    return name, version, device


def _matches(
    provider: Provider,
    pattern: tuple[str | None, str | None, str | None],
) -> bool:
    """Return whether a provider has a name, version and device.

    An absent part or ``*`` matches any.
    """
    key_parts = (provider.name, provider.version, provider.device)
    return all(
        part in (None, "", ANY, key_part) for part, key_part in zip(pattern, key_parts, strict=True)
    )


def _name_list(names: Iterable[str]) -> str:
    """Return the first `MAX_LISTED_NAMES` names for a message; "none" without any."""
    all_names = list(names)
    if not all_names:
        return "none"
    text = ", ".join(all_names[:MAX_LISTED_NAMES])
    if len(all_names) > MAX_LISTED_NAMES:
        text += ", …"
    return text
