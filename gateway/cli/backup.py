"""``backup`` and ``restore``: a node's database, key pairs, configuration and routes in one file."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import typer

from gateway.cli import options
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    CallFailed,
    invalid_in,
    new_file,
    settings_of,
)
from gateway.cli.command import Output, amount, command, say, table
from gateway.cli.node import audit_change, sign_audit, store_of
from gateway.errors import Invalid, counted
from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.config.schema import Settings
    from gateway.data.combined_storage import Storages
    from gateway.domain.run import Address
    from gateway.store.store import Store

commands = typer.Typer(name="")
_MANIFEST, _CONFIG, _ROUTES = "manifest.json", "node.yml", "routes.yml"
_MOST_SHOWN = 10


@command(commands, "backup", "node-2026-11-24.zip")
def backup(
    file: Annotated[Path, typer.Argument(help="Zip file to write; it holds private keys.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Write the node's database, key pairs, configuration and routes into one file. The node may be running.

    The database is copied as it is at one moment. What lies in the storage is listed, not copied: back up
    the storage by its own means, afterwards.
    """
    from gateway.store.database import newest_revision
    from gateway.store.snapshot import snapshot

    settings = settings_of(config)
    new_file(file, force)
    part, counts = file.with_name(file.name + ".part"), {}
    try:
        part.unlink(missing_ok=True)
        with closing(store_of(config)) as store:
            sign_audit(store, config)
            stored = list(map(_shown, _stored(store)))
            with (
                os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as out,
                ZipFile(out, "w", ZIP_DEFLATED) as archive,
                snapshot(store) as tables,
            ):
                for name, rows in tables:
                    counts[name] = 0
                    with archive.open(f"tables/{name}.jsonl", "w", force_zip64=True) as lines:
                        for row in rows:
                            lines.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                            counts[name] += 1
                for name, path in _files(settings, config).items():
                    if path.exists():
                        archive.write(path, name)
                about = {
                    "node": settings.node.id,
                    "version": VERSION,
                    "schema": newest_revision(),
                    "made_at": datetime.now(UTC).isoformat(),
                    "tables": counts,
                    "storage": stored,
                }
                archive.writestr(_MANIFEST, json.dumps(about, ensure_ascii=False, indent=1))
        part.replace(file)
    except OSError as error:
        raise CallFailed(f"{file} cannot be written: {error.strerror}", EXIT_BAD_INPUT) from error
    finally:
        with suppress(OSError):
            part.unlink()
    size = file.stat().st_size
    left_out = _left_out(settings)
    yield {
        "file": str(file),
        "bytes": size,
        "tables": counts,
        "storage": len(stored),
        "left_out": left_out,
    }
    say(
        f"{file}: {amount(size)}, {counted(sum(counts.values()), 'row')}; it holds private keys, keep it like them"
    )
    say(f"not in it: {counted(len(stored), 'table or model', 'tables and models')} in the storage")
    for one in left_out:
        say(f"not in it: {one}")


@command(commands, "restore", "node-2026-11-24.zip --config node.yml")
def restore(
    file: Annotated[Path, typer.Argument(help="What backup wrote.")],
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Make a node from a backup: its database has to be empty, and no gateway may run on it.

    Where there is no configuration yet, that of the backup is written; one that is there is used as it is, so a
    node can move to another database. Exit code 1: something that the database names is not in the storage.
    """
    from gateway.identity.audit_head import HeadFile
    from gateway.store.snapshot import fill

    new = not config.exists()
    source = config.with_name(f"{config.name}.part") if new else config
    try:
        with ZipFile(file) as archive:
            about = _manifest(archive)
            if new:
                _unpack(archive, {_CONFIG: source})
            settings, places = _usable(source, file if new else None)
            files = {
                **_fitting(archive, about, settings),
                **({_CONFIG: config} if new else {}),
            }  # that comes last
            with closing(store_of(source)) as store:
                counts = fill(store, _tables(archive, about["tables"], files))
                audit_change(
                    store, "restore", None, {"file": file.name, "made_at": about["made_at"]}
                )
                HeadFile(settings.state_dir).delete()  # that of the log before
                sign_audit(store, config)
                missing = [one for one in _stored(store) if not places.exists(one)]
    except (BadZipFile, KeyError, ValueError) as error:
        raise CallFailed(
            f"{file} is not a backup, or is damaged: {error}", EXIT_BAD_INPUT
        ) from error
    except OSError as error:
        raise CallFailed(f"{error.filename or file}: {error.strerror}", EXIT_BAD_INPUT) from error
    finally:
        if new:
            source.unlink(missing_ok=True)
    written = [str(path) for path in files.values()]
    found = {
        "node": about["node"],
        "tables": counts,
        "written": written,
        "missing": list(map(_shown, missing)),
    }
    yield found, not missing
    say(
        f"node {about['node']} as of {about['made_at'][:19]}: {counted(sum(counts.values()), 'row')}"
    )
    for one in written:
        say(f"written: {one}")
    if missing:
        rows = [[_shown(one)] for one in missing[:_MOST_SHOWN]]
        table(f"{len(missing)} not in the storage: restore that, too", ["namespace#name"], rows)
    home = config.resolve().parent
    if new and not settings.storage.path.resolve().is_relative_to(home):
        text = (
            f"warning: storage.url lies outside of {home}: {settings.storage.path}; "
            "if another node uses it, change it before bfia-gateway serve"
        )
        say(text, err=True)
    say("next: bfia-gateway doctor, then bfia-gateway serve")


def _usable(config: Path, file: Path | None) -> "tuple[Settings, Storages]":
    """Return a configuration and its storages. Raises `CallFailed`; ``file``: the backup that holds it."""
    from gateway.bootstrap.parts import storages

    try:
        settings = settings_of(config)
        if file:
            _refuse_outside(settings, config.resolve().parent)
        try:
            return settings, storages(settings)
        except Invalid as error:
            raise invalid_in(config, error) from error
    except CallFailed as error:
        hint = (
            f"put back what it names, or unzip {_CONFIG} from {file}, correct it, and restore again"
        )
        if error.reason == "BACKUP_WRITES_ELSEWHERE":
            hint = f"if it is right, unzip {_CONFIG} from {file}, and restore again"
        raise CallFailed(
            f"{error}\n{hint}" if file else str(error), EXIT_BAD_INPUT, error.reason
        ) from error


def _refuse_outside(settings: "Settings", home: Path) -> None:
    """Raise `CallFailed` where a configuration of the backup would have files written outside of its folder."""
    database = settings.database.url
    places = {
        "route_table.file": settings.route_table.file,
        "state_dir": settings.state_dir,
        "database.url": Path(database.removeprefix("sqlite:///"))
        if database.startswith("sqlite:///")
        else None,
    }
    outside = [
        f"{name}: {place}" for name, place in places.items() if place and not _is_below(place, home)
    ]
    if outside:
        text = f"the backup's {_CONFIG} has files written outside of {home}: {', '.join(outside)}"
        raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_WRITES_ELSEWHERE")


def _is_below(place: Path, home: Path) -> bool:
    return place.resolve().is_relative_to(home)


def _left_out(settings: "Settings") -> list[str]:
    """Return the files that the configuration names and a backup does not hold: certificates, passwords."""
    return [
        str(path)
        for path in _paths(settings)
        if path.is_file() and path != settings.route_table.file
    ]


def _paths(value: Any) -> Iterator[Path]:
    from pydantic import BaseModel

    if isinstance(value, Path):
        yield value
        return
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner or (vars(value).values() if isinstance(value, BaseModel) else ()):
        yield from _paths(one)


def _stored(store: "Store") -> "list[Address]":
    """Return where the tables and models lie that the database knows."""
    from gateway.store.models import SqlModels
    from gateway.store.repositories import SqlDatasets

    return [*(one.address for one in SqlDatasets(store).list()), *SqlModels(store).addresses()]


def _shown(address: "Address") -> str:
    return f"{address.dataset_id} in {address.storage}" if address.storage else address.dataset_id


def _files(settings: "Settings", config: Path) -> dict[str, Path]:
    """Return the files that belong to a node, by their names in a backup."""
    from gateway.identity.keys import Keyring

    found = {f"identity/{file.name}": file for file in Keyring(settings.state_dir).files.values()}
    return {
        _CONFIG: config,
        **({_ROUTES: settings.route_table.file} if settings.route_table.file else {}),
        **found,
    }


def _manifest(archive: ZipFile) -> dict[str, Any]:
    """Read what a backup says of itself. Raises `CallFailed` where this version cannot use it."""
    from gateway.store.database import newest_revision

    about = dict(json.loads(archive.read(_MANIFEST)))
    if about["schema"] != (own := newest_revision()):
        text = (
            f"the backup's schema is {about['schema']} of version {about['version']}, and this program's is {own} "
            f"of version {VERSION}: restore with the program that made it, then install this one, which migrates"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_OTHER_VERSION")
    return about


def _fitting(
    archive: ZipFile,
    about: Mapping[str, Any],
    settings: "Settings",
) -> dict[str, Path]:
    """Return the files that are still to be written. Raises `CallFailed` where the node is another one."""
    if about["node"] != settings.node.id:
        text = f"the backup is of node {about['node']}, node.id here is {settings.node.id}"
        raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_OTHER_NODE")
    files = {
        name: path for name, path in _files(settings, Path()).items() if name in archive.namelist()
    }
    del files[_CONFIG]
    for name, path in files.items():
        if path.exists() and name != _ROUTES and path.read_bytes() != archive.read(name):
            text = f"{path} holds another key than the backup: move it away, and restore again"
            raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_OTHER_KEY")
    return {name: path for name, path in files.items() if not path.exists()}


def _unpack(archive: ZipFile, files: Mapping[str, Path]) -> None:
    """Write files whole or not at all, readable by their owner only."""
    for name, path in files.items():
        path.parent.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(archive.read(name))
        part.replace(path)


def _tables(
    archive: ZipFile,
    names: Iterable[str],
    files: Mapping[str, Path],
) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """Yield what a database is filled with; the files are there before that is committed."""
    for name in names:
        yield name, _rows(archive, name)
    _unpack(archive, files)


def _rows(archive: ZipFile, name: str) -> Iterator[dict[str, Any]]:
    with archive.open(f"tables/{name}.jsonl") as lines:
        yield from map(json.loads, lines)
