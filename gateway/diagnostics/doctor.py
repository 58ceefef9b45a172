"""Checks everything that one node needs, step by step, without starting it or changing anything."""

import errno
import os
import shlex
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from engines.base import (
    MADE_AT_START,
    Capacity,
    CommandNotFound,
    Engine,
    EngineDown,
    EngineError,
    ImageNotFound,
)
from engines.docker import ContainerdEngine
from engines.multi import SeveralEngines
from gateway.bootstrap.engine_parts import engines_by_place, main_of
from gateway.bootstrap.parts import approval_policy, storages
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.data import credentials
from gateway.data.reading import nearest_existing
from gateway.data.remote_storage import HDFS, S3, Remote, RemoteStorage
from gateway.data.workspace import is_disk_full, try_to_write
from gateway.domain.approval import ineffective_rules
from gateway.domain.problems import Problem
from gateway.domain.resources import Amounts
from gateway.errors import GatewayError, Invalid, StorageFailed, counted
from gateway.http.server import bound, same, serving
from gateway.identity.keys import Keyring
from gateway.language.catalogue import ENGLISH, reason_of
from gateway.providers.images import load_signers
from gateway.runtime import trials
from gateway.runtime.trials import Step, Trial
from gateway.store.database import connect, next_step, schema_revisions
from gateway.store.queries import database_time
from gateway.store.repositories import SqlProviders, SqlRouteVersions, SqlTokens
from gateway.store.store import Store
from gateway.version import VERSION
from provider_registry.model import Provider
from route_table import certificates
from route_table.certificates import Expiry
from route_table.live import LiveRoutes, other_routes, rival
from route_table.model import Identity, InvalidRoutes

EXPIRES_SOON = 14  # days before the end of a certificate
_MAX_SKEW = 30.0  # seconds between the clocks of two nodes
_MAX_CONNECTIONS = 16  # images or addresses checked at the same time
_CONNECT_TIMEOUT = 2.0  # seconds
_PULL_TIMEOUT = 10.0  # seconds for a registry's answer about an image
_SILENT_ROUTES_SHOWN = 5
_STORAGE_STEP = "see docs/data.md; each reason is explained in docs/reasons.md"


@dataclass
class Installation:
    """The node under examination."""

    settings: Settings
    config: Path | None
    """the settings' file"""
    store: Store
    engine: Engine

    @cached_property
    def revisions(self) -> tuple[str | None, str]:
        """The schema's revision in the database, and this version's. Raises `GatewayError`."""
        return schema_revisions(self.settings.database.url)

    @cached_property
    def database_up(self) -> bool:
        """Whether the database responds."""
        try:
            return bool(self.revisions)
        except GatewayError:
            return False

    @cached_property
    def engine_up(self) -> bool:
        """Whether the engine responds."""
        try:
            self.engine.check()
        except EngineError:
            return False
        return True


def look(
    settings: Settings,
    engine: Callable[[Settings], Engine],
    config: Path | None = None,
) -> list[Step]:
    """Return every step with its result; ``config`` is the settings' file.

    The engine gets a temporary state folder, so that the check leaves nothing in the node's own.
    """
    store = Store(connect(settings.database.url))
    with tempfile.TemporaryDirectory() as folder:
        trial_engine = engine(settings.model_copy(update={"state_dir": Path(folder)}))
        node = Installation(settings, config, store, trial_engine)
        try:
            trial = Trial(tuple(STEPS))
            for name, check in STEPS.items():
                trial.take(name, partial(check, node), needed=False)
            return [replace(step, name=name) for name, step in zip(STEPS, trial.steps, strict=True)]
        finally:
            _remove_networks(trial_engine)
            trial_engine.close()
            store.close()


def _remove_networks(engine: Engine) -> None:
    for single_engine in (main_of(engine), *_further_engines(engine).values()):
        if isinstance(single_engine, ContainerdEngine):
            with suppress(EngineError):
                single_engine.undo_network()


def _routes(settings: Settings) -> LiveRoutes:
    """Return the routes of the file without a check of their certificates."""

    def no_problems(*_: object) -> tuple[Problem, ...]:
        return ()

    return LiveRoutes(settings.route_table.file, files=no_problems, quiet=True)


# ---------------------------------------------------------------- database, storage, clock


def _database(node: Installation) -> Step:
    try:
        _ = node.revisions
    except GatewayError as error:
        cause = "; ".join(str(p) for p in error.problems) or error.message
        return trials.failed(cause, next_step(error))
    return trials.ok(f"{urlsplit(node.settings.database.url).scheme.partition('+')[0]} answers")


def _migrations(node: Installation) -> Step:
    if not node.database_up:
        return trials.skipped()
    current, newest = node.revisions
    if current is None:
        return trials.ok("the schema is not made yet; serve makes it")
    if current == newest:
        return trials.ok(newest)
    remedy = (
        "serve upgrades a schema that it knows and refuses any other; back up the database first"
    )
    return trials.warning(f"the schema is {current}, this version's is {newest}", remedy)


def _writable(folder: Path) -> Step:
    existing = nearest_existing(folder)
    try:
        try_to_write(existing)
    except OSError as error:
        if is_disk_full(error):
            return trials.failed(
                f"{existing} is full: {error.strerror}", f"make room on the disk of {folder}"
            )
        text = f"user {os.getuid()} cannot write to {existing}: {error.strerror}"
        return trials.failed(text, f"give the gateway's user the right to write to {folder}")
    if existing != folder:
        return trials.ok(f"{folder} (made at the start)")
    return trials.ok(str(folder))


def storages_of(settings: Settings, engine: Engine | None = None) -> Step:
    """Write, read and delete a small object at each remote storage, and check that containers reach it."""
    try:
        remotes = list(storages(settings).remotes.values())
    except Invalid as error:
        remedy = "give the gateway's user the right to read the file, or correct its path"
        return trials.failed(error.message, remedy)
    problems, remedies = [], []
    for storage in remotes:
        storage_problems, storage_remedies = _storage_problems(storage, engine)
        problems += storage_problems
        remedies += storage_remedies
    if problems:
        return trials.failed("; ".join(problems), "; ".join(dict.fromkeys(remedies)))
    names = [
        f"{storage.remote.name} ({storage.remote.kind}://{storage.remote.host})"
        for storage in remotes
    ]
    text = ", ".join(names)
    risks = list(_storage_risks([storage.remote for storage in remotes]))
    if risks:
        causes = "; ".join(risk.cause for risk in risks)
        return trials.warning(causes, "; ".join(risk.remedy for risk in risks), text)
    return trials.ok(text or "none but the node's folder")


def _storage_problems(
    storage: RemoteStorage,
    engine: Engine | None,
) -> tuple[list[str], list[str]]:
    """Return the problems of one storage, and what to do about them."""
    problems, remedies = [], []
    try:
        storage.check()
    except StorageFailed as error:
        problems.append(f"{error.reason}: {error.message}")
        if error.own_words:
            problems.append(f"the storage says: {error.own_words}")
        remedies.append(_explained_step(error.reason) or _STORAGE_STEP)
    if isinstance(engine, ContainerdEngine):
        unreachable = _unreachable_from_containers(engine, storage.remote)
        if unreachable:
            problems.append(unreachable)
            remedies.append(_STORAGE_STEP)
    return problems, remedies


@dataclass(frozen=True)
class _Risk:
    """A weakness that does not keep the node from working."""

    cause: str
    remedy: str


def _storage_risks(remotes: Sequence[Remote]) -> Iterator[_Risk]:
    shared, lasting, open_to_all = [], [], []
    for remote in remotes:
        if remote.kind == S3 and not remote.role:
            shared.append(remote.name)
        if remote.kind == HDFS:
            open_to_all.append(remote.name)
        if remote.role:
            try:
                credentials.check_end(remote)
            except StorageFailed as error:
                lasting.append(error.message)
    if shared:
        names = ", ".join(shared)
        yield _Risk(
            f"containers get the node's own key of {names}, which opens every dataset there",
            "where the server has STS, set role in storages: each run gets a key of its own",
        )
    if lasting:
        yield _Risk(
            f"credentials of runs outlast them, by up to 12 hours: {'; '.join(lasting)}",
            "allow this node's key s3:GetBucketPolicy and s3:PutBucketPolicy",
        )
    if open_to_all:
        names = ", ".join(open_to_all)
        yield _Risk(
            f"containers can change all of {names}: HDFS believes the name that a client gives",
            "keep there only what every image that runs here may read; for more, use S3 with role",
        )


def _explained_step(reason: str) -> str:
    """Return the next step of a reason without the full stop; empty for an unknown reason."""
    explanation = reason_of(reason)
    if explanation is None:
        return ""
    return explanation.next_step[ENGLISH].rstrip(".")


def _unreachable_from_containers(engine: ContainerdEngine, remote: Remote) -> str:
    """Return why containers cannot reach a storage; empty if they can."""
    try:
        cause = engine.no_way_to(remote.services)
    except EngineError as error:
        cause = str(error)
    if not cause:
        return ""
    return f"containers cannot reach storage {remote.name}: {cause}"


def _disk(node: Installation) -> Step:
    folder = node.settings.storage.path
    reserve = node.settings.limits.storage_reserve_bytes
    free = shutil.disk_usage(nearest_existing(folder)).free
    text = f"{_size(free)} free at {folder}"
    if free < reserve:
        cause = f"{text}, {_size(reserve)} wanted (limits.storage_reserve_bytes): no task will be started"
        return trials.failed(cause, "make room, or lower the reserve")
    return trials.ok(text)


def _size(count: int) -> str:
    if count >= 1024**3:
        return f"{count / 1024**3:.1f} GiB"
    return f"{count / 1024**2:.0f} MiB"


def modes_of(settings: Settings, config: Path | None = None) -> Step:
    """Warn of files and folders with data, secrets or keys that are open to other users."""
    files = _secret_files(settings)
    if config is not None:
        files.insert(0, config)
    folders = [settings.state_dir, settings.storage.path]
    open_paths, commands = [], []
    for mode, paths in (("600", files), ("700", folders)):
        too_open = [str(path) for path in dict.fromkeys(paths) if _open_to_others(path)]
        if too_open:
            open_paths += too_open
            commands.append(shlex.join(["chmod", mode, *too_open]))
    if not open_paths:
        return trials.ok("closed to other users")
    cause = f"open to other users of this machine: {', '.join(open_paths)}"
    return trials.warning(cause, "; ".join(commands))


def _secret_files(settings: Settings) -> list[Path]:
    """Return the files with keys, passwords or data that the settings and routes name."""
    main, further = settings.engine, settings.engines.values()
    tls_settings = [
        main.docker.tls,
        main.swarm.tls,
        *(engine.tls for engine in further),
        settings.listen.peer.tls,
    ]
    files: list[Path | None] = [tls.key for tls in tls_settings if tls]
    clusters = [main.kubernetes, *(engine.kubernetes for engine in further)]
    files += [cluster.kubeconfig for cluster in clusters if cluster]
    files += Keyring(settings.state_dir).files.values()
    files += [storage.password_file for storage in settings.storages.values()]
    for route in _routes(settings).table.routes.values():
        if route.identity.key:
            files.append(Path(route.identity.key))
    prefix = "sqlite:///"
    if settings.database.url.startswith(prefix):
        database = settings.database.url.removeprefix(prefix).partition("?")[0]
        files += [Path(database + suffix) for suffix in ("", "-wal", "-shm")]
    return [file for file in files if file]


def _open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:  # other steps report what is missing
        return False


def _clock(node: Installation) -> Step:
    store = None
    if node.database_up and not node.settings.database.url.startswith("sqlite:"):
        store = node.store
    return clock_of(node.settings.storage.path, store)


def clock_of(
    folder: Path,
    store: Store | None,
    now: Callable[[], float] = time.time,
) -> Step:
    """Compare this machine's clock with the storage's, and with a database server's."""
    skews = {}
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=nearest_existing(folder)) as file:
        file.write(b"x")
        file.flush()
        skews["storage"] = os.fstat(file.fileno()).st_mtime - now()
    if store is not None:
        skews["database"] = database_time(store) - now()
    offsets = [f"{name} {round(skew, 1) + 0:+.1f} s" for name, skew in skews.items()]
    text = ", ".join(offsets) or "nothing to compare with"
    causes = []
    for name, skew in skews.items():
        if abs(skew) > _MAX_SKEW:
            causes.append(f"the clock of the {name} is {abs(skew):.0f} s off this machine's")
    if causes:
        return trials.failed("; ".join(causes), "let both machines follow a time server", text)
    return trials.ok(text)


# ---------------------------------------------------------------- engine and images


def _engine(node: Installation) -> Step:
    kind = node.engine.kind
    try:
        node.engine.check()
        capacity = node.engine.capacity()
    except EngineError as error:
        return trials.failed(f"{error.reason}: {error}", error.remedy or _engine_remedy(node))
    text = kind
    if capacity.gpu:
        text += f" with gpu {capacity.gpu}"
    further = _further_engines(node.engine)
    if further:
        text += f", and {counted(len(further), 'further engine')}"
    capacities = {kind: capacity}
    causes, remedies, described = [], [], []
    for name, engine in further.items():
        try:
            capacities[name] = engine.capacity()
        except EngineError as error:
            causes.append(f"{name}: {error.reason}: {error}")
            step = error.remedy or "start that engine, or check its entry and certificates"
            remedies.append(step)
            continue
        described.append(f"{name} ({engine.kind}) has {_amounts(capacities[name])}")
    if described:
        text += f": {'; '.join(described)}"
    for name, engine_capacity in capacities.items():
        if min(engine_capacity.cpu, engine_capacity.memory) <= 0:
            causes.append(f"{name}: it has no cpu or no memory for runs")
            remedies.append("raise the ResourceQuota of its namespace, or have a machine take runs")
    if not causes:
        return trials.ok(text)
    cause = f"nothing can run at {'; '.join(causes)}"
    return trials.warning(cause, "; ".join(dict.fromkeys(remedies)), text)


def _engine_remedy(node: Installation) -> str:
    if node.settings.engine.main is None:
        return "check the state folder"
    if node.engine.kind == "kubernetes":
        return "check the API server, and engine.kubernetes.kubeconfig"
    return f"start the Docker daemon, or correct engine.{node.engine.kind}.base_url"


def _amounts(capacity: Capacity) -> str:
    return Amounts.of(capacity.cpu, capacity.memory, gpu=capacity.gpu).text()


def _isolation(node: Installation) -> Step:
    if not node.engine_up:
        return trials.skipped()
    try:
        isolation = node.engine.isolation()
    except EngineError as error:
        return trials.failed(f"{error.reason}: {error}", "check the container engine")
    if not isolation.gaps:
        return trials.ok("tasks are isolated from each other, from the host and from outside")
    remedy = "close the gaps, or accept them"
    before_first_start = serving(node.settings.state_dir) is None
    if before_first_start and all(gap.endswith(MADE_AT_START) for gap in isolation.gaps):
        remedy = "nothing before the first start; afterwards close the gaps, or accept them"
    return trials.warning("; ".join(isolation.gaps), remedy)


def _images(node: Installation) -> Step:
    """Look for every registered image at the engine that its provider names, else at its registry."""
    if not (node.engine_up and node.database_up and node.revisions[0] == node.revisions[1]):
        return trials.skipped()
    providers_by_image = _registered_images(node)
    if not providers_by_image:
        return trials.ok("no provider is in use: nothing to check")

    def check_image(image: _RegisteredImage) -> _ImageCheck:
        return _check_image(node, image, providers_by_image[image])

    with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        checks = list(pool.map(check_image, sorted(providers_by_image)))
    total = f"{counted(len(checks), 'image')} registered"
    moved: list[str] = []
    for check in checks:
        moved += check.moved
    if moved:
        text = f"another image than was approved, which is not started (DIGEST_CHANGED): {', '.join(moved)}"
        remedy = (
            "bfia-gateway provider approve, if it is the right one; else restore the approved one"
        )
        return trials.warning(text, remedy, total)
    missing = [check for check in checks if check.remedy]
    if missing:
        causes = "; ".join(check.cause for check in missing)
        remedies = "; ".join(dict.fromkeys(check.remedy for check in missing))
        return trials.warning(f"registered, but not here: {causes}", remedies, total)
    remote = sum(check.in_registry for check in checks)
    if remote:
        return trials.ok(f"{total}, {remote} of them with its registry, pulled when needed")
    return trials.ok(f"{total}, all here")


class _RegisteredImage(NamedTuple):
    """An image, and the engine that its provider names."""

    name: str
    engine: str

    @property
    def label(self) -> str:
        if self.engine:
            return f"{self.name} at {self.engine}"
        return self.name


@dataclass(frozen=True)
class _ImageCheck:
    """The state of an image at its engine or its registry."""

    moved: Sequence[str] = ()
    """the providers for which another one was approved"""
    in_registry: bool = False
    cause: str = ""
    remedy: str = ""


def _registered_images(node: Installation) -> dict[_RegisteredImage, list[Provider]]:
    """Return the images of all providers in use, each with its providers."""
    images: dict[_RegisteredImage, list[Provider]] = {}
    for provider in SqlProviders(node.store).list():
        if provider.retired:
            continue
        for name in provider.every_image():
            images.setdefault(_RegisteredImage(name, provider.place), []).append(provider)
    return images


def _check_image(
    node: Installation,
    image: _RegisteredImage,
    providers: Sequence[Provider],
) -> _ImageCheck:
    needed_by = f"for {', '.join(provider.key for provider in providers)}"
    engine = _engine_at(node, image.engine)
    if engine is None:
        remedy = "add it to engines, or register the provider without it"
        return _ImageCheck(cause=f"{image.label} (DAEMON_NOT_ALLOWED), {needed_by}", remedy=remedy)
    main = node.settings.engine
    pulls = main.main is not None and main.docker.pull == "missing"
    asked_registry = False
    try:
        try:
            digest = engine.image_digest(image.name)
        except ImageNotFound:
            if not pulls:
                raise
            asked_registry = True
            engine.registry_digest(image.name, _PULL_TIMEOUT)
            return _ImageCheck(in_registry=True)
    except EngineError as error:
        cause = error.reason
        if asked_registry or isinstance(error, CommandNotFound):
            cause = f"{error.reason}: {error}"
        text = f"{image.label} ({cause}), {needed_by}"
        return _ImageCheck(cause=text, remedy=error.remedy or _image_remedy(error))
    moved = [p.key for p in providers if p.digests.get(image.name, digest) != digest]
    return _ImageCheck(moved)


def _image_remedy(error: EngineError) -> str:
    step = ""
    if not isinstance(error, EngineDown):
        step = _explained_step(error.reason)
    return step or "check the container engine"


def _engine_at(node: Installation, place: str) -> Engine | None:
    """Return the engine of a provider's place; None for a place that the settings do not allow."""
    name = engines_by_place(node.settings).get(place)
    if name == "":
        return main_of(node.engine)
    return _further_engines(node.engine).get(name or place)


def _further_engines(engine: Engine) -> Mapping[str, Engine]:
    if isinstance(engine, SeveralEngines):
        return engine.others
    return {}


# ---------------------------------------------------------------- listeners, certificates, routes


def _ports(node: Installation) -> Step:
    listen = node.settings.listen
    listeners = {"peer": listen.peer.bind, "operator": listen.operator.bind}
    if listen.container is not None:
        listeners["container"] = listen.container.bind
    problems = []
    in_use = {}
    checked: dict[str, str] = {}
    for name, address in listeners.items():
        twin = _listener_at(address, checked)
        checked[name] = address
        if twin is not None:
            problems.append(f"{name}: {address} is that of listen.{twin} too")
            continue
        try:
            bound(address).close()
        except OSError as error:
            text = f"{name}: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                in_use[address] = text
            else:
                problems.append(text)
    running = serving(node.settings.state_dir) if in_use else None
    for address, text in in_use.items():
        if running is None or not running.has(address):
            problems.append(text)
    if problems:
        remedy = "stop what listens there, or choose another listen.*.bind"
        return trials.failed("; ".join(problems), remedy)
    if running is None:
        return trials.ok("free")
    if running.version == VERSION:
        return trials.ok("the node is running")
    text = f"the node is running as {running.version}, this program is {VERSION}"
    return trials.warning(text, "restart it with this version, or use its own doctor")


def _listener_at(address: str, listeners: Mapping[str, str]) -> str | None:
    for name, other_address in listeners.items():
        if same(other_address, address):
            return name
    return None


def certificates_of(settings: Settings) -> Step:
    """Check that every certificate and key can be used, and until when."""
    now = datetime.now(UTC)
    identities: dict[str, Identity] = {}
    for route in _routes(settings).table.routes.values():
        if route.enabled:
            identities[f"routes.{route.node}"] = route.identity
    tls = settings.listen.peer.tls
    problems = []
    if tls is not None:
        problems += [str(problem) for problem in peer_tls.problems(tls, now)]
    for path, identity in identities.items():
        problems += [str(problem) for problem in certificates.problems(identity, path, now)]
    signer_keys = 0
    try:
        for signer in load_signers(settings.engine.docker.signatures):
            signer_keys += len(signer.keys)
    except Invalid as error:
        problems += [str(problem) for problem in error.problems]
    if problems:
        remedy = "replace the files; those of routes are reloaded by themselves, the listener's at the next start"
        return trials.failed("; ".join(problems), remedy)
    expiries: list[Expiry] = []
    for path, identity in identities.items():
        expiries += certificates.expiries(identity, path)
    outdated = []
    if tls is not None:
        running = serving(settings.state_dir)
        loaded_files = running.files if running else {}
        for expiry, cause in peer_tls.expiries(tls, loaded_files):
            expiries.append(expiry)
            if cause:
                outdated.append(expiry.file)
    risks = list(_certificate_risks(settings, identities.values(), expiries, outdated, now))
    if risks:
        causes = "; ".join(risk.cause for risk in risks)
        return trials.warning(causes, "; ".join(risk.remedy for risk in risks))
    texts = []
    if expiries:
        first_end = min(expiry.ends for expiry in expiries)
        texts.append(f"{counted(len(expiries), 'file')}, the first to expire on {first_end.date()}")
    if signer_keys:
        texts.append(f"{counted(signer_keys, 'key')} of signers")
    return trials.ok("; ".join(texts) or "none are named")


def _certificate_risks(
    settings: Settings,
    identities: Iterable[Identity],
    expiries: Sequence[Expiry],
    outdated: Sequence[str],
    now: datetime,
) -> Iterator[_Risk]:
    """Yield the risks of usable certificates; ``outdated``: newer files than the running listener's."""
    if outdated:
        yield _Risk(
            f"newer than what the listener serves: {', '.join(outdated)}",
            "restart the node: until then partners see the old one",
        )
    own_files = dict.fromkeys(identity.certificate for identity in identities)
    without_id = []
    for file in own_files:
        if file and not certificates.has_name(file, settings.node.id):
            without_id.append(file)
    if without_id:
        yield _Risk(
            f"the certificate for partners lacks this node's id: {', '.join(without_id)}",
            "have it issued with the id as a DNS name; or partners set peer_certificate",
        )
    days_left = {f"{expiry.path} ({expiry.file})": (expiry.ends - now).days for expiry in expiries}
    soon = [f"{file} in {days} days" for file, days in days_left.items() if days < EXPIRES_SOON]
    if soon:
        yield _Risk(
            f"these expire soon: {', '.join(soon)}",
            "renew them; those of routes are reloaded by themselves, the listener's at the next start",
        )


def _tokens(node: Installation) -> Step:
    mode = node.settings.auth.mode
    now = datetime.now(UTC)
    if not (node.database_up and node.revisions[0] == node.revisions[1]):
        return trials.ok(f"mode {mode}")
    valid = 0
    for token in SqlTokens(node.store).list():
        expired = token.expires_at is not None and token.expires_at < now
        if not token.revoked_at and not expired:
            valid += 1
    if mode == "on" or not valid:
        return trials.ok(f"mode {mode}, {counted(valid, 'valid token')}")
    remedy = 'set auth.mode: "on" and restart the node, or revoke the tokens'
    return trials.warning(
        f"auth.mode is off, so no request needs a token (valid here: {valid})", remedy
    )


def _peers(node: Installation) -> Step:
    peer = node.settings.listen.peer
    if node.settings.trust.level == "open":
        return trials.warning(
            "trust.level: open lets nodes without a route run jobs here", "set trust.level: known"
        )
    gap = peer_tls.unproven(peer.bind, peer.tls)
    if gap:
        remedy = (
            "set listen.peer.tls with client_ca, and peer_certificate in routes: see docs/routes.md"
        )
        return trials.warning(gap, remedy)
    if peer.tls is None or peer.tls.client_ca is None:
        return trials.ok("only this machine reaches the listener for peers")
    return trials.ok("each peer's certificate is bound to its node id")


def signing_of(settings: Settings) -> Step:
    """Report this node's key, the nodes that must sign their requests, and the ones that never do."""
    routes = [route for route in _routes(settings).table.routes.values() if route.enabled]
    try:
        pair = Keyring(settings.state_dir).signing
    except Invalid as error:
        remedy = "make the user that runs the gateway its owner (chown), restore it, or remove it and make a new key"
        return trials.failed(error.message, f"{remedy}: bfia-gateway identity rotate")
    required = [route for route in routes if route.signing_mode == "required"]
    key = "this node has no key pair and signs nothing"
    if pair:
        key = f"this node signs with {pair.id}"
    text = f"{key}; {len(required)} of {counted(len(routes), 'node')} must sign"
    without_keys = [route.node for route in required if not route.keys]
    if without_keys:
        remedy = "accept their invitations (bfia-gateway partner accept), or give each route keys"
        cause = f"signing: required and no key, so nothing is taken from {', '.join(without_keys)}"
        return trials.warning(cause, f"{remedy}: see docs/signing.md", text)
    unsigned = [route.node for route in routes if route.signing_mode == "off"]
    if unsigned:
        remedy = "exchange keys (bfia-gateway identity export) and set signing: required: see docs/signing.md"
        cause = f"signing: off, so nothing is signed either way: {', '.join(unsigned)}"
        return trials.warning(cause, remedy, text)
    return trials.ok(text)


def _approval(node: Installation) -> Step:
    policy = approval_policy(node.settings)
    text = f"mode {policy.mode}"
    if policy.rules:
        text += f", {counted(len(policy.rules), 'rule')}"
    causes, remedies = [], []
    for number, cause, remedy in ineffective_rules(policy):
        causes.append(f"approval.rules[{number}]: {cause}")
        remedies.append(f"approval.rules[{number}]: {remedy}")
    if causes:
        return trials.warning("; ".join(causes), "; ".join(remedies), text)
    return trials.ok(text)


def _routes_step(node: Installation) -> Step:
    conflict = _table_conflict(node)
    if conflict:
        cause, _, remedy = conflict.partition(": ")
        return trials.failed(cause, remedy)
    return routes_of(node.settings)


def _table_conflict(node: Installation) -> str:
    """Return how the file of routes contradicts the newest stored table, and what to do; empty if it does not."""
    file = node.settings.route_table.file
    if not (file and node.database_up and node.revisions[0] == node.revisions[1]):
        return ""
    owner = ""
    instance = node.settings.state_dir / "instance"
    if instance.is_file():
        owner = f"{instance.read_text()}/{node.settings.engine.kind}"
    try:
        versions = SqlRouteVersions(node.store, owner)
        other = rival(file.read_text("utf-8-sig"), versions)
    except (OSError, UnicodeDecodeError, InvalidRoutes):  # `routes_of` reports an unusable file
        return ""
    if not other:
        return ""
    return f"{file} {other_routes(other)}"


def routes_of(settings: Settings) -> Step:
    """Read the file, and connect once to each address of an enabled entry; no request is sent."""
    routes = _routes(settings)
    if routes.problems:
        cause = "; ".join(map(str, routes.problems))
        return trials.failed(cause, "correct the file; the last good table stays in force")
    total = counted(len(routes.table.routes), "node")
    if not routes.table.routes:
        return trials.ok(total)
    addresses = []
    for route in routes.table.routes.values():
        if route.enabled:
            addresses += [
                (route.node, urlsplit(url)) for url in (route.url, route.transport) if url
            ]
    if not addresses:
        return trials.ok(f"{total}, none of them reached directly")
    with ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        problems = list(pool.map(_connection_problem, (address for _, address in addresses)))
    silent_nodes, causes = [], []
    for (node, _), problem in zip(addresses, problems, strict=True):
        if problem:
            silent_nodes.append(node)
            causes.append(f"{node}: {problem}")
    if not causes:
        return trials.ok(
            f"{total}; something listens at each address; "
            f"bfia-gateway route test {shlex.quote(addresses[0][0])} tests the whole link of one"
        )
    cause = "; ".join(causes[:_SILENT_ROUTES_SHOWN])
    hidden = len(causes) - _SILENT_ROUTES_SHOWN
    if hidden > 0:
        cause += f"; and {hidden} more"
    test = f"bfia-gateway route test {shlex.quote(silent_nodes[0])}"
    remedy = f"correct host or port, or have the peer started; details: {test}"
    return trials.warning(cause, remedy, total)


def _connection_problem(url: SplitResult) -> str:
    host, port = _host_and_port(url)
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT):
            return ""
    except (socket.gaierror, UnicodeError) as error:
        return f"the name {host} cannot be resolved ({error})"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port}"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error})"


def _host_and_port(url: SplitResult) -> tuple[str, int]:
    default_port = 443 if url.scheme == "https" else 80
    return url.hostname or "", url.port or default_port


# ---------------------------------------------------------------- steps


def _storages(node: Installation) -> Step:
    engine = main_of(node.engine) if node.engine_up else None
    return storages_of(node.settings, engine)


STEPS: Mapping[str, Callable[[Installation], Step]] = {
    "database": _database,
    "migrations": _migrations,
    "storage": lambda node: _writable(node.settings.storage.path),
    "storages": _storages,
    "state folder": lambda node: _writable(node.settings.state_dir),
    "file modes": lambda node: modes_of(node.settings, node.config),
    "disk": _disk,
    "clock": _clock,
    "engine": _engine,
    "isolation": _isolation,
    "images": _images,
    "ports": _ports,
    "certificates": lambda node: certificates_of(node.settings),
    "tokens": _tokens,
    "peers": _peers,
    "signing": lambda node: signing_of(node.settings),
    "approval": _approval,
    "routes": _routes_step,
}
