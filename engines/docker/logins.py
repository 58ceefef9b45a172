"""The logins at registries that ``docker login`` has stored, in its configuration or with a credential helper.

An image that needs no login is had without one, whatever is wrong with the configuration. What is wrong is said
where a registry then refuses: with the file, and the helper that it names.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from docker import auth
from docker.errors import DockerException
from docker.utils import config

_HELPER_TIMEOUT = 30.0
"""seconds; one that waits for a person's password never answers"""
_PREFIX = "docker-credential-"
_UNKNOWN = b"credentials not found"
"""what a helper prints that has none"""
_TOKEN_USER = "<token>"
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class Login:
    """What is stored for one registry."""

    values: Mapping[str, str] = field(default_factory=dict)
    """as a daemon takes them; empty where nothing is stored"""
    problem: str = ""
    """why nothing could be read"""

    @property
    def password(self) -> tuple[str, str] | None:
        """User and password, None without."""
        user, password = self.values.get("username"), self.values.get("password")
        return (user, password) if user and password else None

    @property
    def explanation(self) -> str:
        """What to add to a registry's refusal: why it was asked without a login."""
        return f"; it was asked without a login, as {self.problem}" if self.problem else ""


class _Unreadable(Exception):
    """A login cannot be read; the message says why."""


def login_for(registry: str) -> Login:
    """Return the login for a registry, ``host[:port]`` as in image names."""
    file = _file()
    if not file:
        return Login()
    problem = ""
    try:
        settings = read_settings(file)
        helper = _helper_of(settings, registry, file)
        if helper:
            try:
                return Login(_from_helper(helper, registry, file))
            except _Unreadable as error:
                problem = str(error)
        values = _from_settings(settings, registry, file)
    except _Unreadable as error:
        return Login(problem=problem or str(error))
    return Login(values, "" if values else problem)


def _file() -> str:
    """Return the path of Docker's configuration; empty where there is none."""
    return str(config.find_config_file() or "")


def read_settings(file: str) -> Mapping[str, Any]:
    """Return Docker's configuration. Raises `_Unreadable`."""
    try:
        with open(file, encoding="utf-8") as opened:
            settings = json.load(opened)
    except OSError as error:
        raise _Unreadable(f"{file} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        legacy = (
            auth.load_config(file) if file.endswith(config.LEGACY_DOCKER_CONFIG_FILENAME) else None
        )
        if legacy:
            return legacy
        raise _Unreadable(f"{file} is not valid JSON ({error})") from error
    if not isinstance(settings, dict):
        raise _Unreadable(f"{file} holds no JSON object")
    if file.endswith(config.LEGACY_DOCKER_CONFIG_FILENAME) and "auths" not in settings:
        return {"auths": settings}
    return settings


def _helper_of(
    settings: Mapping[str, Any],
    registry: str,
    file: str,
) -> str:
    """Return the name of the helper that has a registry's login; empty without. Raises `_Unreadable`."""
    helpers = _section(settings, "credHelpers", file)
    helper = (
        helpers.get(_address(registry)) or helpers.get(registry) or settings.get("credsStore") or ""
    )
    if not isinstance(helper, str):
        raise _Unreadable(f"{file} names a credential helper for {registry} that is not text")
    return helper


def _from_helper(
    helper: str,
    registry: str,
    file: str,
) -> Mapping[str, str]:
    """Ask a helper for a login. Raises `_Unreadable`."""
    program = _PREFIX + helper
    path = shutil.which(program)
    if path is None:
        raise _Unreadable(f"the credential helper {program}, which {file} names, is not installed")
    try:
        answer = subprocess.run(
            [path, "get"],
            input=_address(registry).encode(),
            capture_output=True,
            timeout=_HELPER_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _Unreadable(
            f"the credential helper {program}, which {file} names, does not answer within {_HELPER_TIMEOUT:g} s"
        ) from error
    except OSError as error:
        raise _Unreadable(
            f"the credential helper {program}, which {file} names, cannot be run ({error.strerror})"
        ) from error
    if answer.returncode != 0:
        output = answer.stdout.strip() or answer.stderr.strip()
        if _UNKNOWN in output:
            return {}
        why = output.decode(errors="replace")[:_LONGEST_TEXT] or f"exit code {answer.returncode}"
        raise _Unreadable(f"the credential helper {program}, which {file} names, fails ({why})")
    try:
        stored = json.loads(answer.stdout)
        user, secret = str(stored["Username"]), str(stored["Secret"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _Unreadable(
            f"the credential helper {program}, which {file} names, gives no login in the form of Docker's helpers"
        ) from error
    return _values(registry, user, secret) if user or secret else {}


def _from_settings(
    settings: Mapping[str, Any],
    registry: str,
    file: str,
) -> Mapping[str, str]:
    """Return the login that the configuration itself holds. Raises `_Unreadable`."""
    wanted = auth.resolve_index_name(registry)
    for name, entry in _section(settings, "auths", file).items():
        if auth.resolve_index_name(name) != wanted:
            continue
        try:
            stored = auth.AuthConfig.parse_auth({name: entry}, raise_on_error=True)[name]
        except (DockerException, ValueError, TypeError, AttributeError) as error:
            raise _Unreadable(
                f"the entry {name} of auths in {file} is not as docker login writes it"
            ) from error
        if "IdentityToken" in stored:
            return _values(registry, _TOKEN_USER, str(stored["IdentityToken"]))
        if stored.get("username"):
            return _values(registry, stored["username"], stored["password"])
    return {}


def _section(
    settings: Mapping[str, Any],
    name: str,
    file: str,
) -> Mapping[str, Any]:
    section = settings.get(name) or {}
    if not isinstance(section, Mapping):
        raise _Unreadable(f"{name} in {file} is not a JSON object")
    return section


def _values(
    registry: str,
    user: str,
    secret: str,
) -> Mapping[str, str]:
    if user == _TOKEN_USER:
        return {"serveraddress": _address(registry), "identitytoken": secret}
    return {
        "serveraddress": _address(registry),
        "username": user,
        "password": secret,
    }


def _address(registry: str) -> str:
    """Return the name by which helpers know a registry."""
    return str(auth.INDEX_URL) if registry == auth.INDEX_NAME else registry


class Logins(auth.AuthConfig):
    """The logins as the library asks for them."""

    is_empty = False

    def __init__(self) -> None:
        """Reads nothing before it is asked."""
        super().__init__({})

    def resolve_authconfig(self, registry: str | None = None) -> dict[str, str] | None:
        """Return what is stored for a registry; None without."""
        return dict(login_for(registry or auth.INDEX_NAME).values) or None


def settings_without_logins() -> dict[str, Any]:
    """Return the rest of Docker's configuration that the library uses, as far as it has the right form."""
    file = _file()
    try:
        settings = read_settings(file) if file else {}
    except _Unreadable:
        settings = {}
    proxies = settings.get("proxies")
    headers = settings.get("HttpHeaders")
    kept: dict[str, Any] = {"auths": {}}  # of an empty one the library would read the file again
    if isinstance(proxies, dict):
        kept["proxies"] = {
            name: entry for name, entry in proxies.items() if isinstance(entry, dict)
        }
    if isinstance(headers, dict):
        kept["HttpHeaders"] = {
            name: text for name, text in headers.items() if isinstance(text, str)
        }
    return kept
