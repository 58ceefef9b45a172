"""Replaces the Docker library's own reading of Docker's configuration.

The library's reading fails on any fault in the file.
"""

from typing import Any

from docker import auth

from engines.registry.logins import Unreadable, configuration_file, login_for, read_settings

# The sections that the library uses, with the type of their values
_SECTIONS = {"proxies": dict, "HttpHeaders": str}


class StoredLogins(auth.AuthConfig):
    """Logins in the library's form, read when they are needed."""

    is_empty = False  # otherwise the library would read the file itself

    def __init__(self) -> None:
        """Hold no login; none is read yet."""
        super().__init__({})

    def resolve_authconfig(
        self,
        registry: str | None = None,
    ) -> dict[str, str] | None:
        """Return the stored login of a registry; None if there is none.

        None for the registry means Docker Hub.
        """
        return dict(login_for(registry or auth.INDEX_NAME).values) or None


def settings_without_logins() -> dict[str, Any]:
    """Return the settings of Docker's configuration that the library uses.

    Values of the wrong type are omitted. If the file cannot be read, all settings are omitted.
    """
    settings = _read_settings()
    # Without the key "auths", the library would read the file again.
    result: dict[str, Any] = {"auths": {}}
    for name, type_ in _SECTIONS.items():
        section = settings.get(name)
        if isinstance(section, dict):
            result[name] = _entries_of_type(section, type_)
    return result


def _read_settings() -> dict[str, Any]:
    """Return Docker's configuration; empty if there is none or it cannot be read."""
    file = configuration_file()
    if not file:
        return {}
    try:
        return dict(read_settings(file))
    except Unreadable:
        return {}


def _entries_of_type(
    section: dict[str, Any],
    type_: type,
) -> dict[str, Any]:
    """Return the entries of a section whose values have the type ``type_``."""
    return {name: value for name, value in section.items() if isinstance(value, type_)}
