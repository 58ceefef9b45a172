"""Folders that need not be there yet."""

import os
from pathlib import Path

from gateway.domain.problems import Problem
from gateway.errors import Invalid


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that there is."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def made(folder: Path, setting: str, mode: int = 0o777) -> None:
    """Make the folder that a setting names, unless it is there. Raises `Invalid` naming the setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        there = nearest(folder)
        if there.is_dir():
            rule = f"user {os.getuid()} cannot make it in {there}: {error.strerror}; give the right to, or choose"
        else:
            rule = f"cannot be a folder: {there} is a file; choose"
        problem = Problem(setting, f"{rule} another {setting}", str(folder))
        raise Invalid([problem], reason="FOLDER_UNUSABLE") from error
