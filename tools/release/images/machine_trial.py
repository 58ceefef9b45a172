"""Runs a node with one job inside the gateway's image, without Docker, also of another machine.

The files of the image become the root of a process in namespaces of its own. For another machine
qemu-user runs every program there; only these namespaces know of it, this machine stays as it is.
"""

import gzip
import io
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tools.release.artefacts import ReleaseError

# Of Debian's packages qemu-user-static and qemu-user-binfmt.
BINFMT = Path("/usr/lib/binfmt.d")
TRIAL = Path(__file__).resolve().parent / "trial.py"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
DEVICES = ("null", "zero", "random", "urandom")
# Arguments: the root, the file that registers the emulator (or nothing), and the command.
ENTER = """
set -e
root=$1 emulator=$2
shift 2
ip link set lo up
if [ -n "$emulator" ]; then
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  cat "$emulator" >/proc/sys/fs/binfmt_misc/register
fi
mount -t proc proc "$root/proc"
for device in $DEVICES; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
exec chroot "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin PYTHONPATH=/site LANG=C.UTF-8 "$@"
"""
TIMEOUT = 1800.0  # seconds; an emulated machine is slow


def try_image(image: Path, machine: str) -> dict[str, Any]:
    """Run the trial in an image; return its result: machine, steps of doctor, job.

    Raises `ReleaseError` with the end of its output.
    """
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        unpack_image(image, root)
        (root / "trial").mkdir()
        (root / "work").mkdir()
        shutil.copy(TRIAL, root / "trial")
        shutil.copytree(EXAMPLES / "shell_vendor", root / "trial" / "examples" / "shell_vendor")
        command = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork"]
        command += ["sh", "-c", ENTER, "enter", str(root), emulator_of(machine)]
        command += ["python3", "/trial/trial.py", "/trial/examples", "/work"]
        process = subprocess.run(
            command,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEVICES": " ".join(DEVICES)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
    lines = process.stdout.splitlines()
    if process.returncode != 0 or not lines:
        raise ReleaseError(
            f"the trial of {image.name} failed:\n{process.stdout[-3000:]}{process.stderr[-3000:]}"
        )
    result: dict[str, Any] = json.loads(lines[-1])
    if result["machine"] != machine:
        raise ReleaseError(f"{image.name} ran on {result['machine']} instead of {machine}")
    return result


def emulator_of(machine: str) -> str:
    """Return the file that registers a machine's emulator; empty for this machine.

    Raises `ReleaseError` if the emulator is not installed.
    """
    if machine == platform.machine():
        return ""
    file = BINFMT / f"qemu-{machine}.conf"
    if not file.is_file():
        raise ReleaseError(f"{file} is missing: install Debian's package qemu-user-static")
    return str(file)


def unpack_image(image: Path, root: Path) -> None:
    """Write the files of all layers of an image to a folder."""
    with tarfile.open(image) as archive:
        (description,) = json.loads(read_member(archive, "manifest.json"))
        for path in description["Layers"]:
            layer = gzip.decompress(read_member(archive, path))
            with tarfile.open(fileobj=io.BytesIO(layer)) as files:
                files.extractall(root, filter="tar")


def read_member(archive: tarfile.TarFile, path: str) -> bytes:
    """Return the content of a file in an archive. Raises `ReleaseError` if it is missing."""
    try:
        member = archive.extractfile(path)
    except KeyError:
        member = None
    if member is None:
        raise ReleaseError(f"this is not an image of the release: it lacks {path}")
    return member.read()
