"""What every engine offers: start a named run once, inspect it, stop it, save its logs, remove it.

A run is identified by its name alone, so that each call may be repeated. Engine objects hold no state of their
own: after a restart of the gateway, a new one reports the same about the runs of the old one.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

CAPABILITIES = frozenset({"fractional_cpu", "oom_flag", "network", "mounts", "capabilities"})
"""What an engine may declare. What it does not, it refuses with `NotSupported` or leaves out of a probe.

``network``: runs are isolated as `Engine.isolation` reports. ``capabilities``: Linux ones can be granted."""

LARGEST_VARIABLE = 128 * 1024
"""Bytes of one NAME=value with its closing zero byte: what Linux hands to a new program at most."""

NOBODY = "65534:65534"
HOME = "/bfia/home"
"""Where a container sees its home folder."""
TEMPORARY, SHARED_MEMORY = "/tmp", "/dev/shm"
_USER = "bfia"
KILLED = 9
FIRST_SIGNAL_CODE = 128


class EngineError(Exception):
    """The engine could not do it. ``reason`` is stable."""

    reason = "ENGINE_FAILED"
    remedy = ""
    """what to do about it, where that is known here"""

    def __init_subclass__(cls, reason: str = "") -> None:
        cls.reason = reason or cls.reason


class EngineDown(EngineError, reason="ENGINE_DOWN"):
    """The engine does not respond; the state of its runs is unknown."""


HOW_TO_HAVE_IT = (
    "build, pull or load it where the engine runs, or let the gateway fetch it (engine.docker.pull: missing, "
    "with its registry under engine.docker.registries)"
)
"""what to do about a missing image"""


class ImageNotFound(EngineError, reason="IMAGE_NOT_FOUND"):
    """The engine has no such image: ``what`` is missing, and ``remedy`` says what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class DigestChanged(EngineError, reason="DIGEST_CHANGED"):
    """The image is not the one that the launch expects; nothing was started."""


class PullDenied(EngineError, reason="PULL_DENIED"):
    """The registry denies us the image, or the admin's rules do not name it."""


class PullTimeout(EngineError, reason="PULL_TIMEOUT"):
    """The image did not arrive within the configured time."""


class PullFailed(EngineError, reason="PULL_FAILED"):
    """The image could not be pulled for another reason."""


class SignatureMissing(EngineError, reason="SIGNATURE_ABSENT"):
    """A rule requires a signature, and the image has none."""


class SignatureInvalid(EngineError, reason="SIGNATURE_INVALID"):
    """The image is signed with another key than the rule's, or the signature is for another image."""


class SignatureUnchecked(EngineError, reason="SIGNATURE_UNCHECKED"):
    """The registry does not say whether the image is signed."""


class PortInUse(EngineError, reason="PORT_IN_USE"):
    """A port of this host that the run needs is taken."""


class CommandNotFound(EngineError, reason="COMMAND_NOT_FOUND"):
    """The run's executable is not in the image, or not on this machine."""


class CreateFailed(EngineError, reason="CREATE_FAILED"):
    """The engine refused the run; the message says why."""


class NoSpace(EngineError, reason="NO_SPACE"):
    """A disk that the engine writes to is full."""


class NotSupported(EngineError, reason="NOT_SUPPORTED"):
    """This engine cannot apply what was requested, and never ignores it instead."""


@dataclass(frozen=True)
class Limits:
    """The most that a run may use; None: no limit."""

    cpu: float | None = None
    """cores"""
    memory: int | None = None
    """bytes, swap included"""
    pids: int | None = 512
    """processes and threads"""
    gpu: int = 0
    """whole devices, which no other run has meanwhile"""


@dataclass(frozen=True)
class Capacity:
    """What an engine has for all runs together."""

    cpu: float
    """cores"""
    memory: int
    """bytes"""
    gpu: int = 0
    """whole devices"""
    others: "Capacity | None" = None
    """what is kept of it for others than this node's runs, as far as the engine's platform tells"""


@dataclass(frozen=True)
class ImageMetadata:
    """An image's metadata."""

    digest: str = ""
    """identifies its content; empty if the engine has no digest that can be relied on"""
    labels: Mapping[str, str] = field(default_factory=dict)
    repo_digests: tuple[str, ...] = ()
    """``repository@digest`` of each registry that it was pulled from or pushed to"""


@dataclass(frozen=True)
class Mount:
    """A file or folder that a run sees."""

    source: Path
    """as the gateway sees it"""
    target: str
    """as the run sees it"""
    read_only: bool = True


@dataclass(frozen=True)
class LaunchSpec:
    """What to run, and in which bounds."""

    name: str
    image: str
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    limits: Limits = Limits()
    mounts: tuple[Mount, ...] = ()
    command: tuple[str, ...] | None = None
    """instead of the image's own command"""
    digest: str = ""
    """what `Engine.image_digest` has to return for the image; empty: anything"""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities beyond none, such as NET_RAW"""
    engine: str = ""
    """name of the engine that is to run it; empty: the main one"""
    reach: tuple[str, ...] = ()
    """services that it has to reach, ``host:port``, or ``10.0.8.0/24:port`` for every machine there"""
    private_folders: tuple[str, ...] = ()
    """folders that it alone sees, for as long as it is there, where no folder is shared with its machine"""
    reserved: Limits = Limits(pids=None)
    """what it asked for, which an engine of several machines keeps free for it"""


@dataclass(frozen=True)
class ClusterOptions:
    """How an engine of several machines runs what it is asked for."""

    gpu: str = ""
    """the machines' resource that is their GPUs"""
    user: str = NOBODY
    """of containers whose image would run as root"""
    read_only_root: bool = False
    grace: float = 10.0
    """seconds between SIGTERM and SIGKILL"""
    room: int = 64 * 1024 * 1024
    """bytes that a run may write to each folder that it alone sees"""
    place_seconds: float = 30.0
    """the longest that a run waits for a machine with room for it"""


@dataclass(frozen=True)
class Running:
    """The run was started and has not exited; ``started_at`` may be unknown."""

    started_at: datetime | None = None
    cut_off: bool = False
    """its container was disconnected from every network"""


@dataclass(frozen=True)
class Exited:
    """How a run exited. One killed by a signal has the code 128 + signal. Times are in UTC."""

    code: int
    signal: int | None = None
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cut_off: bool = False
    """it failed, and its network or sandbox had been removed"""


@dataclass(frozen=True)
class Missing:
    """No run of that name was started here, or it was removed."""


Probe = Running | Exited | Missing


@dataclass(frozen=True)
class ListedRun:
    """A run that the engine knows."""

    name: str
    labels: Mapping[str, str]
    probe: Probe = field(default_factory=Missing)


@dataclass(frozen=True)
class Logs:
    """The output of a run as far as it is kept, in no particular encoding."""

    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True)
class DiskUse:
    """The disk use of a run outside its mounts."""

    size: int = 0
    """bytes"""
    files: int = 0
    """files and folders"""


MADE_AT_START = "the node makes them at its start if it may"
"""how a gap ends that is one only before the first start"""


@dataclass(frozen=True)
class Isolation:
    """What a run cannot reach, as far as the engine knows."""

    tasks: bool
    """the other runs of this node"""
    host: bool
    """services of the engine's host, except the gateway's listener for containers"""
    outside: bool
    """other machines and the internet"""
    gaps: tuple[str, ...] = ()
    """why something does not hold, and what to do about it"""


class Watch(Protocol):
    """A subscription to exits."""

    def close(self) -> None:
        """End it. No call begins after this returns."""


class Engine(Protocol):
    """Runs images; derive. Every method may be called from several threads and raises only `EngineError`."""

    kind: str
    capabilities: frozenset[str]

    def check(self) -> None:
        """Return if the engine responds. Raises `EngineDown`."""

    def capacity(self) -> Capacity:
        """Return the total capacity, used or not. Raises `EngineDown`."""

    def image_digest(self, image: str) -> str:
        """Return the digest of the image's content. Raises `ImageNotFound`."""
        return self.image_facts(image).digest

    def image_facts(self, image: str) -> ImageMetadata:
        """Return the image's current metadata. Raises `ImageNotFound`."""

    def ensure_image(self, image: str, on_progress: Callable[[str], None]) -> str:
        """Pull the image if it is missing and the admin allows that; return its digest.

        ``on_progress`` is called now and then; what it raises ends the pull and is raised here.
        Raises `ImageNotFound`, `PullDenied`, `PullTimeout`, `PullFailed`, `NoSpace`.
        """
        return self.image_digest(image)

    def registry_digest(self, image: str, seconds: float) -> str:
        """Return the digest that the registry has for the image now; nothing is pulled.

        Same rights, rules and errors as `ensure_image`; takes ``seconds`` at most.
        """
        return self.image_digest(image)

    def isolation(self) -> Isolation:
        """Check what runs cannot reach. Raises `EngineError`."""

    def launch(self, spec: LaunchSpec) -> None:
        """Start the run unless it was started before. Return once it is up.

        Raises `DigestChanged` if the image is not the expected one.
        """

    def probe(self, name: str) -> Probe:
        """Return the state of a run."""

    def address(self, name: str) -> str:
        """Return the address from which a run's requests come; empty if it has none of its own."""
        return ""

    def disk_use(self, name: str, most: int) -> DiskUse:
        """Measure what a run has written outside its mounts, as far as known; ``most`` + 1 files are counted."""
        return DiskUse()

    def stop(self, name: str, grace: float) -> None:
        """Terminate the run, kill it after ``grace`` seconds, return when it has exited. Unknown: no effect."""

    def logs(self, name: str, tail: int | None = None) -> Logs:
        """Return its output so far, of each stream the last ``tail`` bytes. Unknown: empty."""

    def save_logs(self, name: str, directory: Path) -> None:
        """Write stdout.log and stderr.log into the directory. Unknown: no effect."""

    def remove(self, name: str) -> None:
        """Remove the run with everything that belongs to it, killing it if it runs. Unknown: no effect."""

    def list(self) -> Sequence[ListedRun]:
        """Return the runs of this node and this installation, and of no other."""

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Call ``on_exit(name)`` soon after each exit, from any thread.

        Runs that had exited before are reported first, and a run may be reported more than once. ``on_away`` is
        called when the engine stops responding, with the name under which runs request it; the watch resumes by
        itself.
        """

    def close(self) -> None:
        """Release threads and connections. Runs go on."""


def signal_of(code: int) -> int | None:
    """Return the signal that an exit code stands for, as shells and container engines use them."""
    signal = code - FIRST_SIGNAL_CODE
    return signal if 0 < signal <= 64 else None


def home_variables(home: str, temporary: str) -> dict[str, str]:
    """Return the variables that name a home folder, a folder for temporary files, and a user.

    Runs have an unprivileged user, often one without an entry in ``/etc/passwd``. Libraries that look for a home
    directory, a cache or a user's name at import would fail without these.
    """
    return {
        "HOME": home,
        "TMPDIR": temporary,
        "XDG_CACHE_HOME": home,
        "MPLCONFIGDIR": home,
        "USER": _USER,
        "LOGNAME": _USER,
    }


def check_launch(spec: LaunchSpec) -> None:
    """Raise `CreateFailed` with every variable that cannot be passed to a program, or every invalid limit."""
    if not is_name(spec.name):
        raise CreateFailed(f"{spec.name!r} is not a valid name of a run")
    if problems := [
        text for name, value in spec.environment.items() if (text := _wrong_variable(name, value))
    ]:
        raise CreateFailed("environment: " + "; ".join(problems))
    limits = {
        "cpu": spec.limits.cpu,
        "memory": spec.limits.memory,
        "pids": spec.limits.pids,
    }
    wrong = [f"{name} {n}" for name, n in limits.items() if n is not None and not 0 < n < math.inf]
    if wrong:
        raise CreateFailed(f"limits: {', '.join(wrong)}: not a number above 0")


def _wrong_variable(name: str, value: str) -> str:
    if not name or "=" in name or "\0" in name:
        return f"{name!r} is not a valid variable name"
    if "\0" in value:
        return f"{name} contains a zero byte"
    try:
        size = len(name.encode()) + len(value.encode()) + 2
    except UnicodeEncodeError:
        return f"{name} contains characters that UTF-8 cannot express"
    large = f"{name} is {size} bytes with its name, {LARGEST_VARIABLE} are possible"
    return large if size > LARGEST_VARIABLE else ""


def check_digest(spec: LaunchSpec, digest: str) -> None:
    """Raise `DigestChanged` unless the image is the expected one."""
    if spec.digest and spec.digest != digest:
        text = (
            f"the image {spec.image} is {digest} here, {spec.digest} was approved; "
            "if it is the right one: bfia-gateway provider approve"
        )
        raise DigestChanged(text)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")

NODE = "bfia.node"
INSTALLATION = "bfia.installation"


def run_name(
    node: str,
    job: str,
    task: str,
    role: str,
    index: int,
    attempt: int,
) -> str:
    """Return the name of a run: short, safe for DNS, paths and container engines, and deterministic."""
    identity = json.dumps([node, job, task, role, int(index), int(attempt)], ensure_ascii=True)
    return "bfia-" + hashlib.sha256(identity.encode()).hexdigest()[:16]


def is_name(name: str) -> bool:
    """Whether this is a valid name of a run."""
    return _NAME.fullmatch(name) is not None


def labels(
    node: str,
    installation: str,
    job: str,
    task: str,
    role: str,
    index: int,
    attempt: int,
) -> dict[str, str]:
    """Return the labels that identify a run and its node."""
    return {
        NODE: node,
        INSTALLATION: installation,
        "bfia.job": job,
        "bfia.task": task,
        "bfia.role": role,
        "bfia.index": str(index),
        "bfia.attempt": str(attempt),
    }


def belongs_to(
    labels: Mapping[str, str],
    node: str,
    installation: str,
) -> bool:
    """Whether a run with these labels belongs to this node of this installation."""
    return labels.get(NODE) == node and labels.get(INSTALLATION) == installation


def run_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return those labels that say something of a run."""
    return {name: value for name, value in labels.items() if name.startswith("bfia.")}


def safe_name(prefix: str, node: str) -> str:
    """Return ``prefix-node``, shortened and safe for container engines; distinct nodes stay distinct."""
    plain = f"{prefix}-{node}"
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in plain)
    if safe == plain and len(plain) <= 48:
        return plain
    return f"{safe[:31]}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
