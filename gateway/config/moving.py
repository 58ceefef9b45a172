"""Moves secrets from the configuration file into files of their own.

The files have mode 0600, or 0640 where the configuration file had its group's right to read.
"""

import io
import os
import re
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from gateway.config.loader import load
from gateway.config.secrets import SecretSetting, secrets_in_clear

FOLDER = "secrets"  # of the new files, next to the configuration file
_LINE_WIDTH = 4096  # characters; longer values would be folded
_FILE_MODE = 0o600
# The beginning of a database's URL up to its user, and the password.
_USER_AND_PASSWORD = re.compile(r"^([^:]+://[^:@/]*):[^@]*@")


@dataclass(frozen=True)
class MovedSecret:
    """A secret that has a file of its own now."""

    setting: str  # that contained the secret
    file: Path


def move_secrets(config: Path) -> list[MovedSecret]:
    """Give each secret that a configuration file contains in clear a file of its own.

    The edited configuration has its comments, and replaces the old one once it was read again with
    the same secrets. The configuration's group keeps its right to read, unless `secrets.mode`
    refuses files with it. Returns the moved secrets; empty if there were none. Raises
    `Invalid` for a configuration with other problems, and `OSError`.
    """
    config = config.resolve()
    settings = load(config, check_secrets=False)
    secrets = secrets_in_clear(settings)
    if not secrets:
        return []
    group_reads = settings.secrets.mode != "refuse" and _is_read_by_group(config)
    folder = config.parent / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    _set_access(folder, config, group_reads=group_reads)
    contents = {folder / _file_name(secret): f"{secret.value}\n" for secret in secrets}
    moved = [
        MovedSecret(secret.in_clear, file) for secret, file in zip(secrets, contents, strict=True)
    ]
    new_config = config.with_name(f".{config.name}.part")
    new_config.unlink(missing_ok=True)  # of a move that was interrupted
    contents[new_config] = _without(config.read_text(encoding="utf-8"), secrets)
    with ExitStack() as undo:
        for file, content in contents.items():
            _write_new(file, content)
            undo.callback(file.unlink, missing_ok=True)
            _set_access(file, config, group_reads=group_reads)
        load(new_config, check_secrets=False)
        new_config.replace(config)
        undo.pop_all()
    return moved


def _file_name(secret: SecretSetting) -> str:
    """Return the name of a secret's file, such as ``storages.lake.password``."""
    return ".".join(map(str, (*secret.section, secret.name)))


def _without(text: str, secrets: Iterable[SecretSetting]) -> str:
    """Return a configuration's text that names a file for each secret instead of the secret."""
    yaml = YAML()
    yaml.width = _LINE_WIDTH
    yaml.preserve_quotes = True
    document = yaml.load(text)
    for secret in secrets:
        section: Any = document
        for key in secret.section:
            section = section[key]
        section[f"{secret.name}_file"] = f"{FOLDER}/{_file_name(secret)}"
        if secret.name in section:
            del section[secret.name]
        else:  # a part of the database's URL
            section["url"] = _USER_AND_PASSWORD.sub(r"\1@", section["url"])
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _write_new(file: Path, text: str) -> None:
    """Write a new file for its owner alone. Raises `OSError`, also if it exists."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _is_read_by_group(file: Path) -> bool:
    """Return whether a file's group may read it."""
    return bool(file.stat().st_mode & stat.S_IRGRP)


def _set_access(
    path: Path,
    config: Path,
    *,
    group_reads: bool,
) -> None:
    """Give a file or folder to the owner and the group of the configuration file.

    Only root can change an owner. With ``group_reads``, the group gets the right to read.
    """
    status = config.stat()
    with suppress(PermissionError):
        os.chown(path, status.st_uid, -1)  # -1: the group stays
    with suppress(PermissionError):  # of an owner who is not in the group
        os.chown(path, -1, status.st_gid)
    mode = stat.S_IMODE(path.stat().st_mode)
    if group_reads and path.stat().st_gid == status.st_gid:
        # The group gets the owner's rights, except writing.
        path.chmod(mode | (mode >> 3) & (stat.S_IRGRP | stat.S_IXGRP))
