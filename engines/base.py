"""The interface of engines: start a named run once, inspect it, stop it, save its logs, remove it.

The name alone identifies a run, so each call may be repeated. Engine objects hold no state of their
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
from typing import Protocol, runtime_checkable

# What an engine may declare in `Engine.capabilities`. A launch that needs an undeclared capability
# is refused with `NotSupported`.
CAPABILITIES = frozenset(
    {
        "fractional_cpu",  # a limit may be a fraction of a core
        # `Exited.oom_killed` says whether a run was killed for its use of memory. Without this
        # capability, the flag is always False.
        "oom_flag",
        "network",  # runs are isolated as `Engine.isolation` reports
        "mounts",  # `LaunchSpec.mounts` are possible
        "capabilities",  # capabilities of Linux (`LaunchSpec.capabilities`) can be granted
    }
)

# The most bytes that Linux passes to a new program for one variable: NAME=value with the closing
# zero byte
LARGEST_VARIABLE = 128 * 1024

# Names of labels of a run
NODE = "bfia.node"
INSTALLATION = "bfia.installation"
JOB = "bfia.job"

# Paths inside a container
HOME = "/bfia/home"
TEMPORARY = "/tmp"
SHARED_MEMORY = "/dev/shm"

NOBODY = "65534:65534"  # user and group
KILLED = 9  # number of the signal SIGKILL
FIRST_SIGNAL_CODE = 128  # an exit code above this number means a signal: 137 is 128 + 9

# The remedy in errors about an image that the engine does not have.
MISSING_IMAGE_REMEDY = (
    "build, pull or load it where the engine runs, or let the gateway fetch it "
    "(engine.docker.pull: missing, with its registry under engine.docker.registries)"
)

# End of a message about missing packet filter rules: the node creates them when it starts.
RULES_CREATED_AT_START = "the node makes them at its start if it may"

_LAST_SIGNAL = 64  # the highest number of a signal of Linux
_USER = "bfia"  # value of USER in runs; the account need not exist
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")
_VARIABLE_NAME = re.compile(r"[^=\0]+")
# A character that at least one container engine refuses in names
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9_.-]")
_RUN_LABEL_PREFIX = "bfia."
_LONGEST_SAFE_NAME = 48  # characters


class EngineError(Exception):
    """An engine could not do what was requested.

    ``reason`` is a stable symbol for programs; a subclass sets its own by ``class X(EngineError,
    reason="…")``.
    """

    reason = "ENGINE_FAILED"
    remedy = ""  # what the admin can do about it; may be empty

    def __init_subclass__(cls, reason: str = "") -> None:
        """Set the reason of a subclass, which otherwise keeps the reason of its parent."""
        if reason:
            cls.reason = reason


class EngineDown(EngineError, reason="ENGINE_DOWN"):
    """The engine does not respond; the state of its runs is unknown."""


class ImageNotFound(EngineError, reason="IMAGE_NOT_FOUND"):
    """The engine has no such image. ``what`` is the message without the remedy."""

    def __init__(self, what: str, remedy: str = "") -> None:
        message = what
        if remedy:
            message += f": {remedy}"
        super().__init__(message)
        self.what = what
        self.remedy = remedy


class DigestChanged(EngineError, reason="DIGEST_CHANGED"):
    """The image is not the one that the launch expects; nothing was started."""


class PullDenied(EngineError, reason="PULL_DENIED"):
    """The registry denies us the image, or the admin's rules do not name the registry."""


class PullTimeout(EngineError, reason="PULL_TIMEOUT"):
    """The image did not arrive within the configured time."""


class PullFailed(EngineError, reason="PULL_FAILED"):
    """The image could not be pulled, for a reason that has no error class of its own."""


class SignatureMissing(EngineError, reason="SIGNATURE_ABSENT"):
    """A rule requires a signature, and the image has none."""


class SignatureInvalid(EngineError, reason="SIGNATURE_INVALID"):
    """The image is signed with another key than the rule's, or has another image's signature."""


class SignatureUnchecked(EngineError, reason="SIGNATURE_UNCHECKED"):
    """The registry does not say whether the image is signed."""


class PortInUse(EngineError, reason="PORT_IN_USE"):
    """A port of this host that the run needs is in use."""


class CommandNotFound(EngineError, reason="COMMAND_NOT_FOUND"):
    """The run's executable is not in the image, or not on this machine."""


class CreateFailed(EngineError, reason="CREATE_FAILED"):
    """The engine refused the run; the message says why."""


class NoSpace(EngineError, reason="NO_SPACE"):
    """A disk that the engine writes to is full."""


class NotSupported(EngineError, reason="NOT_SUPPORTED"):
    """The engine cannot apply a requested setting, and refuses the run rather than ignore it."""


@dataclass(frozen=True)
class Limits:
    """The most that a run may use (None: no limit), or the resources that are reserved for it."""

    cpu: float | None = None  # cores
    memory: int | None = None  # bytes, swap included
    pids: int | None = 512  # processes and threads
    gpu: int = 0  # whole devices, for this run alone


@dataclass(frozen=True)
class Capacity:
    """The resources of an engine."""

    cpu: float  # cores
    memory: int  # bytes
    gpu: int = 0  # whole devices
    # Reserved for users other than this node's runs; None if the platform does not report it.
    others: "Capacity | None" = None


@dataclass(frozen=True)
class ImageMetadata:
    """An image's metadata."""

    digest: str = ""  # identifies its content; empty if the engine has no reliable digest
    labels: Mapping[str, str] = field(default_factory=dict)
    # ``repository@digest`` for each repository that the image was pulled from or pushed to
    repo_digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mount:
    """A file or folder that a run sees."""

    source: Path  # on the gateway's side
    target: str  # in the run
    read_only: bool = True


@dataclass(frozen=True)
class LaunchSpec:
    """A run to start, with its limits."""

    name: str
    image: str
    environment: Mapping[str, str]
    labels: Mapping[str, str]  # as `labels` returns them
    limits: Limits = Limits()
    mounts: tuple[Mount, ...] = ()
    command: tuple[str, ...] | None = None  # None: the image's own command
    digest: str = ""  # the expected result of `Engine.image_digest`; empty: any
    capabilities: tuple[str, ...] = ()  # Linux capabilities to grant, such as NET_RAW
    engine: str = ""  # name of the engine; empty: the main one
    # Services that the run has to reach: ``host:port``, or ``10.0.8.0/24:port`` for every machine
    # of a range
    reach: tuple[str, ...] = ()
    # Folders in the run, for this run alone and deleted with it. The gateway requests them where
    # the machine of the run shares no folder with the gateway.
    private_folders: tuple[str, ...] = ()
    later_runs: int = 0  # runs of the same job that are known to follow, for which to prepare
    # The cores and the memory that an engine of several machines reserves for the run; an amount of
    # None: not reserved
    reserved: Limits = Limits(pids=None)


@dataclass(frozen=True)
class ClusterOptions:
    """How an engine of several machines runs containers."""

    gpu: str = ""  # name of the machines' resource that counts GPUs; empty: no GPUs
    user: str = NOBODY  # of containers whose image would run as root
    read_only_root: bool = False  # whether containers write only to their folders
    grace: float = 10.0  # seconds between SIGTERM and SIGKILL
    room: int = 64 * 1024 * 1024  # size limit of each private folder of a run, in bytes
    place_seconds: float = 30.0  # the longest wait for a machine with room for a run


@dataclass(frozen=True)
class Running:
    """The run was started and has not exited; ``started_at`` may be unknown."""

    started_at: datetime | None = None
    cut_off: bool = False  # its container was disconnected from every network


@dataclass(frozen=True)
class Exited:
    """The exit of a run. Times are in UTC.

    A run killed by a signal has the code 128 + signal.
    """

    code: int
    signal: int | None = None
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    # The run failed, and the network or the network namespace that it used had been removed.
    cut_off: bool = False


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
    """The retained output of a run, in any encoding."""

    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True)
class DiskUse:
    """What a run uses of the disk: outside its mounts (`Engine.disk_use`), or in them."""

    size: int = 0  # bytes
    files: int = 0  # files and folders


@dataclass(frozen=True)
class Isolation:
    """What a run cannot reach, as far as the engine knows.

    ``tasks``, ``host`` and ``outside`` are True if a run cannot reach what they name. A setting
    ``outside`` of an engine has the opposite meaning: True lets its runs reach other machines.
    """

    tasks: bool  # the other runs of this node
    host: bool  # services of the engine's host, except the gateway's listener for containers
    outside: bool  # other machines and the internet
    gaps: tuple[str, ...] = ()  # why something is reachable, and the remedy


class Watch(Protocol):
    """A subscription to exits."""

    def close(self) -> None:
        """End the subscription. No call begins after this returns."""


class Engine(Protocol):
    """Runs images. Every method may be called from several threads and raises only `EngineError`.

    Implementations derive from this class and inherit the defaults of optional methods.
    """

    kind: str  # name of the platform, such as "docker"
    capabilities: frozenset[str]  # a subset of `CAPABILITIES`

    def check(self) -> None:
        """Return if the engine responds. Raises `EngineDown`."""

    def capacity(self) -> Capacity:
        """Return the total capacity, used or not. Raises `EngineDown`."""

    def image_digest(self, image: str) -> str:
        """Return the digest of the image's content. Raises `ImageNotFound`."""
        return self.image_metadata(image).digest

    def image_metadata(self, image: str) -> ImageMetadata:
        """Return the image's current metadata. Raises `ImageNotFound`."""

    def ensure_image(
        self,
        image: str,
        on_progress: Callable[[str], None],
    ) -> str:
        """Pull the image if it is missing and the admin allows that; return its digest.

        ``on_progress`` is called now and then with a text about the progress; an exception that
        the callback raises ends the pull and is raised here. An engine that never pulls only
        returns the digest.

        Raises `ImageNotFound`, `PullDenied`, `PullTimeout`, `PullFailed`, `NoSpace`.
        """
        return self.image_digest(image)

    def registry_digest(self, image: str, seconds: float) -> str:
        """Return the digest that the registry has for the image now; nothing is pulled.

        Same rights, rules and errors as `ensure_image`; takes ``seconds`` at most. An engine
        without a registry returns its own digest of the image.
        """
        return self.image_digest(image)

    def isolation(self) -> Isolation:
        """Check what runs cannot reach. Raises `EngineError`."""

    def launch(self, spec: LaunchSpec) -> None:
        """Start the run unless it was started before. Return once the run is up.

        Raises `DigestChanged` if the image is not the expected one.
        """

    def probe(self, name: str) -> Probe:
        """Return the state of a run."""

    def address(self, name: str) -> str:
        """Return the IP address from which a run's requests come.

        Empty if the run has no address of its own.
        """
        return ""

    def disk_use(self, name: str, max_files: int) -> DiskUse:
        """Measure the files that a run has written outside its mounts.

        At most ``max_files`` + 1 files are counted, so that a caller sees that there are too many.
        An engine that cannot measure them reports 0.
        """
        return DiskUse()

    def stop(self, name: str, grace: float) -> None:
        """Terminate the run, kill it after ``grace`` seconds, return when it has exited.

        No effect for an unknown run.
        """

    def logs(self, name: str, tail: int | None = None) -> Logs:
        """Return the last ``tail`` bytes of each stream of output so far; None: all bytes.

        The streams of an unknown run are empty.
        """

    def save_logs(self, name: str, directory: Path) -> None:
        """Write stdout.log and stderr.log into the directory. No effect for an unknown run."""

    def remove(self, name: str) -> None:
        """Remove the run with everything that belongs to it, killing it if it runs.

        No effect for an unknown run.
        """

    def list(self) -> Sequence[ListedRun]:
        """Return the runs of this node and this installation, and of no other."""

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Call ``on_exit(name)`` soon after each exit, from any thread.

        Runs that had exited before are reported first, and a run may be reported more than once.
        ``on_away`` is called when the engine stops responding, with the engine's name as in
        `LaunchSpec.engine`, which is empty for the main engine; the watch resumes by itself.
        """

    def close(self) -> None:
        """Release threads and connections. Runs go on."""


@runtime_checkable
class BridgedEngine(Engine, Protocol):
    """An engine whose containers reach their host at the address of a network's bridge."""

    def gateway_address(self) -> str:
        """Return the address under which containers reach this host. Raises `EngineError`."""

    def network_id(self) -> str:
        """Return the id of the network, which is created on demand. Raises `EngineError`."""

    def close_host(self, ports: Sequence[int]) -> None:
        """Close this host to containers, except for these ports."""

    def obstacle_to(self, services: tuple[str, ...]) -> str:
        """Return why containers cannot reach services, each ``host:port``; empty if they can.

        Raises `EngineError`.
        """

    def undo_network(self) -> None:
        """Remove the network if this object created it and nothing uses it.

        Raises `EngineError`.
        """


def signal_of(code: int) -> int | None:
    """Return the signal behind an exit code, as shells and container engines encode it.

    None for a code that does not stand for a signal.
    """
    signal = code - FIRST_SIGNAL_CODE
    if 0 < signal <= _LAST_SIGNAL:
        return signal
    return None


def home_variables(home: str, temporary: str) -> dict[str, str]:
    """Return the variables that name a home folder, a folder for temporary files, and a user.

    Runs have an unprivileged user, often one without an entry in ``/etc/passwd``. Without these
    variables, libraries that look for a home directory, a cache or a user's name at import would
    fail.
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
    """Check a run's name, variables and limits, in this order.

    Raises `CreateFailed` at the first of the three checks that fails. The message names every
    invalid variable, or every invalid limit.
    """
    if not is_name(spec.name):
        raise CreateFailed(f"{spec.name!r} is not a valid name of a run")
    _check_variables(spec.environment)
    _check_limits(spec.limits)


def _check_variables(environment: Mapping[str, str]) -> None:
    """Raise `CreateFailed` with every variable that cannot be passed to a program."""
    problems = [_variable_problem(name, value) for name, value in environment.items()]
    text = "; ".join(filter(None, problems))
    if text:
        raise CreateFailed(f"environment: {text}")


def _variable_problem(name: str, value: str) -> str:
    """Return why a variable cannot have this name, or else this value; empty if it can."""
    if not _VARIABLE_NAME.fullmatch(name):
        return f"{name!r} is not a valid variable name"
    if "\0" in value:
        return f"{name} contains a zero byte"
    try:
        size = len(f"{name}={value}\0".encode())
    except UnicodeEncodeError:  # lone surrogates, such as JSON's "\ud800"
        return f"{name} contains characters that UTF-8 cannot express"
    if size > LARGEST_VARIABLE:
        return f"{name} is {size} bytes with its name, {LARGEST_VARIABLE} are possible"
    return ""


def _check_limits(limits: Limits) -> None:
    """Raise `CreateFailed` with every limit that is not a finite number above 0.

    ``gpu`` is not checked here: each engine compares it with the devices that it has.
    """
    values = {
        "cpu": limits.cpu,
        "memory": limits.memory,
        "pids": limits.pids,
    }
    invalid = [f"{name} {value}" for name, value in values.items() if not _is_valid_limit(value)]
    if invalid:
        raise CreateFailed(f"limits: {', '.join(invalid)}: not a number above 0")


def _is_valid_limit(value: float | None) -> bool:
    """True for None, which means no limit, and for a finite number above 0; False for NaN."""
    return value is None or 0 < value < math.inf


def check_digest(spec: LaunchSpec, digest: str) -> None:
    """Check that an image is still the one that was approved.

    Raises `DigestChanged` if its digest is not the one of the launch; a launch without a digest
    accepts any image.
    """
    if spec.digest in ("", digest):
        return
    raise DigestChanged(
        f"the image {spec.image} is {digest} here, {spec.digest} was approved; "
        "if it is the right one: bfia-gateway provider approve"
    )


def run_name(
    node: str,
    job: str,
    task: str,
    role: str,
    index: int,
    attempt: int,
) -> str:
    """Return the name of a run: short, and safe for DNS, paths and container engines.

    The same arguments always give the same name.
    """
    identity = json.dumps(
        [node, job, task, role, int(index), int(attempt)],
        ensure_ascii=True,
    )
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
    """Return the values of the labels that identify a run and its node, by the labels' names."""
    return {
        NODE: node,
        INSTALLATION: installation,
        JOB: job,
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
    """Return the labels that describe a run, without those of its image."""
    return {name: value for name, value in labels.items() if name.startswith(_RUN_LABEL_PREFIX)}


def safe_name(prefix: str, node: str) -> str:
    """Return ``prefix-node``, shortened and safe for container engines.

    A name that had to be changed ends in a hash of the node's id, so that distinct nodes stay
    distinct.
    """
    name = f"{prefix}-{node}"
    safe = _UNSAFE_CHARACTER.sub("_", name)
    if safe == name and len(name) <= _LONGEST_SAFE_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()
    return f"{safe[:31]}-{digest[:16]}"  # 31 + 1 + 16 is `_LONGEST_SAFE_NAME`
