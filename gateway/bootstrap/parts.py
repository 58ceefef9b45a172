"""Parts of a node made of its settings alone: timings, policies, keys, engines, sockets."""

import fcntl
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, TypeVar
from uuid import uuid4

import structlog

from adapter.bfia.peer import LONGEST_CALL
from engines.base import Engine
from engines.docker import ContainerdEngine, DockerOptions, PullRules
from engines.docker.engine import Source
from engines.multi import SeveralEngines
from engines.process.engine import ProcessEngine
from gateway.config.engine import DaemonSettings, DockerEngineSettings
from gateway.config.schema import Settings
from gateway.data.file_storage import FileStorage
from gateway.data.reading import whole
from gateway.data.remote_storage import Remote
from gateway.data.storages import Storages
from gateway.domain import admission
from gateway.domain.approval import Mode, Policy, Rule, Verdict
from gateway.domain.problems import Problem
from gateway.domain.timeouts import RunTiming, Timing
from gateway.errors import DatabaseAway, Invalid

log = structlog.get_logger(__name__)

X = TypeVar("X")
_JITTER = 0.25
_TELL_AGAIN = 60
"""seconds between two notices that the database does not answer"""
_SANDBOXES = 10
"""network namespaces that are prepared for containers at most: what a job starts within a few seconds"""


def call_timing(settings: Settings) -> Timing:
    """Return how long the scheduling node waits for what."""
    # a claim may wait 1 s in its lane, a connection 1 s for a place and 3 s to come up
    return Timing(
        call_deadline=LONGEST_CALL + 6.0,
        unreachable_limit=settings.limits.unreachable_seconds,
        jitter=_JITTER,
        hold_first=settings.limits.schedule_pause_seconds,
        hold_most=max(settings.limits.schedule_longest_pause_seconds, settings.limits.schedule_pause_seconds),
        hold_tries=settings.limits.schedule_attempts,
        ageing=settings.limits.ageing_seconds,
    )


def run_timing(settings: Settings) -> RunTiming:
    """Return how long a participating node waits for what."""
    return RunTiming(
        jitter=_JITTER,
        launch_deadline=120.0 + settings.engine.docker.pull_seconds,
        engine_timeout=settings.limits.engine_down_seconds,
        silence_fails=settings.limits.exit_without_report == "fails",
        orphan=settings.limits.orphan_seconds or settings.limits.unreachable_seconds + 60.0,
    )


def storages(settings: Settings) -> Storages:
    """Return the storages of a node. Raises `Invalid` where a file with a password cannot be read."""
    problems, remotes = [], []
    for name, one in settings.storages.items():
        password = one.password
        if one.password_file is not None and not password:
            try:
                password = whole(one.password_file, 4096).decode().strip()
            except (OSError, ValueError) as error:
                path = f"storages.{name}.password_file"
                problems.append(Problem(path, f"cannot be read: {error}", str(one.password_file)))
        host, folder = str(one.parts.hostname), one.parts.path.strip("/")
        folder = folder if one.kind == "s3" else f"/{folder}"
        remotes.append(
            Remote(
                name,
                one.kind,
                host,
                one.port,
                folder,
                one.username,
                password,
                tls=one.tls,
                region=one.region,
                role=one.role,
                datanodes=tuple(one.datanodes),
            )
        )
    if problems:
        raise Invalid(problems)
    return Storages(FileStorage(settings.storage.path), remotes, stand_in=settings.storage.stand_in == "file")


def admission_rules(settings: Settings) -> admission.Rules:
    """Return for how long waiting jobs keep their place, and when they go before all others."""
    pause = call_timing(settings).hold_most
    return admission.Rules(ageing=settings.limits.ageing_seconds, fresh=max(admission.Rules.fresh, 3 * pause))


def approval_policy(settings: Settings) -> Policy:
    """Return who has to agree to a job here."""
    approval = settings.approval
    rules = (Rule(Verdict(r.decide), r.source, r.component, r.dataset, r.role, r.command) for r in approval.rules)
    return Policy(Mode(approval.mode), approval.deadline_seconds, tuple(rules))


def when_there(connect: Callable[[], X], sleep: Callable[[float], None] = time.sleep) -> X:
    """Connect to the database; wait for one that does not answer yet, as after the machine's start."""
    tries = 0
    while True:
        try:
            return connect()
        except DatabaseAway as error:
            if tries % _TELL_AGAIN == 0:
                log.warning(
                    "nothing is served until the database answers",
                    cause=error.message,
                    next="start the database, or correct database.url",
                )
        tries += 1
        sleep(1.0)


def only_process(settings: Settings) -> TextIO | None:
    """Hold a lock beside an SQLite file: several gateways share MariaDB, never SQLite. Raises `Invalid`."""
    url = settings.database.url
    if not url.startswith("sqlite:///"):
        return None
    file = Path(url.removeprefix("sqlite:///")).resolve()  # the same file by another path has the same lock
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(file.name + ".lock").open("w")
    except OSError as error:
        rule = f"cannot be used: {error.strerror}"
        raise Invalid([Problem("database.url", rule, url)], reason="DATABASE_UNUSABLE") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        rule = "is in use by another gateway process; several of them need mysql+pymysql://…"
        raise Invalid([Problem("database.url", rule, url)], reason="DATABASE_IN_USE") from None
    return lock


def instance_of(state_dir: Path) -> str:
    """Return this gateway's own id: runs belong to one of several gateways."""
    return _kept(state_dir / "instance", uuid4().hex.encode).decode("ascii")


def key_of(state_dir: Path) -> bytes:
    """Return the key of this gateway's run tokens."""
    return _kept(state_dir / "run-tokens.key", lambda: secrets.token_bytes(32))


def _kept(file: Path, make: Callable[[], bytes]) -> bytes:
    """Return what a file of the state folder holds: made with that, and readable by the gateway's user only."""
    if not file.exists():
        part = file.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(make())
        part.replace(file)
    return file.read_bytes()


def engine_of(settings: Settings, installation: str, instance: str = "") -> Engine:
    """Return the engine that the settings name; ``instance`` is this gateway's own id, by default the kept one."""
    node = settings.node.id
    if settings.engine.kind == "process":
        images = {name: tuple(image.command) for name, image in settings.engine.process.images.items()}
        return ProcessEngine(
            node=node,
            installation=installation,
            images=images,
            run_root=settings.state_dir / "process",
            saved_log_size=settings.limits.run_log_bytes,
        )
    docker = settings.engine.docker
    instance = instance or instance_of(settings.state_dir)
    main = _daemon(settings, docker, docker.base_url, installation, instance)
    others = {
        name: _daemon(settings, one, one.base_url, installation, instance)
        for name, one in settings.further_engines.items()
    }
    return SeveralEngines(main, others) if others else main


def main_of(engine: Engine) -> Engine:
    """Return the engine whose network is on this machine, where that is so of any."""
    return engine.main if isinstance(engine, SeveralEngines) else engine


def engines_by_place(settings: Settings) -> dict[str, str]:
    """Return what a provider may name (`Provider.place`), each with the name of the engine for it."""
    if settings.engine.kind != "docker":
        return {"": ""}
    further = settings.further_engines
    addresses = {one.base_url: name for name, one in further.items()}
    return {"": "", settings.engine.docker.base_url: "", **addresses, **{name: name for name in further}}


def _daemon(
    settings: Settings,
    place: DockerEngineSettings | DaemonSettings,
    base_url: str,
    installation: str,
    instance: str,
) -> ContainerdEngine:
    """Return the engine of one daemon; what ``place`` does not say is the same for all."""
    docker = settings.engine.docker
    options = DockerOptions(
        base_url=base_url,
        tls={name: str(path) for name, path in place.tls if path is not None} if place.tls else {},
        pull=PullRules(
            frozenset(docker.registries if docker.pull == "missing" else ()),
            docker.pull_seconds,
            docker.pull_stale_seconds,
        ),
        network=docker.network or None,
        network_mode=docker.network_mode,
        outside=place.outside,
        instance=instance,
        user=docker.user,
        read_only_root=docker.read_only_root,
        sources=tuple(
            Source(root.absolute(), source.bind or "", source.volume or "")
            for root, source in (
                (settings.storage.path, place.storage_source),
                (settings.state_dir / "runs", place.runs_source),
            )
            if source is not None
        ),
        sandboxes=_SANDBOXES,
        log_size=settings.limits.run_log_bytes // 2,
        saved_log_size=settings.limits.run_log_bytes,
    )
    return ContainerdEngine(settings.node.id, installation, options)
