"""The step of the look at a node that is about who else on this machine can read its files."""

import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from gateway.config.schema import Settings
from gateway.diagnostics.checkup_certificates import table_of
from gateway.runtime.checks import Result, Step

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def modes_of(settings: Settings, config: Path | None = None) -> Step:
    """Warn of files and folders with data, secrets or keys that are open to the group or to everybody."""
    database = settings.database.url.removeprefix("sqlite:///")
    files = [config, *_keys(settings)]
    if database != settings.database.url:
        file = database.partition("?")[0]
        files += [Path(file + end) for end in ("", "-wal", "-shm")]
    open_files = _open(path for path in files if path is not None)
    open_folders = _open([settings.state_dir, settings.storage.path])
    if not open_files and not open_folders:
        return Step("file modes", Result.OK, "closed to other users")
    commands = [
        shlex.join(["chmod", mode, *paths])
        for mode, paths in (("600", open_files), ("700", open_folders))
        if paths
    ]
    text = f"open to other users of this machine: {', '.join([*open_files, *open_folders])}"
    return Step("file modes", Result.WARNING, "", text, "; ".join(commands))


def _keys(settings: Settings) -> list[Path]:
    """Return the files of private keys that the configuration and the routes name."""
    docker = settings.engine.docker
    tls = [docker.tls, *(daemon.tls for daemon in docker.daemons)]
    found = [one.key for one in tls if one is not None and one.key is not None]
    if settings.listen.peer.tls is not None:
        found.append(settings.listen.peer.tls.key)
    routes = table_of(settings).table.routes.values()
    return [*found, *(Path(route.identity.key) for route in routes if route.identity.key)]


def _open(paths: Iterable[Path]) -> list[str]:
    found: list[str] = []
    for path in dict.fromkeys(paths):
        try:
            if path.stat().st_mode & _OTHERS:
                found.append(str(path))
        except OSError:  # other steps tell what is missing
            continue
    return found
