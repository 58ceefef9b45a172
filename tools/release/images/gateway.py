"""The images of the release: the gateway's, and that of the reference vendor."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.release.images.base import ENVIRONMENT, USER_ID, base_tree
from tools.release.images.bytecode import add_bytecode
from tools.release.images.debian import ARCHITECTURES, locked_packages
from tools.release.images.oci import Image, Layer, layer_of, write_image
from tools.release.images.tree import Tree

SITE = "site"  # folder of the Python packages
STATE = "var/lib/bfia"
# Parts of wheels without a use at run time.
UNUSED_PARTS = (
    "numpy/_core/include/",
    "numpy/distutils/",
    "numpy/doc/",
    "numpy/f2py/",
    "pyarrow/include/",
    "pyarrow/src/",
    "pyarrow/tests/",
)
UNUSED_SUFFIXES = (".pyi", ".pxd", ".pyx", ".h", ".hpp", ".a")
VENDOR_NAME = "bfia-reference-vendor"
VENDOR_VERSION = "1.0.0"
SECOND = 1_000_000_000  # nanoseconds: Docker's unit

# Asks the running gateway, by the address that it wrote down when it was ready.
HEALTH_CHECK = """\
#!/usr/bin/python3 -IS
import json, ssl, sys, urllib.request
from pathlib import Path

ready = Path("/var/lib/bfia/state/ready.json")
address = "http://127.0.0.1:7382"
if ready.exists():
    address = json.loads(ready.read_text())["operator"]
address = address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
context = ssl._create_unverified_context()  # the listener's own certificate, on loopback
opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
)
try:
    opener.open(f"{address}/health/ready", timeout=15).read()
except OSError as error:
    sys.exit(f"{address}/health/ready: {error}")
"""


@dataclass(frozen=True)
class ImageSource:
    """What both images are made from; ``cache`` keeps downloads from build to build."""

    folder: Path  # sources of the commit
    commit: str
    version: str
    epoch: int  # seconds since 1970
    machine: str  # x86_64 or aarch64
    cache: Path

    @property
    def architecture(self) -> str:
        """Debian's and OCI's name of the machine."""
        return ARCHITECTURES[self.machine]


def base_layer(source: ImageSource) -> Layer:
    """Return the layer that both images share."""
    tree = base_tree(locked_packages(source.machine, source.folder), source.cache)
    return layer_of(tree, source.epoch, "Debian 12 with Python 3.11")


def write_gateway_image(
    file: Path,
    source: ImageSource,
    base: Layer,
    dependencies: Sequence[Path],
    product: Sequence[Path],
) -> str:
    """Write the gateway's image; return the digest of its manifest.

    ``dependencies`` and ``product`` are wheels: of other projects, and of this one.
    """
    libraries = site_tree(dependencies)
    program = site_tree(product)
    launcher = (source.folder / "compose" / "bfia-gateway").read_bytes()
    program.add_file("usr/local/bin/bfia-gateway", launcher, 0o755)
    program.add_file("usr/local/bin/bfia-health", HEALTH_CHECK.encode(), 0o755)
    program.add_folder("etc/bfia", owner=USER_ID)
    for name in (STATE, f"{STATE}/state", f"{STATE}/state/runs", f"{STATE}/storage"):
        program.add_folder(name, 0o700, owner=USER_ID)
    layers = [
        base,
        layer_of(libraries, source.epoch, "Python packages of other projects"),
        layer_of(program, source.epoch, f"bfia-gateway {source.version}"),
    ]
    labels = labels_of(
        source,
        "bfia-gateway",
        source.version,
        "Gateway between privacy-computing platforms that speak BFIA v1.2.0",
    )
    image = Image(
        reference=f"bfia-gateway:{source.version}",
        architecture=source.architecture,
        epoch=source.epoch,
        config=_gateway_config(labels),
        annotations=labels,
    )
    return write_image(file, image, layers)


def _gateway_config(labels: dict[str, str]) -> dict[str, Any]:
    environment = [
        *ENVIRONMENT,
        f"PYTHONPATH=/{SITE}",
        "PYTHONSAFEPATH=1",
        "PYTHONDONTWRITEBYTECODE=1",
        # Beside the state, so that nothing large ever lies in memory.
        f"TMPDIR=/{STATE}/state",
    ]
    command = ["serve", "--config", "/etc/bfia/node.yml"]
    return {
        "User": f"{USER_ID}:{USER_ID}",
        "Env": environment,
        "Entrypoint": ["bfia-gateway"],
        "Cmd": [*command, "--ready-file", f"/{STATE}/state/ready.json"],
        "WorkingDir": "/etc/bfia",
        "ExposedPorts": {"7380/tcp": {}, "7381/tcp": {}, "7382/tcp": {}},
        "Volumes": {f"/{STATE}/state": {}, f"/{STATE}/storage": {}},
        "Labels": labels,
        "StopSignal": "SIGTERM",
        "Healthcheck": {
            "Test": ["CMD", "/usr/local/bin/bfia-health"],
            "Interval": 10 * SECOND,
            "Timeout": 20 * SECOND,
            "StartPeriod": 60 * SECOND,
            "Retries": 6,
        },
    }


def write_vendor_image(
    file: Path,
    source: ImageSource,
    base: Layer,
    dependencies: Sequence[Path],
    product: Path,
) -> str:
    """Write the reference vendor's image; return the digest of its manifest.

    ``dependencies`` and ``product`` are wheels, as for the gateway's image.
    """
    layers = [
        base,
        layer_of(site_tree(dependencies), source.epoch, "Python packages of other projects"),
        layer_of(site_tree([product]), source.epoch, f"{VENDOR_NAME} {VENDOR_VERSION}"),
    ]
    labels = labels_of(
        source,
        VENDOR_NAME,
        VENDOR_VERSION,
        "Reference vendor: intersection and boosted trees over two parties",
    )
    environment = [
        *ENVIRONMENT,
        f"PYTHONPATH=/{SITE}",
        "PYTHONDONTWRITEBYTECODE=1",
        "CHANNEL_FORM=json",
    ]
    image = Image(
        reference=f"{VENDOR_NAME}:{VENDOR_VERSION}",
        architecture=source.architecture,
        epoch=source.epoch,
        config={
            "User": "65534:65534",
            "Env": environment,
            "Entrypoint": ["python3", "-m", "refvendor"],
            "Labels": labels,
        },
        annotations=labels,
    )
    return write_image(file, image, layers)


def site_tree(wheels: Sequence[Path]) -> Tree:
    """Return a tree with wheels installed and compiled."""
    tree = Tree()
    for wheel in wheels:
        tree.add_wheel(wheel, SITE, is_used)
    add_bytecode(tree, [f"{SITE}/"])
    return tree


def is_used(path: str) -> bool:
    """Return whether a file of a wheel is of use at run time."""
    return not path.startswith(UNUSED_PARTS) and not path.endswith(UNUSED_SUFFIXES)


def labels_of(
    source: ImageSource,
    title: str,
    version: str,
    description: str,
) -> dict[str, str]:
    """Return the labels of an image, in the names of OCI."""
    prefix = "org.opencontainers.image"
    return {
        f"{prefix}.title": title,
        f"{prefix}.version": version,
        f"{prefix}.description": description,
        f"{prefix}.revision": source.commit,
        f"{prefix}.licenses": "Apache-2.0",
        f"{prefix}.base.name": "debian:12",
    }
