"""Looks at everything that one node needs, step by step, without starting it or changing anything."""

import errno
import os
import queue
import shlex
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from engines.base import Engine, EngineError, ImageNotFound
from engines.docker import ContainerdEngine
from engines.multi import SeveralEngines
from gateway.bootstrap.parts import approval_policy, main_of
from gateway.config import schema
from gateway.config.schema import Settings
from gateway.data.files import full, nearest, try_to_write
from gateway.domain.approval import Policy, idle
from gateway.domain.resources import Amounts
from gateway.errors import GatewayError, Invalid, counted
from gateway.http.server import bound, same, serving
from gateway.providers.images import signers_of
from gateway.runtime.checks import Result, Step, Trial
from gateway.store.database import connect, revisions
from gateway.store.queries import database_time
from gateway.store.repositories import SqlProviders
from gateway.store.store import Store
from gateway.version import VERSION
from provider_registry.model import Provider
from route_table import certificates
from route_table.live import LiveRoutes

_ASKING_SECONDS = 10.0
"""for a registry to tell of an image"""
_AT_ONCE = 8


class _Needed(NamedTuple):
    """An image at the daemon where it has to be, and who needs it."""

    image: str
    base_url: str
    by: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.image} at {self.base_url}" if self.base_url else self.image


class _Wrong(NamedTuple):
    reason: str
    words: str
    remedy: str


def images_of(engine: Engine, store: Store, settings: Settings) -> Step:
    """Look for every registered image at the daemon that its provider names.

    Of one that is not there yet, and that a start would fetch, the registry is asked, as the fetching would be.
    """
    providers = [p for p in SqlProviders(store).list() if not p.retired]
    needed = _needed(providers)
    if not needed:
        return Step("images", Result.OK, "no provider is registered: nothing can be tried")
    moved: list[str] = []
    absent: list[tuple[_Needed, Engine]] = []
    wrong: list[tuple[_Needed, _Wrong]] = []
    for one in needed:
        runs = _engine_of(engine, one.base_url, settings)
        if runs is None:
            remedy = "add the address to engine.docker.daemons, or register the provider without it"
            wrong.append((one, _Wrong("DAEMON_NOT_ALLOWED", "", remedy)))
            continue
        try:
            found = runs.image_digest(one.image)
        except ImageNotFound as error:
            if settings.engine.kind == "docker" and settings.engine.docker.pull == "missing":
                absent.append((one, runs))
            else:
                wrong.append((one, _wrong(error, "")))
        except EngineError as error:
            wrong.append((one, _wrong(error, "")))
        else:
            moved += [p.key for p in providers if _is_moved(p, one, found)]
    wrong += _not_offered(absent)
    total = counted(len(needed), "image")
    if moved:
        text = f"another image than was approved, which is not started (DIGEST_CHANGED): {', '.join(moved)}"
        remedy = "bfia-gateway provider approve, if it is the right one; else bring the approved one back"
        return Step("images", Result.WARNING, f"{total} registered", text, remedy)
    if wrong:
        text = f"registered, but not here: {'; '.join(_told(*pair) for pair in wrong)}"
        remedies = "; ".join(dict.fromkeys(one.remedy for _, one in wrong))
        return Step("images", Result.WARNING, f"{total} registered", text, remedies)
    if absent:
        there = f"{len(absent)} of them with its registry, fetched when wanted"
        return Step("images", Result.OK, f"{total} registered, {there}")
    return Step("images", Result.OK, f"{total} registered, all here")


def further(engine: Engine) -> Mapping[str, Engine]:
    """Return the daemons beside the main one, by their addresses."""
    return engine.others if isinstance(engine, SeveralEngines) else {}


def _engine_of(engine: Engine, base_url: str, settings: Settings) -> Engine | None:
    """Return the engine that a provider names; None for one that the admin has not allowed."""
    if settings.engine.kind != "docker":
        return None if base_url else engine
    if base_url in ("", settings.engine.docker.base_url):
        return engine.main if isinstance(engine, SeveralEngines) else engine
    return further(engine).get(base_url)


def _needed(providers: Iterable[Provider]) -> list[_Needed]:
    by: dict[tuple[str, str], list[str]] = {}
    for provider in providers:
        for image in provider.every_image():
            by.setdefault((image, provider.base_url), []).append(provider.key)
    return [_Needed(image, base_url, tuple(keys)) for (image, base_url), keys in sorted(by.items())]


def _is_moved(provider: Provider, one: _Needed, found: str) -> bool:
    return provider.base_url == one.base_url and provider.digests.get(one.image, found) != found


def _not_offered(absent: Sequence[tuple[_Needed, Engine]]) -> list[tuple[_Needed, _Wrong]]:
    """Ask the registries for what is not here yet; return what cannot be had from there."""
    if not absent:
        return []

    def ask(pair: tuple[_Needed, Engine]) -> _Wrong | None:
        one, runs = pair
        try:
            runs.offered(one.image, _ASKING_SECONDS)
        except EngineError as error:
            return _wrong(error, str(error))
        return None

    with ThreadPoolExecutor(min(len(absent), _AT_ONCE)) as pool:
        answers = list(pool.map(ask, absent))
    return [(one, wrong) for (one, _), wrong in zip(absent, answers, strict=True) if wrong]


def _wrong(error: EngineError, words: str) -> _Wrong:
    return _Wrong(error.reason, words, _REMEDIES.get(error.reason) or getattr(error, "remedy", "") or _LOOK)


_LOOK = "look at the container engine"
_REMEDIES = {
    "PULL_DENIED": "log the gateway's user in (docker login), or name the registry in engine.docker.registries",
    "PULL_TIMEOUT": "look at the way from the container engine to the registry",
    "PULL_FAILED": "look at the way from the container engine to the registry",
}


def _told(one: _Needed, wrong: _Wrong) -> str:
    more = f": {wrong.words}" if wrong.words else ""
    return f"{one.name} ({wrong.reason}{more}), for {', '.join(one.by)}"


# The step of the look at a node that is about certificates and keys.
#
# Its own towards peers, those that routes name, and the public keys that images have to be signed with.

EXPIRES_SOON = 14
"""days"""


def table_of(settings: Settings) -> LiveRoutes:
    """Return the routes of the file, whatever is wrong with the certificates that they name."""
    return LiveRoutes(settings.route_table.file, files=lambda identity, at, now: ())


def certificates_of(settings: Settings) -> Step:
    """Look whether every file can be used, and until when."""
    now = datetime.now(UTC)
    named = [
        (f"routes.{route.node}", route.identity)
        for route in table_of(settings).table.routes.values()
        if route.enabled
    ]
    broken = [str(p) for at, identity in named for p in certificates.problems(identity, at, now)]
    tls = settings.listen.peer.tls
    if tls is not None:
        broken = [*(str(p) for p in schema.problems(tls, now)), *broken]
        named = [(schema.PATH, tls.identity), *named]
    try:
        signers = signers_of(settings.engine.docker.signatures)
    except Invalid as error:  # serve refuses to start for it
        signers = ()
        broken += map(str, error.problems)
    if broken:
        remedy = "put good files there; a running node reads those of routes again by itself"
        return Step("certificates", Result.FAILED, "", "; ".join(broken), remedy)
    found = [expiry for at, identity in named for expiry in certificates.expiries(identity, at)]
    keys = counted(sum(len(one.keys) for one in signers), "key") + " of signers" if signers else ""
    if not found:
        return Step("certificates", Result.OK, keys or "none are named")
    soon = [f"{one.path} ({one.file}) in {(one.ends - now).days} days" for one in found if _soon(one, now)]
    if soon:
        remedy = "renew them; those of routes are read again by themselves, the listener's at the next start"
        return Step("certificates", Result.WARNING, "", f"these expire soon: {', '.join(soon)}", remedy)
    first = min(one.ends for one in found)
    text = f"{counted(len(found), 'file')}, the first to expire on {first.date()}"
    return Step("certificates", Result.OK, f"{text}; {keys}" if keys else text)


def peers_of(settings: Settings) -> Step:
    """Look whether peers prove who they are."""
    gap = schema.unproven(settings.listen.peer.bind, settings.listen.peer.tls)
    if gap:
        remedy = "set listen.peer.tls with client_ca, and peer_certificate in routes: see docs/routes.md"
        return Step("peers", Result.WARNING, "", gap, remedy)
    tls = settings.listen.peer.tls
    if tls is None or tls.client_ca is None:
        return Step("peers", Result.OK, "only this machine reaches the listener for peers")
    return Step("peers", Result.OK, "each peer's certificate is bound to its node id")


def _soon(one: certificates.Expiry, now: datetime) -> bool:
    return (one.ends - now).days < EXPIRES_SOON


_CONNECT_SECONDS = 2.0
_TOGETHER_SECONDS = 3.0
"""for all addresses: a name that nobody answers for may take longer, and is then told as silent"""
_MOST_SHOWN = 5

Address = tuple[str, int]


def routes_of(settings: Settings) -> Step:
    """Read the file, and connect once to each address of an enabled entry; no request is sent."""
    routes = table_of(settings)
    if routes.problems:
        cause = "; ".join(map(str, routes.problems))
        return Step("routes", Result.FAILED, "", cause, "correct the file; the last good table stays in force")
    there = counted(len(routes.table.routes), "node")
    direct = {r.node: _address(r.url) for r in routes.table.routes.values() if r.enabled and r.url and not r.via}
    if not direct:
        return Step(
            "routes", Result.OK, f"{there}, none of them reached directly" if routes.table.routes else there
        )
    wrong = _tried(sorted(set(direct.values())))
    away = [f"{node}: {wrong[address]}" for node, address in direct.items() if wrong[address]]
    if away:
        more = f"; and {len(away) - _MOST_SHOWN} more" if len(away) > _MOST_SHOWN else ""
        remedy = "correct host or port, or have the peer started; more is told by: bfia-gateway route test NODE"
        return Step("routes", Result.WARNING, there, "; ".join(away[:_MOST_SHOWN]) + more, remedy)
    found = (
        f"{there}; something listens at each address; who, and the way back, tells: bfia-gateway route test NODE"
    )
    return Step("routes", Result.OK, found)


def _address(url: str) -> Address:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _tried(addresses: Sequence[Address]) -> dict[Address, str]:
    """Return what is wrong with each address; empty where something listens."""
    heard: queue.SimpleQueue[tuple[Address, str]] = queue.SimpleQueue()
    for address in addresses:  # daemons: a name's look-up cannot be given up
        threading.Thread(target=lambda at: heard.put((at, _connected(at))), args=(address,), daemon=True).start()
    found = dict.fromkeys(addresses, f"no answer within {_TOGETHER_SECONDS:g} s")
    end = time.monotonic() + _TOGETHER_SECONDS
    for _ in addresses:
        try:
            address, wrong = heard.get(timeout=max(end - time.monotonic(), 0.001))
        except queue.Empty:
            break
        found[address] = wrong
    return found


def _connected(address: Address) -> str:
    host, port = address
    try:
        with socket.create_connection(address, _CONNECT_SECONDS):
            return ""
    except (socket.gaierror, UnicodeError) as error:
        return f"the name {host} leads nowhere ({error})"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port}"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error})"


_SKEW_SECONDS = 30.0
"""as much as a route bears between two nodes"""
_REMEDY = "let both machines follow a time server"


def clock_of(folder: Path, store: Store | None, now: Callable[[], float] = time.time) -> Step:
    """Compare clocks; ``now`` in seconds since 1970.

    ``store`` None: the database does not answer, or is a file of this machine.
    """
    skews = {}
    if (there := _file_time(folder)) is not None:
        skews["storage"] = there - now()
    if store is not None:
        skews["database"] = database_time(store) - now()
    found = ", ".join(f"{name} {skew:+.1f} s" for name, skew in skews.items()) or "nothing to compare with"
    wrong = [f"the clock of the {n} is {abs(s):.0f} s off this machine's" for n, s in skews.items() if _far(s)]
    if wrong:
        return Step("clock", Result.FAILED, found, "; ".join(wrong), _REMEDY)
    return Step("clock", Result.OK, found)


def _far(skew: float) -> bool:
    return abs(skew) > _SKEW_SECONDS


def _file_time(folder: Path) -> float | None:
    """Return when whoever keeps the folder says that it is now; None where nothing can be written there."""
    try:
        with tempfile.NamedTemporaryFile(dir=nearest(folder)) as file:
            file.write(b"x")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # that is the step storage's
        return None


def approval_of(policy: Policy) -> Step:
    """Look for rules that can never count."""
    rules = f", {len(policy.rules)} rule{'' if len(policy.rules) == 1 else 's'}" if policy.rules else ""
    found = f"mode {policy.mode}{rules}"
    causes = [f"approval.rules[{number}]: {why}" for number, why in idle(policy)]
    if not causes:
        return Step("approval", Result.OK, found)
    remedy = "put the rule before the one that takes its place, set approval.mode: rules, or take the rule out"
    return Step("approval", Result.WARNING, found, "; ".join(causes), remedy)


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def modes_of(settings: Settings, config: Path | None = None) -> Step:
    """Warn of files and folders with data, secrets or keys that are open to the group or to everybody."""
    database = settings.database.url.removeprefix("sqlite:///")
    files = [config, *_keys(settings)]
    if database != settings.database.url:
        file = database.partition("?")[0]
        files += [Path(file + end) for end in ("", "-wal", "-shm")]
    open_files = _open(path for path in files if path is not None)
    open_folders = _open([settings.state_dir, settings.storage.path])
    if not open_files and not open_folders:
        return Step("file modes", Result.OK, "closed to other users")
    commands = [
        shlex.join(["chmod", mode, *paths])
        for mode, paths in (("600", open_files), ("700", open_folders))
        if paths
    ]
    text = f"open to other users of this machine: {', '.join([*open_files, *open_folders])}"
    return Step("file modes", Result.WARNING, "", text, "; ".join(commands))


def _keys(settings: Settings) -> list[Path]:
    """Return the files of private keys that the configuration and the routes name."""
    docker = settings.engine.docker
    tls = [docker.tls, *(daemon.tls for daemon in docker.daemons)]
    found = [one.key for one in tls if one is not None and one.key is not None]
    if settings.listen.peer.tls is not None:
        found.append(settings.listen.peer.tls.key)
    routes = table_of(settings).table.routes.values()
    return [*found, *(Path(route.identity.key) for route in routes if route.identity.key)]


def _open(paths: Iterable[Path]) -> list[str]:
    found: list[str] = []
    for path in dict.fromkeys(paths):
        try:
            if path.stat().st_mode & _OTHERS:
                found.append(str(path))
        except OSError:  # other steps tell what is missing
            continue
    return found


STEPS = (
    "database",
    "migrations",
    "storage",
    "state folder",
    "file modes",
    "disk",
    "clock",
    "engine",
    "isolation",
    "images",
    "ports",
    "certificates",
    "approval",
    "routes",
)


def look(settings: Settings, engine: Callable[[Settings], Engine], config: Path | None = None) -> list[Step]:
    """Return what was found, one step each. Raises nothing on account of what is looked at.

    ``config`` is the file that the settings are from.
    """
    trial = Trial(STEPS)
    store = Store(connect(settings.database.url))
    try:
        database = trial.take("database", lambda: _database(settings), needed=False)
        readable = False
        if database.result is Result.OK:
            newest = trial.take("migrations", lambda: _migrations(settings), needed=False).result is Result.OK
            readable = newest and revisions(settings.database.url)[0] is not None
        trial.take("storage", lambda: _writable("storage", settings.storage.path), needed=False)
        trial.take("state folder", lambda: _writable("state folder", settings.state_dir), needed=False)
        trial.take("file modes", lambda: modes_of(settings, config), needed=False)
        trial.take("disk", lambda: _disk(settings), needed=False)
        apart = database.result is Result.OK and not settings.database.url.startswith("sqlite:")
        trial.take("clock", lambda: clock_of(settings.storage.path, store if apart else None), needed=False)
        with tempfile.TemporaryDirectory() as folder:  # so that looking leaves nothing in the node's own
            runs = engine(settings.model_copy(update={"state_dir": Path(folder)}))
            try:
                if trial.take("engine", lambda: _engine(runs), needed=False).result is not Result.FAILED:
                    trial.take("isolation", lambda: _isolation(runs), needed=False)
                    if readable:
                        trial.take("images", lambda: images_of(runs, store, settings), needed=False)
            finally:
                _left_as_it_was(runs)
                runs.close()
        trial.take("ports", lambda: _ports(settings), needed=False)
        trial.take("certificates", lambda: certificates_of(settings), needed=False)
        trial.take("peers", lambda: peers_of(settings), needed=False)
        trial.take("approval", lambda: approval_of(approval_policy(settings)), needed=False)
        trial.take("routes", lambda: routes_of(settings), needed=False)
    finally:
        store.close()
    return trial.finished()


def _database(settings: Settings) -> Step:
    try:
        current, newest = revisions(settings.database.url)
    except GatewayError as error:
        cause = "; ".join(str(p) for p in error.problems) or error.message
        return _failed("database", cause, "start the database, or correct database.url")
    return Step("database", Result.OK, f"schema {current or 'not made yet'}, this version's is {newest}")


def _migrations(settings: Settings) -> Step:
    current, newest = revisions(settings.database.url)
    if current == newest:
        return Step("migrations", Result.OK, newest)
    if current is None:
        return Step("migrations", Result.OK, "the schema is not made yet; serve makes it")
    text = f"the schema is {current}, this version's is {newest}"
    return Step(
        "migrations",
        Result.WARNING,
        "",
        text,
        "serve upgrades a schema that it knows and refuses any other; back up the database first",
    )


def _writable(name: str, folder: Path) -> Step:
    there = nearest(folder)
    try:
        try_to_write(there)
    except OSError as error:
        if full(error):
            return _failed(name, f"{there} is full: {error.strerror}", f"make room on the disk of {folder}")
        rights = f"user {os.getuid()} cannot write to {there}: {error.strerror}"
        return _failed(name, rights, f"give the gateway's user the right to write to {folder}")
    return Step(name, Result.OK, str(folder) if there == folder else f"{folder} (made at the start)")


def _disk(settings: Settings) -> Step:
    free = shutil.disk_usage(nearest(settings.storage.path)).free
    reserve = settings.limits.storage_reserve_bytes
    found = f"{free / 1024**3:.1f} GiB free"
    if free < reserve:
        text = f"less than limits.storage_reserve_bytes ({reserve / 1024**3:.1f} GiB): no task will be started"
        return Step("disk", Result.FAILED, found, text, "make room, or lower the reserve")
    return Step("disk", Result.OK, found)


def _engine(engine: Engine) -> Step:
    try:
        engine.check()
    except EngineError as error:
        remedy = (
            "start the Docker daemon, or correct engine.docker.base_url"
            if engine.kind == "docker"
            else "look at the state folder"
        )
        return _failed("engine", f"{error.reason}: {error}", remedy)
    others, away, have = further(engine), [], []
    for name, other in others.items():
        try:
            has = other.capacity()
            have.append(f"{name} has {Amounts.of(has.cpu, has.memory).text()}")
        except EngineError as error:
            away.append(f"{name}: {error.reason}: {error}")
    found = f"{engine.kind}, and {len(others)} of engine.docker.daemons" if others else engine.kind
    found = f"{found}: {'; '.join(have)}" if have else found
    if away:
        text = f"nothing can run at {'; '.join(away)}"
        return Step(
            "engine", Result.WARNING, found, text, "start that daemon, or look at its entry and certificates"
        )
    return Step("engine", Result.OK, found)


def _isolation(engine: Engine) -> Step:
    try:
        found = engine.isolation()
    except EngineError as error:
        return _failed("isolation", f"{error.reason}: {error}", "look at the container engine")
    if found.gaps:
        remedy = "do what is named there, or bear it"
        return Step("isolation", Result.WARNING, "", "; ".join(found.gaps), remedy)
    return Step("isolation", Result.OK, "tasks are apart from each other, from the host and from outside")


def _left_as_it_was(engine: Engine) -> None:
    """Take away the networks that looking has made."""
    for one in (main_of(engine), *further(engine).values()):
        if isinstance(one, ContainerdEngine):
            with suppress(EngineError):  # it has gone away meanwhile
                one.undo_network()


def _ports(settings: Settings) -> Step:
    listeners = {"peer": settings.listen.peer.bind, "operator": settings.listen.operator.bind}
    if settings.listen.container is not None:
        listeners["container"] = settings.listen.container.bind
    taken, in_use = [], []
    for number, (name, address) in enumerate(listeners.items()):
        first = next((n for n, a in list(listeners.items())[:number] if same(a, address)), None)
        if first is not None:
            taken.append(f"{name}: {address} is that of listen.{first} too")
            continue
        try:
            bound(address).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                in_use.append((address, f"{name}: {error}"))
            else:
                taken.append(f"{name}: {error}")
    running = serving(settings.state_dir) if in_use else None
    taken += [text for address, text in in_use if running is None or not running.has(address)]
    if taken:
        return _failed("ports", "; ".join(taken), "end what listens there, or choose another listen.*.bind")
    return Step("ports", Result.OK, "free") if running is None else _running(running.version)


def _running(its_version: str) -> Step:
    mine = VERSION
    if its_version == mine:
        return Step("ports", Result.OK, "the node is running")
    text = f"the node is running as {its_version or 'an earlier version'}, this program is {mine}"
    return Step("ports", Result.WARNING, "", text, "end it and serve with this version, or look with its own")


def _failed(name: str, cause: str, remedy: str) -> Step:
    return Step(name, Result.FAILED, "", cause, remedy)
