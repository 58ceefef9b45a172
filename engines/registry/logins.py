"""The logins at registries that ``docker login`` has stored.

They are in Docker's configuration or in a credential helper. An image that needs no login is
available without one, however broken the configuration is. If a registry then refuses, the error
names the faulty file and its credential helper.
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

HELPER_TIMEOUT = 30.0  # seconds; a helper that waits for a person's password never answers

_HELPER_PREFIX = "docker-credential-"
_NOTHING_STORED = b"credentials not found"  # output of a helper that has no login
_TOKEN_USER = "<token>"  # the user that helpers name if the secret is a token
_LONGEST_OUTPUT = 200  # characters of a helper's output in a message


@dataclass(frozen=True)
class Login:
    """The stored login of one registry."""

    # In the form that a Docker daemon takes; empty without a login
    values: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""  # why no login could be read; empty if reading did not fail

    @property
    def password(self) -> tuple[str, str] | None:
        """User and password; None if a token is stored, or no login."""
        user = self.values.get("username")
        password = self.values.get("password")
        if not user or not password:
            return None
        return user, password

    @property
    def explanation(self) -> str:
        """The reason for a request without a login, to append to the registry's refusal.

        Empty if the login could be read.
        """
        if not self.problem:
            return ""
        return f"; it was asked without a login, as {self.problem}"


class Unreadable(Exception):
    """A login cannot be read; the message says why."""


def login_for(registry: str) -> Login:
    """Return the login for a registry, ``host[:port]`` as in image names.

    The credential helper comes first; if it fails, or has no login, the configuration's own login
    is returned. Without a login, ``values`` is empty; if reading failed, ``problem`` says why.
    """
    file = configuration_file()
    if not file:
        return Login()
    helper_problem = ""
    try:
        settings = read_settings(file)
        helper = _helper_for(settings, registry, file)
        if helper:
            try:
                return Login(_login_from_helper(helper, registry, file))
            except Unreadable as error:
                helper_problem = str(error)
        values = _login_from_settings(settings, registry, file)
    except Unreadable as error:
        return Login(problem=helper_problem or str(error))
    if values:
        return Login(values)
    return Login(problem=helper_problem)


def configuration_file() -> str:
    """Return the path of Docker's configuration; empty if there is none."""
    return str(config.find_config_file() or "")


def read_settings(file: str) -> Mapping[str, Any]:
    """Return Docker's configuration. Raises `Unreadable`.

    The legacy file has the logins at its top level, or is not JSON at all.
    """
    is_legacy = file.endswith(config.LEGACY_DOCKER_CONFIG_FILENAME)
    try:
        with open(file, encoding="utf-8") as stream:
            settings = json.load(stream)
    except OSError as error:
        raise Unreadable(f"{file} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        legacy_settings = None
        if is_legacy:
            legacy_settings = auth.load_config(file)
        if not legacy_settings:
            raise Unreadable(f"{file} is not valid JSON ({error})") from error
        return legacy_settings
    if not isinstance(settings, dict):
        raise Unreadable(f"{file} holds no JSON object")
    if is_legacy and "auths" not in settings:
        return {"auths": settings}
    return settings


def _helper_for(
    settings: Mapping[str, Any],
    registry: str,
    file: str,
) -> str:
    """Return the name of the credential helper for a registry; empty if there is none.

    A helper for this registry precedes the one for all. Raises `Unreadable`.
    """
    helpers = _section(settings, "credHelpers", file)
    candidates = (
        helpers.get(_address(registry)),
        helpers.get(registry),
        settings.get("credsStore"),
    )
    helper = next(filter(None, candidates), "")
    if not isinstance(helper, str):
        raise Unreadable(f"{file} names a credential helper for {registry} that is not text")
    return helper


def _login_from_helper(
    helper: str,
    registry: str,
    file: str,
) -> Mapping[str, str]:
    """Ask a credential helper for a login; empty if it has none. Raises `Unreadable`."""
    program = _HELPER_PREFIX + helper
    result = _run_helper(program, registry, file)
    if result.returncode != 0:
        _check_helper_failure(result, program, file)
        return {}
    try:
        user, secret = _parse_helper_output(result.stdout)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Unreadable(
            f"the credential helper {program}, which {file} names, gives no login in the form of "
            "Docker's helpers"
        ) from error
    is_empty = not user and not secret
    if is_empty:
        return {}
    return _login_values(registry, user, secret)


def _check_helper_failure(
    result: subprocess.CompletedProcess[bytes], program: str, file: str
) -> None:
    """Raise `Unreadable` unless a helper failed because it has no login."""
    output = result.stdout.strip() or result.stderr.strip()
    if _NOTHING_STORED in output:
        return
    why = output.decode(errors="replace")[:_LONGEST_OUTPUT]
    why = why or f"exit code {result.returncode}"
    raise Unreadable(f"the credential helper {program}, which {file} names, fails ({why})")


def _parse_helper_output(output: bytes) -> tuple[str, str]:
    """Return the user and the secret that a helper prints.

    Raises ValueError, LookupError, TypeError, RecursionError for an unexpected form.
    """
    stored = json.loads(output)
    return str(stored["Username"]), str(stored["Secret"])


def _run_helper(
    program: str,
    registry: str,
    file: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run a credential helper for a registry. Raises `Unreadable`."""
    path = shutil.which(program)
    if path is None:
        raise Unreadable(f"the credential helper {program}, which {file} names, is not installed")
    try:
        return subprocess.run(
            [path, "get"],
            input=_address(registry).encode(),
            capture_output=True,
            timeout=HELPER_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unreadable(
            f"the credential helper {program}, which {file} names, does not answer within "
            f"{HELPER_TIMEOUT:g} s"
        ) from error
    except OSError as error:
        raise Unreadable(
            f"the credential helper {program}, which {file} names, cannot be run ({error.strerror})"
        ) from error


def _login_from_settings(
    settings: Mapping[str, Any], registry: str, file: str
) -> Mapping[str, str]:
    """Return the login that the configuration itself holds; empty if none. Raises `Unreadable`."""
    index = auth.resolve_index_name(registry)
    for name, entry in _section(settings, "auths", file).items():
        if auth.resolve_index_name(name) != index:
            continue
        stored = _parse_entry(name, entry, file)
        if "IdentityToken" in stored:
            return _login_values(registry, _TOKEN_USER, str(stored["IdentityToken"]))
        if stored.get("username"):
            return _login_values(registry, stored["username"], stored["password"])
    return {}


def _parse_entry(
    name: str,
    entry: Any,
    file: str,
) -> Mapping[str, Any]:
    """Return an entry of ``auths`` with its user and password decoded. Raises `Unreadable`."""
    try:
        parsed: Mapping[str, Any] = auth.AuthConfig.parse_auth(
            {name: entry},
            raise_on_error=True,
        )
        return dict(parsed[name])
    except (DockerException, ValueError, TypeError, AttributeError) as error:
        raise Unreadable(
            f"the entry {name} of auths in {file} is not as docker login writes it"
        ) from error


def _section(
    settings: Mapping[str, Any],
    name: str,
    file: str,
) -> Mapping[str, Any]:
    """Return a section of the configuration; empty if it is absent. Raises `Unreadable`."""
    section = settings.get(name) or {}
    if not isinstance(section, Mapping):
        raise Unreadable(f"{name} in {file} is not a JSON object")
    return section


def _login_values(
    registry: str,
    user: str,
    secret: str,
) -> Mapping[str, str]:
    """Return a login as a daemon takes it; a secret of the user `_TOKEN_USER` is a token."""
    address = _address(registry)
    if user == _TOKEN_USER:
        return {"serveraddress": address, "identitytoken": secret}
    return {"serveraddress": address, "username": user, "password": secret}


def _address(registry: str) -> str:
    """Return the key by which Docker stores the login of a registry: for Docker Hub, a URL."""
    if registry == auth.INDEX_NAME:
        return str(auth.INDEX_URL)
    return registry
