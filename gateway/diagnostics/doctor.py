"""Checks everything that one node needs, step by step, without starting it or changing anything."""

import errno
import os
import shlex
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from engines.base import (
    MADE_AT_START,
    CommandNotFound,
    Engine,
    EngineDown,
    EngineError,
    ImageNotFound,
)
from engines.docker import ContainerdEngine
from engines.multi import SeveralEngines
from gateway.bootstrap.parts import approval_policy, engines_by_place, main_of, storages
from gateway.config import tls as peer_tls
from gateway.config.schema import Settings
from gateway.data import credentials
from gateway.data.reading import nearest
from gateway.data.remote_storage import HDFS, S3, Remote
from gateway.data.workspace import full, try_to_write
from gateway.domain.approval import idle
from gateway.domain.resources import Amounts
from gateway.errors import GatewayError, Invalid, StorageFailed, counted
from gateway.http.server import bound, same, serving
from gateway.identity.keys import Keyring
from gateway.language.catalogue import ENGLISH, reason_of
from gateway.providers.images import signers_of
from gateway.runtime import trials
from gateway.runtime.trials import Step, Trial
from gateway.store.database import connect, next_step, revisions
from gateway.store.queries import database_time
from gateway.store.repositories import SqlProviders, SqlRouteVersions, SqlTokens
from gateway.store.store import Store
from gateway.version import VERSION
from provider_registry.model import Provider
from route_table import certificates
from route_table.live import LiveRoutes, other_routes, rival
from route_table.model import InvalidRoutes

EXPIRES_SOON = 14
"""days"""
_SKEW_SECONDS = 30.0
"""that two nodes' clocks may differ by"""
_AT_THE_SAME_TIME = 16


@dataclass
class Installation:
    """The node that is checked."""

    settings: Settings
    config: Path | None
    """the file that the settings are from"""
    store: Store
    engine: Engine

    @cached_property
    def revisions(self) -> tuple[str | None, str]:
        """The schema's revision in the database, and this version's. Raises `GatewayError`."""
        return revisions(self.settings.database.url)

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
    """Return every step with its result; ``config`` is the file that the settings are from."""
    store = Store(connect(settings.database.url))
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # so that the check leaves nothing in the node's own
        runs = engine(settings.model_copy(update={"state_dir": Path(folder)}))
        node = Installation(settings, config, store, runs)
        try:
            trial = Trial(tuple(STEPS))
            for name, check in STEPS.items():
                trial.take(name, partial(check, node), needed=False)
            return [replace(step, name=name) for name, step in zip(STEPS, trial.steps, strict=True)]
        finally:
            for one in (main_of(runs), *_further(runs).values()):
                if isinstance(one, ContainerdEngine):
                    with suppress(EngineError):
                        one.undo_network()
            runs.close()
            store.close()


def _routes(settings: Settings) -> LiveRoutes:
    """Return the routes of the file, whatever is wrong with the certificates that they name."""
    return LiveRoutes(settings.route_table.file, files=lambda identity, at, now: (), quiet=True)


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
    if current in (None, newest):
        return trials.ok(newest if current else "the schema is not made yet; serve makes it")
    remedy = (
        "serve upgrades a schema that it knows and refuses any other; back up the database first"
    )
    return trials.warning(f"the schema is {current}, this version's is {newest}", remedy)


def _writable(folder: Path) -> Step:
    existing = nearest(folder)
    try:
        try_to_write(existing)
    except OSError as error:
        if full(error):
            return trials.failed(
                f"{existing} is full: {error.strerror}", f"make room on the disk of {folder}"
            )
        text = f"user {os.getuid()} cannot write to {existing}: {error.strerror}"
        return trials.failed(text, f"give the gateway's user the right to write to {folder}")
    return trials.ok(str(folder) if existing == folder else f"{folder} (made at the start)")


_SEE = "see docs/data.md; each reason is explained in docs/reasons.md"


def storages_of(settings: Settings, engine: Engine | None = None) -> Step:
    """Write, read and delete something small at each storage elsewhere, and check whether containers reach it."""
    try:
        remotes = storages(settings).remotes.values()
    except Invalid as error:
        return trials.failed(
            error.message, "give the gateway's user the right to read the file, or correct its path"
        )
    failed, steps, shared, lasting = [], [], [], []
    open_to_all = [one.remote.name for one in remotes if one.remote.kind == HDFS]
    for storage in remotes:
        try:
            storage.check()
        except StorageFailed as error:
            failed.append(f"{error.reason}: {error.message}")
            if error.own_words:
                failed.append(f"the storage says: {error.own_words}")
            steps.append(
                known.next_step[ENGLISH].rstrip(".") if (known := reason_of(error.reason)) else _SEE
            )
        if isinstance(engine, ContainerdEngine) and (why := _no_way(engine, storage.remote)):
            failed.append(why)
            steps.append(_SEE)
        if storage.remote.kind == S3 and not storage.remote.role:
            shared.append(storage.remote.name)
        if storage.remote.role and not failed:
            try:
                credentials.check_end(storage.remote)
            except StorageFailed as error:
                lasting.append(error.message)
    if failed:
        return trials.failed("; ".join(failed), "; ".join(dict.fromkeys(steps)))
    found = ", ".join(
        f"{one.remote.name} ({one.remote.kind}://{one.remote.host})" for one in remotes
    )
    causes, remedies = [], []
    if shared:
        causes.append(
            f"containers get the node's own key of {', '.join(shared)}, which opens every dataset there"
        )
        remedies.append(
            "where the server has STS, set role in storages: each run gets a key of its own"
        )
    if lasting:
        causes.append(f"credentials of runs outlast them, by up to 12 hours: {'; '.join(lasting)}")
        remedies.append("allow this node's key s3:GetBucketPolicy and s3:PutBucketPolicy")
    if open_to_all:
        names = ", ".join(open_to_all)
        causes.append(
            f"containers can change all of {names}: HDFS believes the name that a client gives"
        )
        remedies.append(
            "keep there only what every image that runs here may read; for more, use S3 with role"
        )
    if causes:
        return trials.warning("; ".join(causes), "; ".join(remedies), found)
    return trials.ok(found or "none but the node's folder")


def _no_way(engine: ContainerdEngine, remote: Remote) -> str:
    try:
        why = engine.no_way_to(remote.services)
    except EngineError as error:
        why = str(error)
    return f"containers cannot reach storage {remote.name}: {why}" if why else ""


def _disk(node: Installation) -> Step:
    folder, reserve = node.settings.storage.path, node.settings.limits.storage_reserve_bytes
    free = shutil.disk_usage(nearest(folder)).free
    found = f"{_size(free)} free at {folder}"
    if free < reserve:
        text = f"{found}, {_size(reserve)} wanted (limits.storage_reserve_bytes): no task will be started"
        return trials.failed(text, "make room, or lower the reserve")
    return trials.ok(found)


def _size(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{count / 1024**2:.0f} MiB"


def modes_of(settings: Settings, config: Path | None = None) -> Step:
    """Warn of files and folders with data, secrets or keys that are open to other users."""
    files = [config] if config is not None else []
    peer = settings.listen.peer.tls
    engine, further = settings.engine, settings.engines.values()
    tls = [engine.docker.tls, engine.swarm.tls, *(one.tls for one in further)]
    clusters = [engine.kubernetes, *(one.kubernetes for one in further)]
    named = [
        *(one.key for one in (*tls, peer) if one),
        *(one.kubeconfig for one in clusters if one),
    ]
    named += Keyring(settings.state_dir).files.values()
    named += (one.password_file for one in settings.storages.values())
    files += filter(None, named)
    routes = _routes(settings).table.routes.values()
    files += [Path(route.identity.key) for route in routes if route.identity.key]
    if settings.database.url.startswith("sqlite:///"):
        file = settings.database.url.removeprefix("sqlite:///").partition("?")[0]
        files += [Path(file + end) for end in ("", "-wal", "-shm")]
    found, commands = [], []
    for mode, paths in (("600", files), ("700", [settings.state_dir, settings.storage.path])):
        if those := [str(path) for path in dict.fromkeys(paths) if _open_to_others(path)]:
            found += those
            commands.append(shlex.join(["chmod", mode, *those]))
    if not found:
        return trials.ok("closed to other users")
    return trials.warning(
        f"open to other users of this machine: {', '.join(found)}", "; ".join(commands)
    )


def _open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:  # other steps report what is missing
        return False


def _clock(node: Installation) -> Step:
    apart = node.database_up and not node.settings.database.url.startswith("sqlite:")
    return clock_of(node.settings.storage.path, node.store if apart else None)


def clock_of(
    folder: Path,
    store: Store | None,
    now: Callable[[], float] = time.time,
) -> Step:
    """Compare this machine's clock with the storage's, and with a database server's."""
    skews = {}
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=nearest(folder)) as file:
        file.write(b"x")
        file.flush()
        skews["storage"] = os.fstat(file.fileno()).st_mtime - now()
    if store is not None:
        skews["database"] = database_time(store) - now()
    found = (
        ", ".join(f"{name} {round(skew, 1) + 0:+.1f} s" for name, skew in skews.items())
        or "nothing to compare with"
    )
    wrong = {
        name: f"{abs(skew):.0f} s" for name, skew in skews.items() if abs(skew) > _SKEW_SECONDS
    }
    if not wrong:
        return trials.ok(found)
    cause = "; ".join(
        f"the clock of the {name} is {off} off this machine's" for name, off in wrong.items()
    )
    return trials.failed(cause, "let both machines follow a time server", found)


# ---------------------------------------------------------------- engine and images


def _engine(node: Installation) -> Step:
    try:
        node.engine.check()
        main = node.engine.capacity()
    except EngineError as error:
        remedy = f"start the Docker daemon, or correct engine.{node.engine.kind}.base_url"
        if node.engine.kind == "kubernetes":
            remedy = "check the API server, and engine.kubernetes.kubeconfig"
        remedy = remedy if node.settings.engine.main is not None else "check the state folder"
        return trials.failed(f"{error.reason}: {error}", error.remedy or remedy)
    others, totals = _further(node.engine), {node.engine.kind: main}
    away, capacities, remedies = [], [], []
    for name, other in others.items():
        try:
            has = totals[name] = other.capacity()
            capacities.append(
                f"{name} ({other.kind}) has {Amounts.of(has.cpu, has.memory, gpu=has.gpu).text()}"
            )
        except EngineError as error:
            away.append(f"{name}: {error.reason}: {error}")
            remedies.append(
                error.remedy or "start that engine, or check its entry and certificates"
            )
    for name in (name for name, has in totals.items() if min(has.cpu, has.memory) <= 0):
        away.append(f"{name}: it has no cpu or no memory for runs")
        remedies.append("raise the ResourceQuota of its namespace, or have a machine take runs")
    found = f"{node.engine.kind} with gpu {main.gpu}" if main.gpu else node.engine.kind
    found = f"{found}, and {counted(len(others), 'further engine')}" if others else found
    found = f"{found}: {'; '.join(capacities)}" if capacities else found
    causes = f"nothing can run at {'; '.join(away)}"
    return (
        trials.warning(causes, "; ".join(dict.fromkeys(remedies)), found)
        if away
        else trials.ok(found)
    )


def _isolation(node: Installation) -> Step:
    if not node.engine_up:
        return trials.skipped()
    try:
        found = node.engine.isolation()
    except EngineError as error:
        return trials.failed(f"{error.reason}: {error}", "check the container engine")
    if found.gaps:
        first = serving(node.settings.state_dir) is None
        made = first and all(gap.endswith(MADE_AT_START) for gap in found.gaps)
        remedy = "nothing before the first start; afterwards" if made else ""
        return trials.warning(
            "; ".join(found.gaps), f"{remedy} close the gaps, or accept them".strip()
        )
    return trials.ok("tasks are isolated from each other, from the host and from outside")


def _images(node: Installation) -> Step:
    """Look for every registered image at the engine that its provider names, else at its registry."""
    if not (node.engine_up and node.database_up and node.revisions[0] == node.revisions[1]):
        return trials.skipped()
    images: dict[tuple[str, str], list[Provider]] = {}
    for provider in SqlProviders(node.store).list():
        for image in provider.every_image() if not provider.retired else ():
            images.setdefault((image, provider.place), []).append(provider)
    if not images:
        return trials.ok("no provider is in use: nothing to check")
    with ThreadPoolExecutor(_AT_THE_SAME_TIME) as pool:
        found = list(pool.map(lambda one: _image(node, *one), sorted(images.items())))
    total = f"{counted(len(images), 'image')} registered"
    if moved := [key for one in found for key in one.moved]:
        text = f"another image than was approved, which is not started (DIGEST_CHANGED): {', '.join(moved)}"
        remedy = (
            "bfia-gateway provider approve, if it is the right one; else restore the approved one"
        )
        return trials.warning(text, remedy, total)
    if lacking := [one for one in found if one.remedy]:
        remedies = "; ".join(dict.fromkeys(one.remedy for one in lacking))
        return trials.warning(
            f"registered, but not here: {'; '.join(one.cause for one in lacking)}", remedies, total
        )
    away = sum(one.away for one in found)
    return trials.ok(
        f"{total}, {away} of them with its registry, pulled when needed"
        if away
        else f"{total}, all here"
    )


@dataclass(frozen=True)
class _Image:
    """What was found of an image where it has to be."""

    moved: Sequence[str] = ()
    """the providers for which another one was approved"""
    away: bool = False
    cause: str = ""
    remedy: str = ""


def _image(
    node: Installation,
    at: tuple[str, str],
    providers: Sequence[Provider],
) -> _Image:
    name, engine_name = at
    place = f"{name} at {engine_name}" if engine_name else name
    needed_by = f"for {', '.join(p.key for p in providers)}"
    known = engines_by_place(node.settings).get(engine_name)
    engine = (
        main_of(node.engine) if known == "" else _further(node.engine).get(known or engine_name)
    )
    if engine is None:
        remedy = "add it to engines, or register the provider without it"
        return _Image(cause=f"{place} (DAEMON_NOT_ALLOWED), {needed_by}", remedy=remedy)
    docker, fetched = node.settings.engine, False
    try:
        try:
            digest = engine.image_digest(name)
            return _Image([p.key for p in providers if p.digests.get(name, digest) != digest])
        except ImageNotFound:
            fetched = docker.main is not None and docker.docker.pull == "missing"
            if not fetched:
                raise
            engine.offered(name, 10.0)
            return _Image(away=True)
    except EngineError as error:
        why = (
            f"{error.reason}: {error}"
            if fetched or isinstance(error, CommandNotFound)
            else error.reason
        )
        explained = None if isinstance(error, EngineDown) else reason_of(error.reason)
        step = (
            explained.next_step[ENGLISH].rstrip(".") if explained else "check the container engine"
        )
        remedy = error.remedy or step
        return _Image(cause=f"{place} ({why}), {needed_by}", remedy=remedy)


def _further(engine: Engine) -> Mapping[str, Engine]:
    return engine.others if isinstance(engine, SeveralEngines) else {}


# ---------------------------------------------------------------- listeners, certificates, routes


def _ports(node: Installation) -> Step:
    listen = node.settings.listen
    listeners = {"peer": listen.peer.bind, "operator": listen.operator.bind}
    if listen.container is not None:
        listeners["container"] = listen.container.bind
    taken, in_use = [], []
    earlier: dict[str, str] = {}
    for name, address in listeners.items():
        first = next((n for n, a in earlier.items() if same(a, address)), None)
        earlier[name] = address
        if first is not None:
            taken.append(f"{name}: {address} is that of listen.{first} too")
            continue
        try:
            bound(address).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                in_use.append((address, f"{name}: {error.strerror or error}"))
            else:
                taken.append(f"{name}: {error.strerror or error}")
    running = serving(node.settings.state_dir) if in_use else None
    taken += [text for address, text in in_use if running is None or not running.has(address)]
    if taken:
        return trials.failed(
            "; ".join(taken), "stop what listens there, or choose another listen.*.bind"
        )
    if running is None:
        return trials.ok("free")
    if running.version == VERSION:
        return trials.ok("the node is running")
    text = f"the node is running as {running.version}, this program is {VERSION}"
    return trials.warning(text, "restart it with this version, or use its own doctor")


def certificates_of(settings: Settings) -> Step:
    """Check that every certificate and key can be used, and until when."""
    now = datetime.now(UTC)
    named = [
        (f"routes.{r.node}", r.identity)
        for r in _routes(settings).table.routes.values()
        if r.enabled
    ]
    broken = [str(p) for at, identity in named for p in certificates.problems(identity, at, now)]
    tls = settings.listen.peer.tls
    if tls is not None:
        broken = [*(str(p) for p in peer_tls.problems(tls, now)), *broken]
    try:
        signers = signers_of(settings.engine.docker.signatures)
    except Invalid as error:
        signers = ()
        broken += map(str, error.problems)
    if broken:
        remedy = "replace the files; those of routes are reloaded by themselves, the listener's at the next start"
        return trials.failed("; ".join(broken), remedy)
    keys = (
        [f"{counted(sum(len(one.keys) for one in signers), 'key')} of signers"] if signers else []
    )
    found = [expiry for at, identity in named for expiry in certificates.expiries(identity, at)]
    causes, remedies = [], []
    if tls is not None:
        running = serving(settings.state_dir)
        served = list(peer_tls.expiries(tls, running.files if running else {}))
        found += [expiry for expiry, _ in served]
        if newer := [expiry.file for expiry, why in served if why]:
            causes.append(f"newer than what the listener serves: {', '.join(newer)}")
            remedies.append("restart the node: until then partners see the old one")
    own = dict.fromkeys(identity.certificate for _, identity in named if identity.certificate)
    if alien := [file for file in own if not certificates.bears(file, settings.node.id)]:
        causes.append(f"the certificate for partners lacks this node's id: {', '.join(alien)}")
        remedies.append(
            "have it issued with the id as a DNS name; or partners set peer_certificate"
        )
    days = {f"{one.path} ({one.file})": (one.ends - now).days for one in found}
    soon = [f"{file} in {left} days" for file, left in days.items() if left < EXPIRES_SOON]
    if soon:
        causes.append(f"these expire soon: {', '.join(soon)}")
        remedies.append(
            "renew them; those of routes are reloaded by themselves, the listener's at the next start"
        )
    if causes:
        return trials.warning("; ".join(causes), "; ".join(remedies))
    if found:
        first = min(one.ends for one in found)
        keys.insert(0, f"{counted(len(found), 'file')}, the first to expire on {first.date()}")
    return trials.ok("; ".join(keys) or "none are named")


def _tokens(node: Installation) -> Step:
    mode, now = node.settings.auth.mode, datetime.now(UTC)
    if not (node.database_up and node.revisions[0] == node.revisions[1]):
        return trials.ok(f"mode {mode}")
    valid = sum(
        not t.revoked_at and (t.expires_at or now) >= now for t in SqlTokens(node.store).list()
    )
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
    if gap := peer_tls.unproven(peer.bind, peer.tls):
        remedy = (
            "set listen.peer.tls with client_ca, and peer_certificate in routes: see docs/routes.md"
        )
        return trials.warning(gap, remedy)
    if peer.tls is None or peer.tls.client_ca is None:
        return trials.ok("only this machine reaches the listener for peers")
    return trials.ok("each peer's certificate is bound to its node id")


def signing_of(settings: Settings) -> Step:
    """Tell which nodes have to sign their requests, and by which key this one does; name those that never do."""
    routes = [route for route in _routes(settings).table.routes.values() if route.enabled]
    try:
        pair = Keyring(settings.state_dir).signing
    except Invalid as error:
        remedy = "make the user that runs the gateway its owner (chown), restore it, or remove it and make a new key"
        return trials.failed(error.message, f"{remedy}: bfia-gateway identity rotate")
    required = sum(route.signed == "required" for route in routes)
    own = (
        f"this node signs with {pair.id}" if pair else "this node has no key pair and signs nothing"
    )
    found = f"{own}; {required} of {counted(len(routes), 'node')} must sign"
    mute = [route.node for route in routes if route.signed == "required" and not route.keys]
    if mute:
        remedy = "accept their invitations (bfia-gateway partner accept), or give each route keys"
        cause = f"signing: required and no key, so nothing is taken from {', '.join(mute)}"
        return trials.warning(cause, f"{remedy}: see docs/signing.md", found)
    if off := [route.node for route in routes if route.signed == "off"]:
        remedy = "exchange keys (bfia-gateway identity export) and set signing: required: see docs/signing.md"
        return trials.warning(
            f"signing: off, so nothing is signed either way: {', '.join(off)}", remedy, found
        )
    return trials.ok(found)


def _approval(node: Installation) -> Step:
    policy = approval_policy(node.settings)
    found = f"mode {policy.mode}" + (
        f", {counted(len(policy.rules), 'rule')}" if policy.rules else ""
    )
    odd = list(idle(policy))
    if not odd:
        return trials.ok(found)
    causes, remedies = (
        [f"approval.rules[{number}]: {text[at]}" for number, *text in odd] for at in (0, 1)
    )
    return trials.warning("; ".join(causes), "; ".join(remedies), found)


def _routes_step(node: Installation) -> Step:
    file, instance = node.settings.route_table.file, node.settings.state_dir / "instance"
    owner = f"{instance.read_text()}/{node.settings.engine.kind}" if instance.is_file() else ""
    newest = node.database_up and node.revisions[0] == node.revisions[1]
    with suppress(
        OSError, UnicodeDecodeError, InvalidRoutes
    ):  # what is wrong with the file is found below
        versions = SqlRouteVersions(node.store, owner)
        if file and newest and (other := rival(file.read_text("utf-8-sig"), versions)):
            cause, _, remedy = f"{file} {other_routes(other)}".partition(": ")
            return trials.failed(cause, remedy)
    return routes_of(node.settings)


def routes_of(settings: Settings) -> Step:
    """Read the file, and connect once to each address of an enabled entry; no request is sent."""
    routes = _routes(settings)
    if routes.problems:
        cause = "; ".join(map(str, routes.problems))
        return trials.failed(cause, "correct the file; the last good table stays in force")
    total = counted(len(routes.table.routes), "node")
    enabled = [route for route in routes.table.routes.values() if route.enabled]
    direct = [
        (route.node, urlsplit(url))
        for route in enabled
        for url in (route.url, route.transport)
        if url
    ]
    if not direct:
        return trials.ok(
            f"{total}, none of them reached directly" if routes.table.routes else total
        )
    with ThreadPoolExecutor(_AT_THE_SAME_TIME) as pool:
        problems = list(pool.map(_connection_problem, (address for _, address in direct)))
    silent = [
        (node, problem) for (node, _), problem in zip(direct, problems, strict=True) if problem
    ]
    away = [f"{node}: {problem}" for node, problem in silent]
    if away:
        more = f"; and {len(away) - 5} more" if len(away) > 5 else ""
        test = f"bfia-gateway route test {shlex.quote(silent[0][0])}"
        remedy = f"correct host or port, or have the peer started; details: {test}"
        return trials.warning("; ".join(away[:5]) + more, remedy, total)
    return trials.ok(
        f"{total}; something listens at each address; "
        f"bfia-gateway route test {shlex.quote(direct[0][0])} tests the whole link of one"
    )


def _connection_problem(url: SplitResult) -> str:
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    try:
        with socket.create_connection((host, port), 2.0):
            return ""
    except (socket.gaierror, UnicodeError) as error:
        return f"the name {host} cannot be resolved ({error})"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port}"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error})"


STEPS: Mapping[str, Callable[[Installation], Step]] = {
    "database": _database,
    "migrations": _migrations,
    "storage": lambda node: _writable(node.settings.storage.path),
    "storages": lambda node: storages_of(
        node.settings, main_of(node.engine) if node.engine_up else None
    ),
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
