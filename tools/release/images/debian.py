"""Debian's packages of the images: which ones, locked with their hashes, and their download."""

import hashlib
import os
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.release.artefacts import ReleaseError

SUITE = "bookworm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Folder of the mirror, suite.
ARCHIVES = (
    ("debian", SUITE),
    ("debian", f"{SUITE}-updates"),
    ("debian-security", f"{SUITE}-security"),
)
# What the images start from; their dependencies follow.
ROOTS = (
    "base-files",
    "busybox-static",
    "ca-certificates",
    "libgomp1",
    "libpython3.11-stdlib",
    "libstdc++6",
    "media-types",
    "netbase",
    "python3.11",
    "tzdata",
)
# Dependencies of maintainer scripts, which the images do not run.
NOT_INSTALLED = frozenset(
    (
        "debconf",
        "dpkg",
        "libacl1",
        "libmd0",
        "libpcre2-8-0",
        "libselinux1",
        "mawk",
        "openssl",
        "perl-base",
        "readline-common",
        "tar",
    )
)
# Debian's name of a machine, by Python's.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
ROOT = Path(__file__).resolve().parents[3]
LOCKS = Path("tools/release/images")
DOWNLOAD_TIMEOUT = 60.0  # seconds without a byte
DOWNLOADS = 8  # at a time


@dataclass(frozen=True)
class DebianPackage:
    """One package of the lock; ``path`` is below the mirror's address."""

    name: str
    version: str
    sha256: str
    path: str

    def line(self) -> str:
        """Return its line of the lock."""
        return f"{self.name} {self.version} {self.sha256} {self.path}"


def lock_file(machine: str, sources: Path = ROOT) -> Path:
    """Return the path of the lock for a machine, such as x86_64."""
    return sources / LOCKS / f"debian-{ARCHITECTURES[machine]}.lock"


def locked_packages(machine: str, sources: Path = ROOT) -> list[DebianPackage]:
    """Return the packages of the images for a machine; ``sources``: the folder of the project."""
    packages = []
    for line in lock_file(machine, sources).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            packages.append(DebianPackage(*line.split(" ")))
    return packages


# ------------------------------------------------------------ download


def download_packages(
    packages: Sequence[DebianPackage],
    cache: Path,
) -> list[Path]:
    """Return the files of packages, from the cache or else the mirror.

    Raises `ReleaseError` with the name of every package that the mirror does not have any more.
    """
    folder = cache / "debian"
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=DOWNLOADS) as pool:
        failures = list(pool.map(lambda package: _download(package, folder), packages))
    missing = [failure for failure in failures if failure]
    if missing:
        lines = "\n  ".join(missing)
        raise ReleaseError(
            f"packages of the image cannot be had:\n  {lines}\n"
            "Debian removes a version after a newer one; renew the locks with "
            "`python -m tools.release.images.debian`, look at the difference and commit it"
        )
    return [_file_of(package, folder) for package in packages]


def _file_of(package: DebianPackage, folder: Path) -> Path:
    return folder / package.path.rpartition("/")[2]


def _download(package: DebianPackage, folder: Path) -> str:
    """Put a package into a folder; return the cause of a failure, or an empty text."""
    file = _file_of(package, folder)
    if file.is_file() and _hash_of(file.read_bytes()) == package.sha256:
        return ""
    address = f"{_mirror()}/{package.path}"
    try:
        with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT) as response:
            content = response.read()
    except (urllib.error.URLError, OSError) as error:
        return f"{package.name} {package.version}: {address}: {error}"
    if _hash_of(content) != package.sha256:
        return f"{package.name} {package.version}: {address} has another hash than the lock"
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(file)
    return ""


def _hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _mirror() -> str:
    """Return the address of Debian's archives: BFIA_DEBIAN_MIRROR, or that of this machine's apt.

    Raises `ReleaseError` on a machine with neither.
    """
    return (os.environ.get("BFIA_DEBIAN_MIRROR") or _mirror_of_apt()).rstrip("/")


@cache
def _mirror_of_apt() -> str:
    """Return the address from which this machine's apt takes Debian. Raises `ReleaseError`."""
    advice = "name the address above debian/ and debian-security/ by BFIA_DEBIAN_MIRROR"
    command = [
        "apt-get",
        "indextargets",
        "--format=$(SITE) $(RELEASE)",
        "Created-By: Packages",
    ]
    try:
        targets = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReleaseError(f"this machine has no apt: {advice}") from error
    for line in targets.stdout.splitlines():
        site, _, suite = line.partition(" ")
        if suite == SUITE and site.endswith("/debian"):
            return site.removesuffix("/debian")
    raise ReleaseError(f"apt on this machine has no Debian {SUITE}: {advice}")


# ------------------------------------------------------------ lock


def current_packages(machine: str, folder: Path) -> list[DebianPackage]:
    """Return the packages as Debian has them now, by its signed lists.

    ``folder`` holds apt's state: the packages of this machine play no part.
    """
    apt = _Apt(ARCHITECTURES[machine], folder)
    apt.run("apt-get", "update", "-qq")
    wanted = apt.run("apt-get", "install", "--print-uris", "-qq", *ROOTS)
    packages = [package for package in apt.described(wanted) if package.name not in NOT_INSTALLED]
    return sorted(packages, key=lambda package: package.name)


class _Apt:
    """apt for another machine, with its own state."""

    def __init__(self, architecture: str, folder: Path) -> None:
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").write_text("")
        lines = []
        for archive, suite in ARCHIVES:
            lines.append(f"deb [signed-by={KEYRING}] {_mirror()}/{archive} {suite} main\n")
        (folder / "sources.list").write_text("".join(lines))
        self._options = [
            f"APT::Architecture={architecture}",
            f"APT::Architectures={architecture}",
            f"Dir::State::status={folder}/status",
            f"Dir::State::lists={folder}/lists",
            f"Dir::Cache={folder}",
            f"Dir::Etc::sourcelist={folder}/sources.list",
            "Dir::Etc::sourceparts=/dev/null",
            "Dir::Etc::preferencesparts=/dev/null",
            "APT::Install-Recommends=false",
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
        ]

    def run(self, command: str, *words: str) -> str:
        """Return the output of a command. Raises `ReleaseError`."""
        options = []
        for option in self._options:
            options += ["-o", option]
        process = subprocess.run(
            [command, *options, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode != 0:
            raise ReleaseError(f"{command} failed: {process.stderr.strip()}")
        return process.stdout

    def described(self, uris: str) -> Iterator[DebianPackage]:
        """Yield the packages of a list from ``--print-uris``."""
        addresses = {}
        for line in uris.splitlines():
            address = line.split("'")[1]
            addresses[address.rpartition("/")[2]] = address.removeprefix(f"{_mirror()}/")
        names = [file.partition("_")[0] for file in addresses]
        for record in _records(self.run("apt-cache", "show", *names)):
            file = record["Filename"].rpartition("/")[2]
            path = _address_of(file, addresses)
            if path:
                yield DebianPackage(
                    name=record["Package"],
                    version=record["Version"],
                    sha256=record["SHA256"],
                    path=path,
                )


def _address_of(file: str, addresses: dict[str, str]) -> str:
    """Return the address of a file, whose name may have quoted characters there."""
    for quoted, address in addresses.items():
        if urllib.parse.unquote(quoted) == file:
            return address
    return ""


def _records(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each record of apt."""
    seen = set()
    for paragraph in text.split("\n\n"):
        record = {}
        for line in paragraph.splitlines():
            if not line.startswith(" "):
                name, _, value = line.partition(": ")
                record[name] = value
        if record and record["Filename"] not in seen:
            seen.add(record["Filename"])
            yield record


def write_locks(
    machines: Iterable[str],
    folder: Path,
    sources: Path = ROOT,
) -> None:
    """Write the lock of each machine anew; ``folder``: for apt's state."""
    for machine in machines:
        packages = current_packages(machine, folder / machine)
        lines = [package.line() for package in packages]
        heading = f"# Packages of the images for {machine}; python -m tools.release.images.debian"
        file = lock_file(machine, sources)
        file.write_text("\n".join([heading, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        write_locks(ARCHITECTURES, Path(temporary))
