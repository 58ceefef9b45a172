"""Relative paths of the settings: below the folder of the configuration file."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.config.schema import Settings
from gateway.config.values import DEFAULT_STORAGE

_SQLITE = "sqlite:///"


def anchored(settings: Settings, folder: Path) -> Settings:
    """Return the settings with every relative path below a folder, also those in addresses."""
    database = settings.database
    is_relative_file = database.url.startswith(_SQLITE) and not database.url.startswith(
        f"{_SQLITE}/"
    )
    if is_relative_file:
        file = folder / database.url.removeprefix(_SQLITE)
        database = database.model_copy(update={"url": f"{_SQLITE}{file}"})
    storage = settings.storage
    if storage.url is None:
        storage = storage.model_copy(update={"url": f"file://{folder / DEFAULT_STORAGE}"})
    with_addresses = settings.model_copy(update={"database": database, "storage": storage})
    result: Settings = _below(folder, with_addresses)
    return result


def _below(folder: Path, value: Any) -> Any:
    """Return a value with every path in it below a folder; absolute paths stay."""
    match value:
        case Path():
            return folder / value
        case BaseModel():
            return value.model_copy(update={name: _below(folder, inner) for name, inner in value})
        case list():
            return [_below(folder, inner) for inner in value]
        case dict():
            return {name: _below(folder, inner) for name, inner in value.items()}
        case _:
            return value
