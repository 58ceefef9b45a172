"""Which gateway process this is, where several may share a database or a folder."""

import fcntl
import os
import secrets
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from gateway.config.schema import Settings
from gateway.domain.problems import Problem
from gateway.errors import Invalid


def only_process(settings: Settings) -> TextIO | None:
    """Hold a lock beside an SQLite file: several gateways share MariaDB, never SQLite. Raises `Invalid`."""
    url = settings.database.url
    if not url.startswith("sqlite:///"):
        return None
    file = Path(url.removeprefix("sqlite:///")).resolve()  # the same file by another path has the same lock
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(file.name + ".lock").open("w")
    except OSError as error:
        rule = f"cannot be used: {error.strerror}"
        raise Invalid([Problem("database.url", rule, url)], reason="DATABASE_UNUSABLE") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        rule = "is in use by another gateway process; several of them need mysql+pymysql://…"
        raise Invalid([Problem("database.url", rule, url)], reason="DATABASE_IN_USE") from None
    return lock


def instance_of(state_dir: Path) -> str:
    """Return this gateway's own id, made with its state folder: runs belong to one of several gateways."""
    file = state_dir / "instance"
    if not file.exists():
        part = file.with_suffix(".part")
        part.write_text(uuid4().hex, encoding="ascii")
        part.replace(file)
    return file.read_text(encoding="ascii")


def key_of(state_dir: Path) -> bytes:
    """Return the key of this gateway's run tokens, made with its state folder and readable by its user only."""
    file = state_dir / "run-tokens.key"
    if not file.exists():
        part = file.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(secrets.token_bytes(32))
        part.replace(file)
    return file.read_bytes()
