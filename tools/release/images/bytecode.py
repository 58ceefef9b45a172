"""Compiled modules of a tree: an image with a read-only root cannot compile them at its start."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.release.artefacts import ReleaseError
from tools.release.images.tree import Tree

# Modules whose syntax is wrong on purpose, or that no gateway imports.
SKIPPED = (
    r"/(tests?|idlelib|lib2to3|turtledemo|ensurepip|tkinter|distutils|pydoc_data|bad_coding.*)/"
)
INTERPRETER = (3, 11)  # of the images


def add_bytecode(tree: Tree, folders: Sequence[str]) -> None:
    """Compile the modules below some folders of a tree.

    One process compiles in the order of the paths, with a fixed hash seed: the same modules give
    the same bytes. Raises `ReleaseError` under another Python than the images have.
    """
    if sys.version_info[:2] != INTERPRETER:
        raise ReleaseError("the images hold Python 3.11: build the release with python3.11")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        _write_modules(tree, folders, root)
        _compile(root)
        for file in sorted(root.rglob("*.pyc")):
            tree.add_file(file.relative_to(root).as_posix(), file.read_bytes())


def _write_modules(
    tree: Tree,
    folders: Sequence[str],
    root: Path,
) -> None:
    for path, entry in tree.entries.items():
        if path.endswith(".py") and path.startswith(tuple(folders)):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(entry.content)


def _compile(root: Path) -> None:
    command = [sys.executable, "-m", "compileall", "-q", "-x", SKIPPED]
    command += ["--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/", str(root)]
    process = subprocess.run(
        command,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise ReleaseError(f"modules cannot be compiled:\n{process.stdout}{process.stderr}")
