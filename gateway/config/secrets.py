"""Secrets of the settings: the sources that each may have, and those kept in clear in the file.

A secret is given in a file of its own, by a command that prints it, or in the setting itself, which
an environment variable may set. In the configuration file, it would be readable to everyone who
gets a copy of that file.
"""

import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from gateway.config.origins import origin_of
from gateway.config.schema import PREFIX, Settings
from gateway.config.schema.access import MIN_TOKEN_LENGTH, Oidc
from gateway.config.schema.events import WebhookSettings
from gateway.config.schema.partners import FateApp, FateSite
from gateway.config.secret_command import MAX_SECRET_BYTES, CommandFailed, secret_printed_by
from gateway.data.reading import NotFit, read_bounded
from gateway.domain.problems import Problem
from gateway.errors import Invalid, join

_HIDDEN = "(not shown)"  # in place of the secret in a problem
_DATABASE = ("database",)  # the section whose secret is a part of a URL
_OPEN_FILE = "is open to other users of this machine: give it mode 0600 (chmod 600)"
_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO  # rights of users other than a file's owner
_BEYOND_GROUP = stat.S_IWGRP | stat.S_IRWXO  # these without the group's right to read


@dataclass(frozen=True)
class SecretSetting:
    """One secret of the settings with its possible sources."""

    section: tuple[str | int, ...]  # keys of the section with its settings, from the top
    name: str  # of the setting, such as password
    value: str  # in the settings themselves; "" if they do not contain the secret
    file: Path | None
    command: Sequence[str]  # program and arguments; empty without a command

    @property
    def in_clear(self) -> str:
        """The path of the setting that may contain the secret itself."""
        if self.section == _DATABASE:
            return "database.url"
        return join((*self.section, self.name))

    @property
    def variable(self) -> str:
        """The environment variable of that setting; of an entry of a list, that of the list."""
        setting, _, _ = self.in_clear.partition("[")
        return PREFIX + setting.replace(".", "__").upper()

    @property
    def file_setting(self) -> str:
        """The path of the setting with the secret's file."""
        return join((*self.section, f"{self.name}_file"))

    @property
    def command_setting(self) -> str:
        """The path of the setting with the command."""
        return join((*self.section, f"{self.name}_command"))


def secrets_of(settings: Settings) -> Iterator[SecretSetting]:
    """Yield every secret that the settings may have, also those without a source."""
    yield _database_secret(settings)
    yield _secret(settings.auth, "token", "auth")
    if settings.auth.oidc is not None:
        yield _secret(settings.auth.oidc, "client_secret", "auth", "oidc")
    for number, webhook in enumerate(settings.events.webhooks):
        yield _secret(webhook, "secret", "events", "webhooks", number)
    for party, site in settings.fate.sites.items():
        for direction, app in (("sends", site.sends), ("expects", site.expects)):
            if app is not None:
                yield _secret(app, "app_token", "fate", "sites", party, direction)
    for name, storage in settings.storages.items():
        yield _secret(storage, "password", "storages", name)


def _secret(
    settings: Any,
    name: str,
    *section: str | int,
) -> SecretSetting:
    """Return the secret ``name`` of a section, which has a field for each source.

    ``settings`` is the section itself, and ``section`` are its keys.
    """
    return SecretSetting(
        section=section,
        name=name,
        value=getattr(settings, name),
        file=getattr(settings, f"{name}_file"),
        command=getattr(settings, f"{name}_command"),
    )


def _database_secret(settings: Settings) -> SecretSetting:
    """Return the password of the database, which the database's URL may contain."""
    database = settings.database
    return SecretSetting(
        section=_DATABASE,
        name="password",
        value=unquote(urlsplit(database.url).password or ""),
        file=database.password_file,
        command=database.password_command,
    )


# ---------------------------------------------------------------- reading


def read_secret(secret: SecretSetting) -> str:
    """Return a secret from its setting, its file or its command, in this order.

    "" for a secret without a source. Raises `Invalid`; its problem never shows the secret.
    """
    if secret.value:
        return secret.value
    if secret.file is not None:
        return _read_file(secret.file, secret.file_setting)
    if secret.command:
        return _read_command(secret.command, secret.command_setting)
    return ""


def unreadable_secrets(settings: Settings) -> list[Problem]:
    """Return the problems of secrets with an unusable file or command."""
    problems: list[Problem] = []
    for secret in secrets_of(settings):
        try:
            read_secret(secret)
        except Invalid as error:
            problems += error.problems
    return problems


def _read_file(file: Path, setting: str) -> str:
    """Return the content of a secret's file without blanks around it. Raises `Invalid`."""
    try:
        content = read_bounded(file, MAX_SECRET_BYTES).decode().strip()
    except UnicodeDecodeError:
        raise Invalid([Problem(setting, "must be text in UTF-8", str(file))]) from None
    except (OSError, NotFit) as error:
        raise Invalid([Problem(setting, f"cannot be read: {error}", str(file))]) from error
    if not content:
        raise Invalid([Problem(setting, "is an empty file", str(file))])
    return content


def _read_command(command: Sequence[str], setting: str) -> str:
    """Return the secret that a command prints. Raises `Invalid`.

    The problem names the program alone: its arguments may contain a secret, too.
    """
    try:
        return secret_printed_by(command)
    except CommandFailed as error:
        raise Invalid([Problem(setting, str(error), command[0])]) from error


def database_url(settings: Settings) -> str:
    """Return the database's URL with its password. Raises `Invalid`."""
    url = settings.database.url
    secret = _database_secret(settings)
    if secret.value:
        return url
    password = read_secret(secret)
    if not password:
        return url
    user_and_scheme, _, rest = url.partition("@")
    return f"{user_and_scheme}:{quote(password, safe='')}@{rest}"


def admin_token(settings: Settings) -> str:
    """Return the admin's token of the settings; "" without one. Raises `Invalid`."""
    secret = _secret(settings.auth, "token", "auth")
    token = read_secret(secret)
    if not secret.value and 0 < len(token) < MIN_TOKEN_LENGTH:
        rule = f"must give a token of at least {MIN_TOKEN_LENGTH} characters"
        setting = secret.command_setting
        if secret.file is not None:
            setting = secret.file_setting
        raise Invalid([Problem(setting, rule, _HIDDEN)])
    return token


def oidc_client(oidc: Oidc) -> Oidc:
    """Return the console's client at the OpenID provider with its secret. Raises `Invalid`."""
    client_secret = read_secret(_secret(oidc, "client_secret", "auth", "oidc"))
    return oidc.model_copy(update={"client_secret": client_secret})


def storage_password(settings: Settings, name: str) -> str:
    """Return the secret key of a storage; "" for one without a key. Raises `Invalid`."""
    return read_secret(_secret(settings.storages[name], "password", "storages", name))


def webhook_receivers(settings: Settings) -> list[WebhookSettings]:
    """Return the receivers of events with their secrets. Raises `Invalid`."""
    receivers = []
    for number, webhook in enumerate(settings.events.webhooks):
        secret = read_secret(_secret(webhook, "secret", "events", "webhooks", number))
        receivers.append(webhook.model_copy(update={"secret": secret}))
    return receivers


def fate_sites(settings: Settings) -> Mapping[str, FateSite]:
    """Return the agreements with FATE's sites with the tokens of their applications.

    Raises `Invalid`.
    """
    sites = {}
    for party, site in settings.fate.sites.items():
        apps = {
            "sends": _with_token(site.sends, party, "sends"),
            "expects": _with_token(site.expects, party, "expects"),
        }
        sites[party] = site.model_copy(update=apps)
    return sites


def _with_token(
    app: FateApp | None,
    party: str,
    direction: str,
) -> FateApp | None:
    """Return an application with its token; None for None. Raises `Invalid`."""
    if app is None:
        return None
    token = read_secret(_secret(app, "app_token", "fate", "sites", party, direction))
    return app.model_copy(update={"app_token": token})


# ---------------------------------------------------------------- secrets at rest


def secrets_in_clear(settings: Settings) -> list[SecretSetting]:
    """Return the secrets that the configuration file itself contains."""
    in_file = []
    for secret in secrets_of(settings):
        # The entries of a list have no origin of their own, but the list has.
        setting = secret.in_clear.partition("[")[0]
        if secret.value and origin_of(setting, settings.origins).kind == "file":
            in_file.append(secret)
    return in_file


def move_command(config: Path | None) -> str:
    """Return the command that moves secrets out of a configuration file; None: the usual one."""
    words = ["bfia-gateway", "move-secrets"]
    if config is not None:
        words += ["--config", str(config)]
    return shlex.join(words)


def strict_problems(settings: Settings) -> list[Problem]:
    """Return the problems of secrets with `secrets.mode` refuse; empty with any other mode.

    These are secrets in clear, files of secrets that other users can access, and storages that
    would give runs the node's key although ``share_key`` is not set.
    """
    if settings.secrets.mode != "refuse":
        return []
    problems = [_clear_problem(secret) for secret in secrets_in_clear(settings)]
    for secret in secrets_of(settings):
        if secret.file is not None and is_open_to_others(secret.file):
            problems.append(Problem(secret.file_setting, _OPEN_FILE, str(secret.file)))
    for name, storage in settings.storages.items():
        if storage.keytab is not None and is_open_to_others(storage.keytab):
            problems.append(Problem(f"storages.{name}.keytab", _OPEN_FILE, str(storage.keytab)))
        if not storage.serves_runs:
            rule = (
                "must be true, or role must be set (S3 with STS): runs would get the node's own "
                "key, which opens all of the storage"
            )
            problems.append(Problem(f"storages.{name}.share_key", rule))
    return problems


def _clear_problem(secret: SecretSetting) -> Problem:
    """Return the problem of a secret in the configuration file."""
    rule = (
        "is a secret in clear: move it to a file of mode 0600 by `bfia-gateway move-secrets`, or "
        f"remove it and set {secret.variable} in the environment, or {secret.command_setting}"
    )
    return Problem(secret.in_clear, rule, _HIDDEN)


def is_open_to_others(file: Path, rights: int = _FOR_OTHERS) -> bool:
    """Return whether users other than the owner have any of some rights to a file or folder.

    False if it is missing.
    """
    try:
        return bool(file.stat().st_mode & rights)
    except OSError:
        return False


def is_open_beyond_group(file: Path) -> bool:
    """Return whether other users may do more than read with the group's right.

    Somebody gives a group the right to read on purpose, such as for a backup.
    """
    return is_open_to_others(file, _BEYOND_GROUP)
