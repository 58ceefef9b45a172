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
    database = settings.database.model_copy(
        update={"url": _anchored_database(settings.database.url, folder)}
    )
    storage = settings.storage
    if storage.url is None:
        storage = storage.model_copy(update={"url": f"file://{folder / DEFAULT_STORAGE}"})
    with_addresses = settings.model_copy(update={"database": database, "storage": storage})
    result: Settings = _anchored_value(folder, with_addresses)
    return result


def _anchored_database(url: str, folder: Path) -> str:
    """Return the address of a database; that of a relative SQLite file becomes absolute."""
    path = url.removeprefix(_SQLITE)
    is_sqlite = path != url
    if not is_sqlite or path.startswith("/"):
        return url
    return f"{_SQLITE}{folder / path}"


def _anchored_value(folder: Path, value: Any) -> Any:
    """Return a value of the settings with its relative paths resolved against a folder.

    Goes down into sections, lists and mappings. Texts are no paths: they stay as they are.
    """
    match value:
        case Path():
            return folder / value  # an absolute path stays: `/` drops the folder then
        case BaseModel():
            return value.model_copy(update=_anchored_entries(folder, value))
        case list():
            return [_anchored_value(folder, entry) for entry in value]
        case dict():
            return _anchored_entries(folder, value.items())
        case _:
            return value


def _anchored_entries(
    folder: Path,
    entries: Iterable[tuple[Any, Any]],
) -> dict[Any, Any]:
    """Return the entries, name and value, of a section or mapping with their paths resolved."""
    return {name: _anchored_value(folder, value) for name, value in entries}
