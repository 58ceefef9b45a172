"""The demo's files, and the environment with the reference vendor.

In a checkout these are `examples` and `.venv-vendor`; the installed package brings the files, and
the vendor is a wheel of its own.
"""

import subprocess
import sys
from pathlib import Path

from gateway.cli.demo.failure import DemoFailed

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "bfia-reference-vendor:1.0.0"
# Only in an installed package: see ``force-include`` in pyproject.toml.
_INSTALLED_EXAMPLES = Path(__file__).with_name("examples")
IS_INSTALLED = _INSTALLED_EXAMPLES.is_dir()
EXAMPLES = ROOT / "examples"
if IS_INSTALLED:
    EXAMPLES = _INSTALLED_EXAMPLES
VENDOR = EXAMPLES / "reference_vendor"
_VENDOR_ENVIRONMENT = ROOT / ".venv-vendor"


def vendor_command(python: Path | None) -> list[str]:
    """Return the command that runs the reference vendor.

    ``python``: the interpreter to use instead of the default. Raises `DemoFailed` if the vendor is
    not installed for it.
    """
    if python is None and not IS_INSTALLED:
        interpreter = vendor_python(None)
        return ["env", f"PYTHONPATH={VENDOR}", str(interpreter), "-m", "refvendor"]
    interpreter = vendor_python(python)
    # The gateway's own process never runs vendor code.
    check = _run(str(interpreter), "-c", "import refvendor.__main__")
    if check.returncode != 0:
        raise DemoFailed(
            f"{interpreter} does not have the reference vendor: install its wheel "
            f"(bfia_reference_vendor) there with pip, or name another Python with --vendor-python"
        )
    return [str(interpreter), "-m", "refvendor"]


def vendor_python(python: Path | None) -> Path:
    """Return the interpreter of the reference vendor: the one that the user names, or the
    default.
    """
    if python is not None:
        return python.absolute()
    if IS_INSTALLED:
        return Path(sys.executable)
    return _VENDOR_ENVIRONMENT / "bin" / "python"


def build_image(base: str) -> None:
    """Build the reference vendor's image; an installed package only looks for it.

    Raises `DemoFailed`.
    """
    if IS_INSTALLED:
        if _run("docker", "image", "inspect", IMAGE).returncode != 0:
            raise DemoFailed(
                f"Docker does not have the image {IMAGE}: load it from the release with docker "
                "load, or use --engine process"
            )
        return
    script = VENDOR / "build_image.sh"
    build = _run("bash", str(script), base, IMAGE, str(_VENDOR_ENVIRONMENT))
    if build.returncode != 0:
        output = (build.stdout + build.stderr)[-1500:]
        raise DemoFailed(
            f"cannot build the image from {base} (choose another with --base-image):\n{output}"
        )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command and return its end. Raises `DemoFailed` if it cannot be started."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise DemoFailed(f"cannot run {command[0]}: {error.strerror}") from error
