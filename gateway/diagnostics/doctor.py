"""Looks at everything that one node needs, step by step, without starting it or changing anything."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engines.base import Engine, EngineError
from engines.docker import ContainerdEngine
from gateway.bootstrap.engine import main_of
from gateway.bootstrap.rules import approval_policy
from gateway.config.schema import Settings
from gateway.data.folders import nearest
from gateway.data.room import full, try_to_write
from gateway.diagnostics.checkup_approval import approval_of
from gateway.diagnostics.checkup_certificates import certificates_of, peers_of
from gateway.diagnostics.checkup_clock import clock_of
from gateway.diagnostics.checkup_images import further, images_of
from gateway.diagnostics.checkup_modes import modes_of
from gateway.diagnostics.checkup_routes import routes_of
from gateway.domain.amounts import Amounts
from gateway.errors import GatewayError
from gateway.http.own_ports import same, serving
from gateway.http.server import bound
from gateway.runtime.checks import Result, Step, Trial
from gateway.store.database import connect
from gateway.store.migrate import revisions
from gateway.store.store import Store
from gateway.version import VERSION

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
        "migrations", Result.WARNING, "", text, "serve brings it up by itself; keep a copy of the database first"
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
