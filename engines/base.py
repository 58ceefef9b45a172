"""What every engine offers: start a named run once, look at it, stop it, keep its logs, forget it.

A run is known by its name alone, so that each call may be repeated without harm. Engines hold no truth of
their own: after a restart of the gateway, a new engine object tells the same of the runs of the old one.

    EngineError            ENGINE_FAILED
    ├── EngineDown         ENGINE_DOWN         no answer from the engine
    ├── ImageNotFound      IMAGE_NOT_FOUND     nothing is ever fetched implicitly
    ├── DigestChanged      DIGEST_CHANGED      the image is another one than was expected
    ├── PullDenied         PULL_DENIED         the registry, or the admin, does not allow it
    ├── PullTimeout        PULL_TIMEOUT        the registry did not deliver in time
    ├── PullFailed         PULL_FAILED         the registry cannot be used for another reason
    ├── SignatureMissing   SIGNATURE_ABSENT    nobody has signed the image, and somebody has to
    ├── SignatureInvalid   SIGNATURE_INVALID   signed, but not by who has to, or not this image
    ├── SignatureUnchecked SIGNATURE_UNCHECKED the registry does not tell
    ├── CommandNotFound    COMMAND_NOT_FOUND   the image has no such executable
    ├── CreateFailed       CREATE_FAILED       refused for another reason, in the engine's words
    ├── PortInUse          PORT_IN_USE         a port of this host is taken
    ├── NoSpace            NO_SPACE            a disk is full
    └── NotSupported       NOT_SUPPORTED       this engine cannot apply what was asked for
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

``network``: runs are kept apart as `Engine.isolation` tells. ``capabilities``: Linux ones can be granted."""

LARGEST_VARIABLE = 128 * 1024
"""Bytes of one NAME=value with its closing zero byte: what Linux hands to a new program at most."""

KILLED = 9
FIRST_SIGNAL_CODE = 128


class EngineError(Exception):
    """The engine could not do it. ``reason`` is stable."""

    reason = "ENGINE_FAILED"


class EngineDown(EngineError):
    """The engine does not answer; what its runs do meanwhile is not known."""

    reason = "ENGINE_DOWN"


class HostMoved(EngineError):
    """Containers find this host at another address than when the launch was asked for: ask again with that."""

    reason = "CREATE_FAILED"


HOW_TO_HAVE_IT = (
    "build, pull or load it where the engine runs, or let the gateway fetch it (engine.docker.pull: missing, "
    "with its registry under engine.docker.registries)"
)
"""what to do about an image that an engine with images of its own does not have"""


class ImageNotFound(EngineError):
    """The engine has no such image. ``what`` is not there, ``remedy`` says what to do; its text has both."""

    reason = "IMAGE_NOT_FOUND"

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class DigestChanged(EngineError):
    """The image is another one than the launch expects; nothing was started."""

    reason = "DIGEST_CHANGED"


class PullDenied(EngineError):
    """The registry gives the image to nobody, or not to us, or the admin's rules do not name it."""

    reason = "PULL_DENIED"


class PullTimeout(EngineError):
    """The registry did not deliver within the time that the admin gives it."""

    reason = "PULL_TIMEOUT"


class PullFailed(EngineError):
    """The image could not be fetched, for a reason that has no name of its own."""

    reason = "PULL_FAILED"


class SignatureMissing(EngineError):
    """A rule asks for a signature, and nobody has signed the image."""

    reason = "SIGNATURE_ABSENT"


class SignatureInvalid(EngineError):
    """The image is signed, but by another key than the rule's, or the signature is for another image."""

    reason = "SIGNATURE_INVALID"


class SignatureUnchecked(EngineError):
    """Whether the image is signed cannot be told, because the registry does not answer that."""

    reason = "SIGNATURE_UNCHECKED"


class PortInUse(EngineError):
    """A port of this host that the run needs is taken."""

    reason = "PORT_IN_USE"


class CommandNotFound(EngineError):
    """What the run should begin with is not in the image, or not on this machine."""

    reason = "COMMAND_NOT_FOUND"


class CreateFailed(EngineError):
    """The engine refused the run; the text has its words."""

    reason = "CREATE_FAILED"


class NoSpace(EngineError):
    """A disk that the engine writes to is full."""

    reason = "NO_SPACE"


class NotSupported(EngineError):
    """This engine cannot apply what was asked for; it never leaves it out instead."""

    reason = "NOT_SUPPORTED"


@dataclass(frozen=True)
class Limits:
    """What a run may use at most; None is without a limit."""

    cpu: float | None = None
    """cores"""
    memory: int | None = None
    """bytes; swap does not come on top"""
    pids: int | None = 512
    """processes and threads"""


@dataclass(frozen=True)
class Capacity:
    """What an engine has for all runs together."""

    cpu: float
    """cores"""
    memory: int
    """bytes"""


@dataclass(frozen=True)
class ImageFacts:
    """What an image says of itself."""

    digest: str = ""
    """tells its content from every other; empty where the engine cannot tell, so that nobody relies on it"""
    labels: Mapping[str, str] = field(default_factory=dict)
    repo_digests: tuple[str, ...] = ()
    """``repository@digest`` of each registry that it came from or went to"""


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
    """what `Engine.image_digest` has to tell of the image; empty: anything"""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities beyond none, such as NET_RAW"""
    engine: str = ""
    """which of several engines is to run it, by name; empty: the main one"""
    host: str = ""
    """where in the engine's own network the environment says that this host is; empty: it says nothing of that"""


@dataclass(frozen=True)
class Running:
    """The run was started and is not over; ``started_at`` is None where the engine does not tell."""

    started_at: datetime | None = None
    cut_off: bool = False
    """its container was taken off every network: it can reach nobody, and nobody it"""


@dataclass(frozen=True)
class Exited:
    """How a run ended. One that died by a signal has the code 128 + signal. Times are aware, in UTC."""

    code: int
    signal: int | None = None
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True)
class Missing:
    """Nothing by that name was started here, or it was removed."""


Probe = Running | Exited | Missing


@dataclass(frozen=True)
class Found:
    """A run that the engine knows."""

    name: str
    labels: Mapping[str, str]
    probe: Probe = field(default_factory=Missing)


@dataclass(frozen=True)
class Logs:
    """What a run wrote, as far as it is kept; bytes, because nobody promises an encoding."""

    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True)
class Written:
    """What a run has written where only its engine can look: all but its mounts."""

    size: int = 0
    """bytes"""
    files: int = 0
    """files and folders"""


@dataclass(frozen=True)
class Isolation:
    """What a run cannot reach, as far as the engine can tell just now."""

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
        """End it. No call begins after this returns, except one that is under way."""


class Engine(Protocol):
    """Runs images. Every method may be called from several threads and raises only `EngineError`."""

    kind: str
    capabilities: frozenset[str]

    def check(self) -> None:
        """Return if the engine answers. Raises `EngineDown`."""

    def capacity(self) -> Capacity:
        """Return what there is in all, used or not. Raises `EngineDown`."""

    def image_digest(self, image: str) -> str:
        """Return what tells the content of the image from others. Raises `ImageNotFound`."""

    def image_facts(self, image: str) -> ImageFacts:
        """Look at the image as it is this moment; nothing remembered is told. Raises `ImageNotFound`."""

    def ensure_image(self, image: str, told: Callable[[str], None]) -> str:
        """Fetch the image if it is not here and the admin allows that; return its digest.

        ``told`` hears of progress now and then; what it raises ends the fetching and comes out here.
        Raises `ImageNotFound`, `PullDenied`, `PullTimeout`, `PullFailed`, `NoSpace`.
        """

    def offered(self, image: str, seconds: float) -> str:
        """Return the digest under which the image's registry would give it out now; nothing is fetched.

        Asked as `ensure_image` fetches, with the same rights and rules, for ``seconds`` at most. Raises the same.
        """

    def isolation(self) -> Isolation:
        """Look what runs cannot reach. Raises `EngineError`."""

    def launch(self, spec: LaunchSpec) -> None:
        """Start the run; do nothing if it was started before, be it over or not. Return once it is up.

        Raises `DigestChanged` if the image is not the expected one.
        """

    def probe(self, name: str) -> Probe:
        """Look at a run; one that nobody started here is `Missing`."""

    def address(self, name: str) -> str:
        """Return the address from which a run's requests come; empty where it has none of its own just now."""

    def written(self, name: str, most: int) -> Written:
        """Measure what a run has written beside its mounts; no more than ``most`` + 1 files are counted.

        Unknown: nothing.
        """

    def stop(self, name: str, grace: float) -> None:
        """Ask the run to end, kill it after ``grace`` seconds, return when it is over. Unknown: nothing to do."""

    def logs(self, name: str, tail: int | None = None) -> Logs:
        """Return what it wrote so far, of each stream the last ``tail`` bytes. Unknown: nothing."""

    def save_logs(self, name: str, directory: Path) -> None:
        """Write stdout.log and stderr.log into the directory. Unknown: what is there stays as it is."""

    def remove(self, name: str) -> None:
        """Forget the run with everything that belongs to it, killing it if it runs. Unknown: nothing to do."""

    def list(self) -> Sequence[Found]:
        """Return the runs of this node and this installation, and of no other."""

    def watch(self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None) -> Watch:
        """Call ``on_exit(name)`` soon after each exit, from a thread of its own.

        Runs that were over before are told first. A name may be told more than once. ``on_away`` is called when
        the engine has stopped to answer, with the name under which runs ask for it; the watch goes on by itself
        once it answers again.
        """

    def close(self) -> None:
        """Give back threads and connections. Runs go on."""


def signal_of(code: int) -> int | None:
    """Return the signal that an exit code stands for, by the custom of shells and container engines."""
    signal = code - FIRST_SIGNAL_CODE
    return signal if 0 < signal <= 64 else None


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `CreateFailed`, naming every variable that no program can be given."""
    problems = []
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name:
            problems.append(f"{name!r} is not a name of a variable")
        elif "\0" in value:
            problems.append(f"{name} contains a zero byte")
        else:
            try:
                size = len(name.encode()) + len(value.encode()) + 2
            except UnicodeEncodeError:
                problems.append(f"{name} contains characters that UTF-8 cannot express")
            else:
                if size > LARGEST_VARIABLE:
                    problems.append(f"{name} is {size} bytes with its name, {LARGEST_VARIABLE} are possible")
    if problems:
        raise CreateFailed("environment: " + "; ".join(problems))


def check_digest(spec: LaunchSpec, digest: str) -> None:
    """Raise `DigestChanged` unless the image is the expected one."""
    if spec.digest and spec.digest != digest:
        text = (
            f"the image {spec.image} is {digest} here, {spec.digest} was approved; "
            "if it is the right one: bfia-gateway provider approve"
        )
        raise DigestChanged(text)


def check_limits(limits: Limits) -> None:
    """Raise `CreateFailed`, naming every limit that makes no sense."""
    asked = {"cpu": limits.cpu, "memory": limits.memory, "pids": limits.pids}
    problems = [
        f"{name} {value} is no number above 0"
        for name, value in asked.items()
        if value is not None and not 0 < value < math.inf
    ]
    if problems:
        raise CreateFailed("limits: " + "; ".join(problems))


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")

NODE = "bfia.node"
INSTALLATION = "bfia.installation"


def run_name(node: str, job: str, task: str, role: str, index: int, attempt: int) -> str:
    """Return the name of a run: short, safe for DNS, paths and container engines, and the same every time."""
    identity = json.dumps([node, job, task, role, int(index), int(attempt)], ensure_ascii=True)
    return "bfia-" + hashlib.sha256(identity.encode()).hexdigest()[:16]


def is_name(name: str) -> bool:
    """Tell whether something may be the name of a run, in every engine alike."""
    return _NAME.fullmatch(name) is not None


def labels(
    node: str, installation: str, job: str, task: str, role: str, index: int, attempt: int
) -> dict[str, str]:
    """Return the labels by which a run is found again and told from those of other nodes."""
    return {
        NODE: node,
        INSTALLATION: installation,
        "bfia.job": job,
        "bfia.task": task,
        "bfia.role": role,
        "bfia.index": str(index),
        "bfia.attempt": str(attempt),
    }


def owned(labels: Mapping[str, str], node: str, installation: str) -> bool:
    """Tell whether a run with these labels belongs to this node of this installation."""
    return labels.get(NODE) == node and labels.get(INSTALLATION) == installation


def safe_name(prefix: str, node: str) -> str:
    """Return ``prefix-node``, made short and safe for container engines; distinct nodes stay distinct."""
    plain = f"{prefix}-{node}"
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in plain)
    if safe == plain and len(plain) <= 48:
        return plain
    return f"{safe[:31]}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
