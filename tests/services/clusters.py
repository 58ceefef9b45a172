"""The suite's Kubernetes and Swarm: commands to them, and the machine of each that tests may
cut off.
"""

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

# The number of the machine that a test may cut off or close while it holds `the_last_of`.
LAST = {"kubernetes": 2, "swarm": 3}


def kubectl(*words: str, stdin: str = "") -> str:
    """Run kubectl as the cluster's admin; return its output. Raises `AssertionError` if it
    fails.
    """
    return _run_script("kubernetes", "kubectl", *words, stdin=stdin)


def runs_in(namespace: str) -> None:
    """Apply the shipped manifests for runs, with the addresses of the tests."""
    _run_script("kubernetes", "runs", namespace)


@contextlib.contextmanager
def guarded_registry(home: Path) -> Iterator[str]:
    """Serve the images of the Kubernetes' registry with a password; yield the new registry's
    address.

    The cluster's machines know the registry, but not its password.
    """
    cluster = Path(os.environ["BFIA_TEST_KUBERNETES"])
    open_address = os.environ["BFIA_TEST_KUBERNETES_REGISTRY"]
    _, _, open_port = open_address.partition(":")
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(registry(home, guarded=True, images=cluster / "images"))
        _, _, port = address.partition(":")
        for open_folder in cluster.glob(f"*/registries/{open_address}"):
            folder = open_folder.with_name(address)
            folder.mkdir()
            stack.callback(shutil.rmtree, folder)
            hosts = (open_folder / "hosts.toml").read_text()
            (folder / "hosts.toml").write_text(hosts.replace(open_port, port))
        yield address


def machine(
    cluster: str,
    act: str,
    *words: str,
    number: int = 0,
) -> None:
    """``cut`` or ``mend`` a machine's cable, or run a command ``in`` its network.

    ``number`` 0: the machine that tests may cut off.
    """
    _run_script(cluster, act, str(number or LAST[cluster]), *words)


def daemon(number: int) -> str:
    """Return the address of one of the Swarm's daemons; the first is the manager."""
    return f"unix://{os.environ['BFIA_TEST_SWARM']}/{number}/s"


def pushed(image: str, name: str = "") -> str:
    """Push an image of this machine's Docker to the Kubernetes' registry; return its name there.

    ``name``: its name and tag in the registry; "" for the image's own.
    """
    target = f"{os.environ['BFIA_TEST_KUBERNETES_REGISTRY']}/{name or image}"
    # One worker at a time: another one that pushes the same image would remove its name too early.
    with FileLock(os.environ["BFIA_TEST_KUBERNETES"] + "/push.lock"):
        for words in (
            ["tag", image, target],
            ["push", "-q", target],
            ["rmi", "-f", target],  # removes the name, not the image
        ):
            subprocess.run(["docker", *words], check=True, stdout=subprocess.DEVNULL)
    return target


def load(number: int, *images: str) -> None:
    """Copy images of this machine's Docker to one of the Swarm's daemons, unless it has them."""
    with (
        contextlib.closing(docker.from_env()) as shared,
        contextlib.closing(docker.DockerClient(daemon(number))) as member,
    ):
        # By name, too: another test may have left the same image there under its own.
        loaded = {(tag, image.id) for image in member.images.list() for tag in image.tags}
        missing = [name for name in images if (name, shared.images.get(name).id) not in loaded]
    if not missing:
        return
    with subprocess.Popen(["docker", "save", *missing], stdout=subprocess.PIPE) as save:
        subprocess.run(
            ["docker", "-H", daemon(number), "load", "-q"],
            stdin=save.stdout,
            check=True,
            stdout=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def the_last_of(cluster: str) -> Iterator[None]:
    """Reserve the machine that tests may cut off, for one test of all sessions."""
    home = Path(os.environ[f"BFIA_TEST_{cluster.upper()}"])
    with FileLock(str(home / "last-machine.lock")):
        yield


@contextlib.contextmanager
def drained() -> Iterator[None]:
    """Empty the Swarm's last machine, and keep it empty, until the test is over."""
    with contextlib.closing(docker.APIClient(daemon(LAST["swarm"]))) as api:
        node = api.info()["Swarm"]["NodeID"]

    def update(availability: str) -> None:
        words = ["docker", "-H", daemon(1), "node", "update", "--availability", availability, node]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    update("drain")
    try:
        yield
    finally:
        update("active")


def _run_script(cluster: str, *words: str, stdin: str = "") -> str:
    """Run a cluster's script; return its output. Raises `AssertionError` if it fails."""
    home = Path(os.environ[f"BFIA_TEST_{cluster.upper()}"]).parent
    process = subprocess.run(
        ["bash", str(ROOT / ".ci" / f"{cluster}.sh"), *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BFIA_RT": str(home)},
        timeout=180,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout
