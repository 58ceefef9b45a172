"""Replaces the Docker library's own reading of Docker's configuration, which fails on any fault in it."""

from typing import Any

from docker import auth

from engines.registry.logins import Unreadable, configuration_file, login_for, read_settings


class StoredLogins(auth.AuthConfig):
    """Logins in the library's form, read when they are needed."""

    is_empty = False

    def __init__(self) -> None:
        """Hold no login; none is read yet."""
        super().__init__({})

    def resolve_authconfig(self, registry: str | None = None) -> dict[str, str] | None:
        """Return the stored login of a registry; None without."""
        return dict(login_for(registry or auth.INDEX_NAME).values) or None


def settings_without_logins() -> dict[str, Any]:
    """Return the settings of Docker's configuration that the library uses and that have the right form."""
    settings = _read_settings()
    result: dict[str, Any] = {"auths": {}}  # without a key, the library would read the file again
    proxies = settings.get("proxies")
    if isinstance(proxies, dict):
        result["proxies"] = _entries_of_type(proxies, dict)
    headers = settings.get("HttpHeaders")
    if isinstance(headers, dict):
        result["HttpHeaders"] = _entries_of_type(headers, str)
    return result


def _read_settings() -> dict[str, Any]:
    file = configuration_file()
    if not file:
        return {}
    try:
        return dict(read_settings(file))
    except Unreadable:
        return {}


def _entries_of_type(section: dict[str, Any], type_: type) -> dict[str, Any]:
    return {name: value for name, value in section.items() if isinstance(value, type_)}
