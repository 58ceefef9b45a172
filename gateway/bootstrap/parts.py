"""Parts of a node that need only its settings: timings, policies, storages, lock, ids and keys."""

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

from adapter.bfia.connections import LONGEST_CONNECT
from adapter.bfia.peer import LONGEST_CALL
from gateway.config.schema import Settings
from gateway.config.schema.storage import RemoteSettings
from gateway.config.secrets import storage_password
from gateway.data.combined_storage import Storages
from gateway.data.file_storage import FileStorage
from gateway.data.remote import Remote
from gateway.domain.approval_rules import Mode, Policy, Rule, Verdict
from gateway.domain.problems import Problem
from gateway.domain.resource_queue import QueueRules
from gateway.domain.timeouts import RunTiming, Timing
from gateway.errors import DatabaseAway, Invalid

log = structlog.get_logger(__name__)

X = TypeVar("X")
JITTER = 0.25  # share by which pauses vary at random, so that nodes do not act simultaneously
REMIND_AFTER = 60  # tries of one second between two warnings that the database does not answer
LAUNCH_SECONDS = 120.0  # limit of a launch, without the pull of its image
# A scheduling node is asked for its job after unreachable_seconds and these seconds of silence.
ORPHAN_SECONDS = 60.0
# The usual ports of database servers, by the beginning of their URLs.
DATABASE_PORTS = {"mysql+pymysql": 3306, "postgresql+psycopg": 5432}
_SQLITE = "sqlite:///"
_ANY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Pace:
    """Intervals and bounds without a setting; tests use smaller ones."""

    registration_pull: float = 20.0  # seconds that a registration waits for its images to be pulled
    lost_gateway: float = 60.0  # seconds of silence after which another gateway takes over
    disk_check: float = 10.0  # seconds between two measurements of a run's disk
    files: int = 250_000  # files and folders that a run may create
    cleaning: float = 60.0  # seconds between two cleanings
    # Seconds after which the scheduling node repeats a call without a response. The call may wait
    # 1 s in its lane first; another second is kept in reserve.
    lost_call: float = LONGEST_CONNECT + LONGEST_CALL + 2.0
    first_retry: float = Timing.retry_first  # seconds before a failed call is repeated first
    longest_retry: float = Timing.retry_max  # seconds up to which that pause doubles


def call_timing(settings: Settings, pace: Pace = Pace()) -> Timing:
    """Return the timing of a scheduling node's calls."""
    limits = settings.limits
    return Timing(
        call_deadline=pace.lost_call,
        retry_first=pace.first_retry,
        retry_max=pace.longest_retry,
        unreachable_limit=limits.unreachable_seconds,
        jitter=JITTER,
        hold_first=limits.schedule_pause_seconds,
        hold_most=max(limits.schedule_longest_pause_seconds, limits.schedule_pause_seconds),
        hold_tries=limits.schedule_attempts,
        ageing=limits.ageing_seconds,
    )


def run_timing(settings: Settings) -> RunTiming:
    """Return the timing of the runs at a participating node."""
    return RunTiming(
        jitter=JITTER,
        launch_deadline=LAUNCH_SECONDS + settings.engine.docker.pull_seconds,
        silence_fails=settings.limits.exit_without_report == "fails",
        orphan=settings.limits.unreachable_seconds + ORPHAN_SECONDS,
        partner_job=settings.limits.partner_job_seconds,
    )


def queue_rules(settings: Settings) -> QueueRules:
    """Return the rules of the queue of waiting jobs.

    They say for how long a job keeps its place, and after how long it precedes all younger jobs.
    """
    # A job that has not asked for resources for three of its longest pauses loses its place.
    fresh = 3 * call_timing(settings).hold_most
    return QueueRules(
        ageing=settings.limits.ageing_seconds,
        fresh=max(QueueRules.fresh, fresh),
    )


def approval_policy(settings: Settings) -> Policy:
    """Return the policy by which jobs are approved here."""
    approval = settings.approval
    rules = [
        Rule(
            decide=Verdict(rule.decide),
            source=rule.source,
            component=rule.component,
            dataset=rule.dataset,
            role=rule.role,
            command=rule.command,
        )
        for rule in approval.rules
    ]
    return Policy(
        mode=Mode(approval.mode),
        deadline=approval.deadline_seconds,
        rules=tuple(rules),
    )


def storages(settings: Settings) -> Storages:
    """Return the storages of a node.

    Raises `Invalid` with a problem for each password that cannot be read.
    """
    problems: list[Problem] = []
    remotes = []
    for name, remote_settings in settings.storages.items():
        try:
            password = storage_password(settings, name)
            remotes.append(_remote(name, remote_settings, password))
        except Invalid as error:
            problems += error.problems
    if problems:
        raise Invalid(problems)
    return Storages(
        FileStorage(settings.storage.path), remotes, stand_in=settings.storage.stand_in == "file"
    )


def _remote(
    name: str,
    settings: RemoteSettings,
    password: str,
) -> Remote:
    """Return a remote storage of the settings."""
    folder = settings.parts.path.strip("/")  # for S3 the name of the bucket
    if settings.kind == "hdfs":
        folder = f"/{folder}"
    return Remote(
        name=name,
        kind=settings.kind,
        host=str(settings.parts.hostname),
        port=settings.port,
        folder=folder,
        username=settings.user,
        password=password,
        tls=settings.tls,
        region=settings.region,
        role=settings.role,
        principal=settings.principal,
        keytab=str(settings.keytab or ""),
        web=settings.web or "",
        share_key=settings.share_key,
        datanodes=tuple(settings.datanodes),
        addressing=settings.addressing,
    )


def connect_when_ready(
    connect: Callable[[], X],
    sleep: Callable[[float], None] = time.sleep,
) -> X:
    """Return the result of ``connect``, which is tried every second until the database responds.

    A database may respond later than this gateway starts, as after the start of the machine.
    """
    tries = 0
    while True:
        try:
            return connect()
        except DatabaseAway as error:
            if tries % REMIND_AFTER == 0:
                log.warning(
                    "nothing is served until the database answers",
                    cause=error.message,
                    next="start the database, or correct database.url",
                )
        tries += 1
        sleep(1.0)


def lock_database(settings: Settings) -> TextIO | None:
    """Lock an SQLite database, which only one gateway may use; return None for a server's.

    The lock lasts as long as the returned file is open. Raises `Invalid` for a database that cannot
    be used, or that another gateway uses.
    """
    url = settings.database.url
    if not url.startswith(_SQLITE):
        return None
    # Resolved, as the same file by another path must have the same lock.
    file = Path(url.removeprefix(_SQLITE)).resolve()
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
        rule = "is in use by another gateway process; several of them need MariaDB or PostgreSQL"
        raise Invalid([Problem("database.url", rule, url)], reason="DATABASE_IN_USE") from None
    return lock


def url_for_gateways(settings: Settings, url: str) -> str:
    """Return the URL at which other gateways of this node reach the listener for peers.

    It is the advertised one, or else ``url``, the listener's URL on this machine. For a listener on
    all addresses, the host is replaced by the address from which this machine reaches the shared
    database.
    """
    if settings.listen.peer.advertise:
        return settings.listen.peer.advertise
    listener = urlsplit(url)
    database = urlsplit(settings.database.url)
    if listener.hostname not in _ANY_ADDRESS or database.hostname is None:
        return url
    host = _address_towards(database.hostname, database.port or DATABASE_PORTS[database.scheme])
    if ":" in host:
        host = f"[{host}]"
    return f"{listener.scheme}://{host}:{listener.port}"


def _address_towards(host: str, port: int) -> str:
    """Return the address of this machine in packets to a host."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(address)  # sends nothing by UDP, but chooses the address of this machine
        return str(sock.getsockname()[0])


def instance_of(state_dir: Path) -> str:
    """Return this gateway's id, made at its first start; `Run.owner` of its runs begins with it."""
    return _read_or_create(state_dir / "instance", _new_instance).decode("ascii")


def _new_instance() -> bytes:
    """Return a new id for a gateway."""
    return uuid4().hex.encode()


def run_token_key(state_dir: Path) -> bytes:
    """Return the key with which this gateway makes and checks tokens of runs."""
    return _read_or_create(state_dir / "run-tokens.key", lambda: secrets.token_bytes(32))


def _read_or_create(file: Path, create: Callable[[], bytes]) -> bytes:
    """Return a file's content; on the first start, ``create`` returns the content to store.

    Only the gateway's user may read the file.
    """
    if not file.exists():
        incomplete = file.with_suffix(".part")
        incomplete.unlink(missing_ok=True)
        descriptor = os.open(incomplete, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(create())
        incomplete.replace(file)
    return file.read_bytes()


def cluster_options(settings: Settings) -> dict[str, Any]:
    """Return the options that the runs of Swarm and Kubernetes have in common."""
    return {
        "user": settings.engine.docker.user,
        "read_only_root": settings.engine.docker.read_only_root,
        "grace": run_timing(settings).stop_grace,
        # Twice what is kept of a log file, as log files are cut only after the end of the run.
        "room": settings.limits.run_log_bytes * 2,
    }
