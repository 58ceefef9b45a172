"""Parts of a node made of its settings alone: timings, policies, keys, engines, sockets."""

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import structlog

from adapter.bfia.peer import LONGEST_CALL
from engines.base import Engine
from engines.docker import ContainerdEngine, DockerOptions, Source, sandboxes
from engines.multi import SeveralEngines
from engines.process.engine import ProcessEngine, this_machine
from engines.registry.names import PullRules
from engines.swarm import SwarmEngine, SwarmOptions
from gateway.config.engine import (
    DockerEngineSettings,
    KubernetesEngineSettings,
    NamedEngine,
    SwarmEngineSettings,
)
from gateway.config.schema import Settings
from gateway.data.combined_storage import Storages
from gateway.data.file_storage import FileStorage
from gateway.data.reading import read_bounded
from gateway.data.remote_storage import Remote
from gateway.data.workspace import Apart
from gateway.domain.approval import Mode, Policy, Rule, Verdict
from gateway.domain.problems import Problem
from gateway.domain.resource_queue import QueueRules
from gateway.domain.timeouts import RunTiming, Timing
from gateway.errors import DatabaseAway, Invalid

log = structlog.get_logger(__name__)

X = TypeVar("X")
_JITTER = 0.25
_TELL_AGAIN = 60
"""seconds between two notices that the database does not answer"""
_SANDBOXES = 10, 64
"""network namespaces that are prepared for containers at most, on a small machine and on a large one"""
_MEMORY_OF_SANDBOXES = 0.02
"""share of a machine's memory, between these"""


@dataclass(frozen=True)
class Pace:
    """What no setting says of how often a node does something, and how much it bears; tests give less."""

    registration_pull: float = 20.0  # seconds that a registration waits for its images to be pulled
    lost_gateway: float = 60.0  # seconds of silence after which another gateway takes over
    disk_check: float = 10.0  # seconds between two measurements of a run's disk
    files: int = 250_000  # files and folders that a run may create
    cleaning: float = 60.0  # seconds between two cleanings
    lost_call: float = LONGEST_CALL + 6.0
    """seconds after which the scheduling node makes a call again whose answer it never saw: a claim may wait 1 s
    in its lane, a connection 1 s for a place and 3 s to come up"""


def call_timing(settings: Settings, pace: Pace = Pace()) -> Timing:
    """Return how long the scheduling node waits for what."""
    return Timing(
        call_deadline=pace.lost_call,
        unreachable_limit=settings.limits.unreachable_seconds,
        jitter=_JITTER,
        hold_first=settings.limits.schedule_pause_seconds,
        hold_most=max(
            settings.limits.schedule_longest_pause_seconds, settings.limits.schedule_pause_seconds
        ),
        hold_tries=settings.limits.schedule_attempts,
        ageing=settings.limits.ageing_seconds,
    )


def run_timing(settings: Settings) -> RunTiming:
    """Return how long a participating node waits for what."""
    return RunTiming(
        jitter=_JITTER,
        launch_deadline=120.0 + settings.engine.docker.pull_seconds,
        silence_fails=settings.limits.exit_without_report == "fails",
        orphan=settings.limits.unreachable_seconds + 60.0,
        partner_job=settings.limits.partner_job_seconds,
    )


def storages(settings: Settings) -> Storages:
    """Return the storages of a node. Raises `Invalid` where a file with a password cannot be read."""
    problems, remotes = [], []
    for name, one in settings.storages.items():
        password = one.password
        if one.password_file is not None and not password:
            try:
                password = read_bounded(one.password_file, 4096).decode().strip()
            except (OSError, ValueError) as error:
                path = f"storages.{name}.password_file"
                problems.append(Problem(path, f"cannot be read: {error}", str(one.password_file)))
        folder = one.parts.path.strip("/")
        remote = Remote(
            name,
            one.kind,
            str(one.parts.hostname),
            one.port,
            folder if one.kind == "s3" else f"/{folder}",
            one.username,
            password,
            tls=one.tls,
            region=one.region,
            role=one.role,
            datanodes=tuple(one.datanodes),
            addressing=one.addressing,
        )
        remotes.append(remote)
    if problems:
        raise Invalid(problems)
    return Storages(
        FileStorage(settings.storage.path), remotes, stand_in=settings.storage.stand_in == "file"
    )


def queue_rules(settings: Settings) -> QueueRules:
    """Return for how long waiting jobs keep their place, and when they go before all others."""
    pause = call_timing(settings).hold_most
    return QueueRules(ageing=settings.limits.ageing_seconds, fresh=max(QueueRules.fresh, 3 * pause))


def approval_policy(settings: Settings) -> Policy:
    """Return who has to agree to a job here."""
    approval = settings.approval
    rules = (
        Rule(Verdict(r.decide), r.source, r.component, r.dataset, r.role, r.command)
        for r in approval.rules
    )
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
    file = Path(
        url.removeprefix("sqlite:///")
    ).resolve()  # the same file by another path has the same lock
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


def for_gateways(settings: Settings, url: str) -> str:
    """Return where other gateways of the node reach the listener for peers, which has ``url`` here.

    One on all addresses is at the one from which this machine reaches the database that they share.
    """
    listener, shared = urlsplit(url), urlsplit(settings.database.url)
    if (
        settings.listen.peer.advertise
        or listener.hostname not in ("0.0.0.0", "::")
        or shared.hostname is None
    ):
        return settings.listen.peer.advertise or url
    family, kind, _, _, there = socket.getaddrinfo(
        shared.hostname, shared.port or 3306, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as sock:
        sock.connect(there)  # sends nothing
        host = sock.getsockname()[0]
    return f"{listener.scheme}://{f'[{host}]' if ':' in host else host}:{listener.port}"


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


def engine_of(
    settings: Settings,
    installation: str,
    instance: str = "",
) -> Engine:
    """Return the engine that the settings name; ``instance`` is this gateway's own id, by default the kept one."""
    if settings.engine.main is None:
        return ProcessEngine(
            node=settings.node.id,
            installation=installation,
            images={
                name: tuple(image.command) for name, image in settings.engine.process.images.items()
            },
            run_root=settings.state_dir / "process",
            saved_log_size=settings.limits.run_log_bytes,
        )
    instance = instance or instance_of(settings.state_dir)

    def made(place: Any) -> Engine:
        if place.kind == "kubernetes":
            return _kubernetes(settings, getattr(place, "kubernetes", place), installation)
        if place.kind == "swarm":
            return _swarm(settings, place, installation)
        return _daemon(settings, place, installation, instance)

    main = made(settings.engine.main)
    others = {name: made(one) for name, one in settings.engines.items()}
    return SeveralEngines(main, others) if others else main


def main_of(engine: Engine) -> Engine:
    """Return the engine whose network is on this machine, where that is so of any."""
    return engine.main if isinstance(engine, SeveralEngines) else engine


_DEVICES = {
    "kubernetes": "k8s",
    "swarm": "swarm",
    "docker": "",
}
"""the device that providers name for each kind of engine; empty for Docker's"""


def engines_by_place(settings: Settings) -> dict[str, str]:
    """Return what a provider may name (`Provider.place`), each with the name of the engine for it."""
    main = settings.engine.main
    if main is None:
        return {"": ""}
    further = settings.engines
    places = {name: name for name in further}
    for name, one in further.items():
        places.setdefault(one.base_url, name)
        places.setdefault(_DEVICES[one.kind], name)
    return {
        **places,
        "": "",
        getattr(main, "base_url", ""): "",
        _DEVICES[main.kind]: "",
    }


def apart(settings: Settings) -> Apart:
    """Return the engines whose machines share no folder with this one."""
    everywhere = {"": settings.engine.main, **settings.engines}

    def without(source: str) -> frozenset[str]:
        known = (
            (name, one)
            for name, one in everywhere.items()
            if one is not None and one.kind != "docker"
        )
        return frozenset(name for name, one in known if getattr(one, source, None) is None)

    return Apart(without("storage_source"), without("runs_source"))


def _kubernetes(
    settings: Settings,
    place: KubernetesEngineSettings,
    installation: str,
) -> Engine:
    try:
        from engines.kubernetes import KubernetesEngine, KubernetesOptions  # noqa: PLC0415 - an extra
    except ImportError as error:
        rule = (
            f"needs a library that is not installed, {error.name}: pip install 'bfia-gateway[k8s]'"
        )
        raise Invalid([Problem("engine.kubernetes", rule)]) from error
    docker = settings.engine.docker
    options = KubernetesOptions(
        kubeconfig=str(place.kubeconfig or ""),
        namespace=place.namespace,
        pull=PullRules(frozenset(docker.registries), docker.pull_seconds),
        saved_log_size=settings.limits.run_log_bytes,
        node_selector=place.node_selector,
        tolerations=tuple(one.model_dump(exclude_defaults=True) for one in place.tolerations),
        gpu=place.gpu,
        runtime_class=place.runtime_class,
        priority_class=place.priority_class,
        seccomp_profile=place.seccomp_profile,
        **_of_cluster(settings),
    )
    return KubernetesEngine(settings.node.id, installation, options)


def _swarm(
    settings: Settings,
    place: SwarmEngineSettings | NamedEngine,
    installation: str,
) -> SwarmEngine:
    options = SwarmOptions(
        constraints=tuple(place.constraints),
        gpu=place.gpu,
        log_size=settings.limits.run_log_bytes // 2,
        **_of_cluster(settings),
        **_of_daemon(settings, place),
    )
    return SwarmEngine(settings.node.id, installation, options)


def _of_cluster(settings: Settings) -> dict[str, Any]:
    """Return what the runs of all clusters have in common."""
    return {
        "user": settings.engine.docker.user,
        "read_only_root": settings.engine.docker.read_only_root,
        "grace": run_timing(settings).stop_grace,
        "room": settings.limits.run_log_bytes * 2,
    }


def _daemon(
    settings: Settings,
    place: DockerEngineSettings | NamedEngine,
    installation: str,
    instance: str,
) -> ContainerdEngine:
    """Return the engine of one daemon; what ``place`` does not say is the same for all."""
    docker = settings.engine.docker
    options = DockerOptions(
        network=docker.network or None,
        network_mode=docker.network_mode,
        outside=place.outside,
        instance=instance,
        user=docker.user,
        read_only_root=docker.read_only_root,
        sandboxes=_sandboxes_at(place.base_url),
        log_size=settings.limits.run_log_bytes // 2,
        **_of_daemon(settings, place),
    )
    return ContainerdEngine(settings.node.id, installation, options)


def _sandboxes_at(base_url: str) -> int:
    """Return how many network namespaces a daemon prepares at most; the memory of one elsewhere is unknown."""
    fewest, most = _SANDBOXES
    if (base_url or os.environ.get("DOCKER_HOST", "")).startswith(("tcp:", "ssh:")):
        return fewest
    return min(
        max(fewest, int(this_machine().memory * _MEMORY_OF_SANDBOXES / sandboxes.MEMORY)), most
    )


def _of_daemon(
    settings: Settings, place: DockerEngineSettings | SwarmEngineSettings | NamedEngine
) -> dict[str, Any]:
    """Return what a daemon and the manager of a Swarm have in common."""
    docker = settings.engine.docker
    shared = (
        (settings.storage.path, place.storage_source),
        (settings.state_dir / "runs", place.runs_source),
    )
    return {
        "base_url": place.base_url,
        "tls": {name: str(path) for name, path in place.tls or () if path is not None},
        "pull": PullRules(
            frozenset(docker.registries if docker.pull == "missing" else ()), docker.pull_seconds
        ),
        "sources": tuple(
            Source(root.absolute(), source.bind or "", source.volume or "")
            for root, source in shared
            if source
        ),
        "saved_log_size": settings.limits.run_log_bytes,
    }
