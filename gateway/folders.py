"""Folders that need not be there yet."""

from pathlib import Path


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest one above it that there is."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
