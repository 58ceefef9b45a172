"""The suite's Kubernetes and Swarm: commands to them, and the one machine of each that tests may take away."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
from filelock import FileLock

from tests.forks import ROOT
from tests.services.registry import registry

LAST = {"kubernetes": 2, "swarm": 3}
"""the machine of each that a test may cut off or close while it has `the_last_of`"""


def kubectl(*words: str, given: str = "") -> str:
    """Return what the command says, as the cluster's admin. Raises AssertionError."""
    return _said("kubernetes", "kubectl", *words, given=given)


def runs_in(namespace: str) -> None:
    """Apply what is shipped for runs, with the addresses of the tests."""
    _said("kubernetes", "runs", namespace)


@contextlib.contextmanager
def guarded_registry(home: Path) -> Iterator[str]:
    """Serve the Kubernetes' images at a registry that wants a password of its machines, too; give its address."""
    cluster, plain = (
        Path(os.environ["BFIA_TEST_KUBERNETES"]),
        os.environ["BFIA_TEST_KUBERNETES_REGISTRY"],
    )
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(registry(home, guarded=True, images=cluster / "images"))
        for known in cluster.glob(f"*/registries/{plain}"):
            ours = known.with_name(address)
            ours.mkdir()
            stack.callback(shutil.rmtree, ours)
            text = (known / "hosts.toml").read_text()
            (ours / "hosts.toml").write_text(
                text.replace(plain.partition(":")[2], address.partition(":")[2])
            )
        yield address


def machine(
    cluster: str,
    act: str,
    *words: str,
    number: int = 0,
) -> None:
    """``cut`` or ``mend`` a machine's cable, or run a command ``in`` its network; without a number the last."""
    _said(cluster, act, str(number or LAST[cluster]), *words)


def daemon(number: int) -> str:
    """Return the address of one of the Swarm's daemons; the first is the manager."""
    return f"unix://{os.environ['BFIA_TEST_SWARM']}/{number}/s"


def pushed(known: str, name: str = "") -> str:
    """Push an image of this machine's Docker to the Kubernetes' registry; return its name there."""
    there = f"{os.environ['BFIA_TEST_KUBERNETES_REGISTRY']}/{name or known}"
    for line in (
        ["tag", known, there],
        ["push", "-q", there],
        ["rmi", "-f", there],
    ):  # the name alone
        subprocess.run(["docker", *line], check=True, stdout=subprocess.DEVNULL)
    return there


def load(number: int, *images: str) -> None:
    """Bring images of this machine's Docker to one of the Swarm's daemons, unless it has them."""
    with (
        contextlib.closing(docker.from_env()) as here,
        contextlib.closing(docker.DockerClient(daemon(number))) as far,
    ):
        there = {one.id for one in far.images.list()}
        missing = [name for name in images if here.images.get(name).id not in there]
    if missing:
        with subprocess.Popen(["docker", "save", *missing], stdout=subprocess.PIPE) as saved:
            line = ["docker", "-H", daemon(number), "load", "-q"]
            subprocess.run(
                line,
                stdin=saved.stdout,
                check=True,
                stdout=subprocess.DEVNULL,
            )


@contextlib.contextmanager
def the_last_of(cluster: str) -> Iterator[None]:
    """Have the machine that may be taken away to oneself."""
    home = Path(os.environ[f"BFIA_TEST_{cluster.upper()}"])
    with FileLock(str(home / "last-machine.lock")):
        yield


@contextlib.contextmanager
def drained() -> Iterator[None]:
    """Have the Swarm put out what runs on the last machine, and place nothing there."""
    with contextlib.closing(docker.APIClient(daemon(LAST["swarm"]))) as api:
        node = api.info()["Swarm"]["NodeID"]

    def update(wanted: str) -> None:
        words = ["docker", "-H", daemon(1), "node", "update", "--availability", wanted, node]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    update("drain")
    try:
        yield
    finally:
        update("active")


def _said(
    cluster: str,
    *words: str,
    given: str = "",
) -> str:
    home = Path(os.environ[f"BFIA_TEST_{cluster.upper()}"]).parent
    line = ["bash", str(ROOT / ".ci" / f"{cluster}.sh"), *words]
    known = {**os.environ, "BFIA_RT": str(home)}
    done = subprocess.run(
        line,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=known,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
