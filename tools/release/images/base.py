"""The layer that all images begin with: Debian with Python 3.11, and the user of the gateway."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.release.artefacts import ReleaseError
from tools.release.images.bytecode import add_bytecode
from tools.release.images.debian import DebianPackage, download_packages
from tools.release.images.tree import MERGED, Tree

# Licences stay: whoever passes an image on needs them.
LEFT_OUT = (
    "usr/share/man/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/bug/",
    "usr/share/doc-base/",
    "usr/share/info/",
    "usr/share/applications/",
    "usr/share/pixmaps/",
    "usr/share/binfmts/",
    "usr/lib/python3.11/idlelib/",
    "usr/lib/python3.11/lib2to3/",
    "usr/lib/python3.11/test/",
    "usr/lib/python3.11/turtledemo/",
    "var/cache/",
    "var/lib/apt/",
)
DOCUMENTS = "usr/share/doc/"
BUSYBOX = "usr/bin/busybox"
# For people who look around in a container, and for images of vendors.
APPLETS = """
    sh awk base64 cat chmod chown cp cut date dd df dirname basename du echo env expr false
    find grep gunzip gzip head hostname id kill less ln ls md5sum mkdir mktemp mv nc nslookup
    od ping printf ps pwd readlink realpath rm rmdir sed seq sha256sum sleep sort stat tail
    tar tee test time timeout top touch tr true uname uniq vi wc wget which whoami xargs
"""
CERTIFICATES = "usr/share/ca-certificates/mozilla/"
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
USER = "bfia"
USER_ID = 10001
PASSWD = (
    "root:x:0:0:root:/root:/bin/sh",
    f"{USER}:x:{USER_ID}:{USER_ID}:BFIA gateway:/var/lib/bfia:/bin/sh",
    "nobody:x:65534:65534:nobody:/nonexistent:/bin/false",
)
GROUP = ("root:x:0:", f"{USER}:x:{USER_ID}:", "nogroup:x:65534:")
ENVIRONMENT = (
    "PATH=/usr/local/bin:/usr/bin",
    "LANG=C.UTF-8",
    "PYTHONUNBUFFERED=1",
    f"SSL_CERT_FILE=/{BUNDLE}",
)


def base_tree(packages: Sequence[DebianPackage], cache: Path) -> Tree:
    """Return the files of the base layer."""
    tree = Tree()
    for name in MERGED:
        tree.add_link(name, f"usr/{name}")
    tree.add_folder("usr/lib64")
    for package, file in zip(packages, download_packages(packages, cache), strict=True):
        tree.add_debian_package(file, is_kept)
        # Scanners of images read the packages here.
        tree.add_file(f"var/lib/dpkg/status.d/{package.name}", control_of(file))
    _add_configuration(tree)
    add_bytecode(tree, ["usr/lib/python3.11/"])
    return tree


def is_kept(path: str) -> bool:
    """Return whether a file of a package belongs to the image."""
    if path.startswith(LEFT_OUT):
        return False
    is_document = path.startswith(DOCUMENTS)
    return not is_document or path.endswith("/copyright")


def control_of(file: Path) -> bytes:
    """Return the control record of a package. Raises `ReleaseError`."""
    process = subprocess.run(
        ["dpkg-deb", "--field", str(file)],
        capture_output=True,
        check=False,
    )
    if process.returncode != 0:
        raise ReleaseError(f"{file} cannot be read: {process.stderr.decode()}")
    return process.stdout


def _add_configuration(tree: Tree) -> None:
    """Add the files that maintainer scripts would write."""
    tree.add_file("etc/passwd", _lines(PASSWD))
    tree.add_file("etc/group", _lines(GROUP))
    tree.add_file("etc/nsswitch.conf", _lines(["hosts: files dns"]))
    tree.add_file(BUNDLE, b"".join(_certificates(tree)))
    for name in ("usr/bin/python3", "usr/bin/python"):
        tree.add_link(name, "python3.11")
    for applet in APPLETS.split():
        if f"usr/bin/{applet}" not in tree.entries:
            tree.add_link(f"usr/bin/{applet}", "busybox")
    for name in ("tmp", "var/tmp"):
        tree.add_folder(name, 0o1777)
    for name in ("proc", "sys", "dev", "run"):
        tree.add_folder(name)
    tree.add_folder("root", 0o700)


def _certificates(tree: Tree) -> Iterator[bytes]:
    """Yield the certificates of the public authorities."""
    for path in sorted(tree.entries):
        if path.startswith(CERTIFICATES) and path.endswith(".crt"):
            yield tree.entries[path].content


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
