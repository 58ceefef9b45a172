"""Files of the offline bundle, and their archive."""

import gzip
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.release.images.tree import Tree

GLIBC = "2.28"  # the oldest that the newest form of the wheels runs on (manylinux_2_28)
INSTALLER = Path("tools/release/bundle/install.sh")
COMPRESSION = 1  # of gzip: wheels and layers are compressed already


@dataclass(frozen=True)
class BundleParts:
    """What a bundle holds; ``commit`` is the full hash, ``epoch`` in seconds since 1970."""

    folder: Path  # sources of the commit
    commit: str
    version: str
    epoch: int
    machine: str  # x86_64 or aarch64
    gateway: Path  # the gateway's wheel
    dependencies: Sequence[Path]
    vendor: Path  # the reference vendor's wheel
    vendor_dependencies: Sequence[Path]
    pip: Path
    images: Mapping[str, Path]  # by file name in the bundle
    site: Path  # folder of the documentation as a site; may be missing

    @property
    def name(self) -> str:
        """The folder in the archive; the archive's name begins with it."""
        return f"bfia-gateway-{self.version}-{self.machine}"


def write_bundle(file: Path, parts: BundleParts) -> None:
    """Write the bundle as a compressed tar archive."""
    contents = contents_of(parts)
    archive = Tree()
    for path, entry in contents.entries.items():
        archive.entries[f"{parts.name}/{path}"] = entry
    archive.add_folder(parts.name)
    plain = io.BytesIO()
    archive.write(plain, parts.epoch)
    file.write_bytes(gzip.compress(plain.getvalue(), COMPRESSION, mtime=0))


def contents_of(parts: BundleParts) -> Tree:
    """Return the files of the bundle, with their sums in ``SHA256SUMS``."""
    tree = Tree()
    tree.add_file("install.sh", (parts.folder / INSTALLER).read_bytes(), 0o755)
    tree.add_file("release.env", release_text(parts).encode())
    unit = parts.folder / "compose" / "systemd" / "bfia-gateway.service"
    tree.add_file("bfia-gateway.service", unit.read_bytes())
    _add_wheels(tree, parts)
    for name, image in parts.images.items():
        tree.add_file(f"images/{name}", image.read_bytes())
    _add_documents(tree, parts.folder)
    if parts.site.is_dir():
        tree.add_directory(parts.site, "site")
    tree.add_file("SHA256SUMS", sums_of(tree).encode())
    return tree


def release_text(parts: BundleParts) -> str:
    """Return what the installer reads about its bundle."""
    lines = [
        f"VERSION={parts.version}",
        f"COMMIT={parts.commit[:12]}",
        f"MACHINE={parts.machine}",
        f"GLIBC={GLIBC}",
    ]
    return "\n".join(lines) + "\n"


def _add_wheels(tree: Tree, parts: BundleParts) -> None:
    folder = parts.folder
    lock = (folder / "requirements" / "gateway-all.txt").read_text(encoding="utf-8")
    tree.add_file("wheels/gateway.txt", (lock + pin_of(parts.gateway)).encode())
    vendor_file = folder / "examples" / "reference_vendor" / "requirements.txt"
    vendor_lock = vendor_file.read_text(encoding="utf-8")
    tree.add_file("wheels/vendor.txt", (vendor_lock + pin_of(parts.vendor)).encode())
    for wheel in (parts.gateway, *parts.dependencies):
        tree.add_file(f"wheels/gateway/{wheel.name}", wheel.read_bytes())
    for wheel in (parts.vendor, *parts.vendor_dependencies):
        tree.add_file(f"wheels/vendor/{wheel.name}", wheel.read_bytes())
    tree.add_file(f"wheels/{parts.pip.name}", parts.pip.read_bytes())


def pin_of(wheel: Path) -> str:
    """Return the line of a requirement file for a wheel."""
    name, version, _ = wheel.name.split("-", 2)
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} --hash=sha256:{checksum}\n"


def _add_documents(tree: Tree, folder: Path) -> None:
    """Add the pages and what they link to, at the same places as in the sources."""
    for name in ("docs", "compose"):
        tree.add_directory(folder / name, name)
    for pattern in ("*.md", "LICENSE"):
        for page in sorted(folder.glob(pattern)):
            tree.add_file(page.name, page.read_bytes())


def sums_of(tree: Tree) -> str:
    """Return the sums of all files, in the form that ``sha256sum --check`` reads."""
    lines = []
    for path in sorted(tree.entries):
        entry = tree.entries[path]
        if entry.content:
            lines.append(f"{hashlib.sha256(entry.content).hexdigest()}  {path}\n")
    return "".join(lines)
