"""Resolves the relative paths of the settings against the folder of the configuration file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.config.schema import Settings
from gateway.config.values import DEFAULT_STORAGE

# An address of SQLite begins with this; an absolute path then adds a fourth slash.
_SQLITE = "sqlite:///"


def anchored(settings: Settings, folder: Path) -> Settings:
    """Return the settings with all their paths absolute.

    Relative paths, also those inside the addresses of the database and of the storage, are
    resolved against ``folder``. A storage without an address becomes `DEFAULT_STORAGE` there.
    """
    database_url = settings.database.url
    if database_url.startswith(_SQLITE):
        file = folder / database_url.removeprefix(_SQLITE)  # an absolute path stays
        database_url = f"{_SQLITE}{file}"
    database = settings.database.model_copy(update={"url": database_url})
    storage = settings.storage
    if storage.url is None:
        storage = storage.model_copy(update={"url": f"file://{folder / DEFAULT_STORAGE}"})
    with_addresses = settings.model_copy(update={"database": database, "storage": storage})
    result: Settings = _anchored_value(folder, with_addresses)
    return result


def _anchored_value(folder: Path, value: Any) -> Any:
    """Return a value of the settings with its relative paths resolved against a folder.

    Goes down into sections, lists and mappings. Any other value is returned as it is; so is a text,
    even if it looks like a path.
    """
    match value:
        case Path():
            return folder / value  # an absolute path stays
        case BaseModel():
            return value.model_copy(update=_anchored_entries(folder, value))
        case list():
            return [_anchored_value(folder, entry) for entry in value]
        case dict():
            return _anchored_entries(folder, value.items())
    return value


def _anchored_entries(
    folder: Path,
    entries: Iterable[tuple[Any, Any]],
) -> dict[Any, Any]:
    """Return the entries of a section or mapping, name and value, with their paths resolved.

    A section iterates over such pairs; of a mapping, ``entries`` are the items.
    """
    return {name: _anchored_value(folder, value) for name, value in entries}
