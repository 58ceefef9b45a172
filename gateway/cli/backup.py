"""``backup`` and ``restore``: the database, keys, configuration and routes of a node."""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import typer

from gateway.cli import options
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    CallFailed,
    check_may_write,
    invalid_in,
    settings_of,
)
from gateway.cli.command import Output, command
from gateway.cli.node import audit_change, sign_audit, store_of
from gateway.cli.output import say
from gateway.cli.tables import table
from gateway.cli.values import amount
from gateway.errors import Invalid, counted
from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.config.schema import Settings
    from gateway.data.combined_storage import Storages
    from gateway.domain.run import Address
    from gateway.store.store import Store

# Names of entries of a backup.
_MANIFEST = "manifest.json"
_CONFIG = "node.yml"
_ROUTES = "routes.yml"
_LISTED_ADDRESSES = 10  # missing tables and models that `restore` names
_SQLITE = "sqlite:///"  # beginning of the URL of a database in a file

commands = typer.Typer(name="")  # without a name: its commands belong to no group


@dataclass(frozen=True)
class _Restored:
    """The result of a restore."""

    manifest: Mapping[str, Any]
    settings: "Settings"
    row_counts: Mapping[str, int]  # by table
    written: list[str]  # paths of the files that were written
    missing: list[str]  # tables and models in the database, but not in the storage


# ---------------------------------------------------------------- backup


@command(commands, "backup", "node-2026-11-24.zip")
def backup(
    file: Annotated[Path, typer.Argument(help="Zip file to write; it holds private keys.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Write the node's database, key pairs, configuration and routes into one file. The node may be
    running.

    The database is copied as it is at one moment. The files in the storage are only listed: back up
    the storage by its own means, afterwards.
    """
    settings = settings_of(config)
    check_may_write(file, force)
    try:
        with _atomic_writer(file) as out, closing(store_of(config)) as store:
            sign_audit(store, config)
            manifest = _write_archive(out, store, settings, config)
    except OSError as error:
        raise CallFailed(f"{file} cannot be written: {error.strerror}", EXIT_BAD_INPUT) from error
    row_counts = manifest["tables"]
    stored = manifest["storage"]
    length = file.stat().st_size
    left_out = _excluded_files(settings)
    yield {
        "file": str(file),
        "bytes": length,
        "tables": row_counts,
        "storage": len(stored),
        "left_out": left_out,
    }
    rows = counted(sum(row_counts.values()), "row")
    say(f"{file}: {amount(length)}, {rows}; it holds private keys, keep it like them")
    say(f"not in it: {counted(len(stored), 'table or model', 'tables and models')} in the storage")
    for path in left_out:
        say(f"not in it: {path}")


@contextmanager
def _atomic_writer(file: Path) -> Iterator[IO[bytes]]:
    """Open a new file, for its owner only, that replaces ``file`` once the block has succeeded."""
    part = file.with_name(file.name + ".part")
    part.unlink(missing_ok=True)
    try:
        descriptor = os.open(
            part,
            os.O_RDWR | os.O_CREAT | os.O_EXCL,
            0o600,
        )
        with os.fdopen(descriptor, "w+b") as out:
            yield out
        part.replace(file)
    finally:
        with suppress(OSError):
            part.unlink()


def _write_archive(
    out: IO[bytes],
    store: "Store",
    settings: "Settings",
    config: Path,
) -> dict[str, Any]:
    """Write a backup and return its manifest."""
    from gateway.store.database import newest_revision

    stored = [_address_text(address) for address in _stored_addresses(store)]
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        row_counts = _write_tables(archive, store)
        for name, path in _node_files(settings, config).items():
            if path.exists():
                archive.write(path, name)
        manifest = {
            "node": settings.node.id,
            "version": VERSION,
            "schema": newest_revision(),
            "made_at": datetime.now(UTC).isoformat(),
            "tables": row_counts,
            "storage": stored,
        }
        archive.writestr(_MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=1))
    return manifest


def _write_tables(archive: ZipFile, store: "Store") -> dict[str, int]:
    """Write each table as JSON lines, all as of one moment; return the number of rows by table."""
    from gateway.store.snapshot import snapshot

    row_counts = {}
    with snapshot(store) as tables:
        for name, rows in tables:
            row_counts[name] = 0
            with archive.open(_table_entry(name), "w", force_zip64=True) as lines:
                for row in rows:
                    lines.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                    row_counts[name] += 1
    return row_counts


def _table_entry(table_name: str) -> str:
    """Return the name of a table's entry in a backup."""
    return f"tables/{table_name}.jsonl"


def _excluded_files(settings: "Settings") -> list[str]:
    """Return the files that the configuration names and a backup leaves out, such as passwords."""
    left_out = []
    for path in _paths_in(settings):
        is_in_backup = path == settings.route_table.file
        if path.is_file() and not is_in_backup:
            left_out.append(str(path))
    return left_out


def _paths_in(value: Any) -> Iterator[Path]:
    """Yield every path in a model of settings, or in a list or dictionary of them."""
    from pydantic import BaseModel

    match value:
        case Path():
            yield value
        case dict():
            yield from _paths_of_all(value.values())
        case list():
            yield from _paths_of_all(value)
        case BaseModel():
            yield from _paths_of_all(vars(value).values())


def _paths_of_all(values: Iterable[Any]) -> Iterator[Path]:
    """Yield every path in some values of settings."""
    for value in values:
        yield from _paths_in(value)


# ---------------------------------------------------------------- restore


@command(commands, "restore", "node-2026-11-24.zip --config node.yml")
def restore(
    file: Annotated[Path, typer.Argument(help="What backup wrote.")],
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Make a node from a backup: its database has to be empty, and no gateway may run on it.

    Where there is no configuration yet, that of the backup is written; one that is there is used as
    it is, so a node can move to another database. Exit code 1: something that the database names is
    not in the storage.
    """
    is_new = not config.exists()
    try:
        with ZipFile(file) as archive:
            restored = _restore(archive, file, config, is_new=is_new)
    except EOFError as error:  # has no text of its own
        text = f"{file} is not a backup, or is damaged: it ends within an entry"
        raise CallFailed(text, EXIT_BAD_INPUT) from error
    except (BadZipFile, KeyError, ValueError, zlib.error) as error:
        text = f"{file} is not a backup, or is damaged: {error}"
        raise CallFailed(text, EXIT_BAD_INPUT) from error
    except OSError as error:
        raise CallFailed(f"{error.filename or file}: {error.strerror}", EXIT_BAD_INPUT) from error
    node_id = restored.manifest["node"]
    outcome = {
        "node": node_id,
        "tables": restored.row_counts,
        "written": restored.written,
        "missing": restored.missing,
    }
    yield outcome, not restored.missing
    made_at = restored.manifest["made_at"][:19]  # date and time, to the second
    say(f"node {node_id} as of {made_at}: {counted(sum(restored.row_counts.values()), 'row')}")
    for path in restored.written:
        say(f"written: {path}")
    _print_missing(restored.missing)
    if is_new:
        _warn_of_outside_storage(restored.settings, config.resolve().parent)
    say("next: bfia-gateway doctor, then bfia-gateway serve")


def _restore(
    archive: ZipFile,
    file: Path,
    config: Path,
    *,
    is_new: bool,
) -> _Restored:
    """Fill the node's database and write its files from a backup.

    ``archive`` is the open backup, and ``file`` its path. ``is_new``: there is no configuration
    yet, so it is written, too. Until all other files are written, the configuration is in a
    temporary file (``source``), so that a failure leaves no configuration behind. Raises
    `CallFailed`; `EOFError`, `KeyError`, `ValueError` or `zlib.error` for a file that is not a
    backup.
    """
    from gateway.identity.audit_head import HeadFile
    from gateway.store.snapshot import fill

    manifest = _read_manifest(archive)
    source = config
    if is_new:
        source = config.with_name(f"{config.name}.part")
    try:
        if is_new:
            _unpack(archive, {_CONFIG: source})
        settings, storages = _load_config(source, file if is_new else None)
        files = _files_to_write(archive, manifest, settings)
        if is_new:
            files[_CONFIG] = config  # written last
        with closing(store_of(source)) as store:
            # Also writes the files, the configuration last, before the rows are committed.
            row_counts = fill(store, _tables_then_files(archive, manifest["tables"], files))
            origin = {"file": file.name, "made_at": manifest["made_at"]}
            audit_change(store, "restore", None, origin)
            # The head in the file is the head of the audit log before the restore.
            HeadFile(settings.state_dir).delete()
            sign_audit(store, config)  # reads the configuration, which has just been written
            missing = []
            for address in _stored_addresses(store):
                if not storages.exists(address):
                    missing.append(_address_text(address))
    finally:
        if is_new:
            source.unlink(missing_ok=True)
    written = [str(path) for path in files.values()]
    return _Restored(
        manifest=manifest,
        settings=settings,
        row_counts=row_counts,
        written=written,
        missing=missing,
    )


def _print_missing(missing: Sequence[str]) -> None:
    """Print the first tables and models that are not in the storage."""
    if not missing:
        return
    rows = [[address] for address in missing[:_LISTED_ADDRESSES]]
    table(f"{len(missing)} not in the storage: restore that, too", ["namespace#name"], rows)


def _warn_of_outside_storage(settings: "Settings", home: Path) -> None:
    """Warn if a restored node's storage is outside its folder, where another node may use it."""
    path = settings.storage.path
    if _is_below(path, home):
        return
    text = (
        f"warning: storage.url lies outside of {home}: {path}; "
        "if another node uses it, change it before bfia-gateway serve"
    )
    say(text, err=True)


# ---------------------------------------------------------------- checks before anything is written


def _read_manifest(archive: ZipFile) -> dict[str, Any]:
    """Return the manifest of a backup. Raises `CallFailed` for a backup of another schema."""
    from gateway.store.database import newest_revision

    manifest = dict(json.loads(archive.read(_MANIFEST)))
    newest = newest_revision()
    if manifest["schema"] != newest:
        text = (
            f"the backup's schema is {manifest['schema']} of version {manifest['version']}, and "
            f"this program's is {newest} of version {VERSION}: restore with the program that made "
            "it, then install this one, which migrates"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_OTHER_VERSION")
    return manifest


def _load_config(config: Path, backup_file: Path | None) -> "tuple[Settings, Storages]":
    """Return the settings of a configuration and its storages.

    ``backup_file``: the backup that the configuration comes from; None for one that existed before.
    Raises `CallFailed`, with a hint if the configuration comes from a backup.
    """
    try:
        settings = settings_of(config)
        if backup_file is not None:
            _refuse_outside(settings, config.resolve().parent)
        return settings, _open_storages(settings, config)
    except CallFailed as error:
        text = str(error)
        if backup_file is not None:
            text += f"\n{_config_hint(error.reason, backup_file)}"
        raise CallFailed(text, EXIT_BAD_INPUT, error.reason) from error


def _open_storages(settings: "Settings", config: Path) -> "Storages":
    """Open the storages of the settings.

    Raises `CallFailed` with every problem of the configuration.
    """
    from gateway.bootstrap.parts import storages

    try:
        return storages(settings)
    except Invalid as error:
        raise invalid_in(config, error) from error


def _config_hint(reason: str, file: Path) -> str:
    """Return the next step after the configuration in the backup ``file`` was refused.

    ``reason`` is the symbol of the refusal.
    """
    if reason == "BACKUP_WRITES_ELSEWHERE":
        return f"if it is right, unzip {_CONFIG} from {file}, and restore again"
    return f"put back what it names, or unzip {_CONFIG} from {file}, correct it, and restore again"


def _refuse_outside(settings: "Settings", home: Path) -> None:
    """Raise `CallFailed` if a configuration of the backup has files written outside its folder."""
    paths = {
        "route_table.file": settings.route_table.file,
        "state_dir": settings.state_dir,
    }
    database_url = settings.database.url
    if database_url.startswith(_SQLITE):
        paths["database.url"] = Path(database_url.removeprefix(_SQLITE))
    outside = []
    for name, path in paths.items():
        if path and not _is_below(path, home):
            outside.append(f"{name}: {path}")
    if outside:
        text = f"the backup's {_CONFIG} has files written outside of {home}: {', '.join(outside)}"
        raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_WRITES_ELSEWHERE")


def _is_below(path: Path, folder: Path) -> bool:
    """Return whether a path is in a resolved folder; links in the path are followed."""
    return path.resolve().is_relative_to(folder)


def _files_to_write(
    archive: ZipFile,
    manifest: Mapping[str, Any],
    settings: "Settings",
) -> dict[str, Path]:
    """Return the paths of the files to write, by their names in the backup.

    These are the files that the node does not have yet, except the configuration. Existing routes
    are kept, even if the backup has other routes. Raises `CallFailed` if the backup is of another
    node, or has another key.
    """
    if manifest["node"] != settings.node.id:
        text = f"the backup is of node {manifest['node']}, node.id here is {settings.node.id}"
        raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_OTHER_NODE")
    archived_names = set(archive.namelist())
    files = {}
    # The configuration, which is skipped below, needs no path here.
    for name, path in _node_files(settings, Path()).items():
        if name == _CONFIG or name not in archived_names:
            continue
        if not path.exists():
            files[name] = path
        elif name != _ROUTES and path.read_bytes() != archive.read(name):  # a key pair differs
            text = f"{path} holds another key than the backup: move it away, and restore again"
            raise CallFailed(text, EXIT_BAD_INPUT, "BACKUP_OTHER_KEY")
    return files


# ------------------------------------- contents of a node and of a backup


def _node_files(settings: "Settings", config: Path) -> dict[str, Path]:
    """Return the files that belong to a node, by their names in a backup."""
    from gateway.identity.keys import Keyring
    from gateway.identity.sealing_keys import SealingKeyFile

    files = {_CONFIG: config}
    if settings.route_table.file:
        files[_ROUTES] = settings.route_table.file
    key_files = [
        *Keyring(settings.state_dir).files.values(),
        SealingKeyFile(settings.state_dir).path,
    ]
    for key_file in key_files:
        files[f"identity/{key_file.name}"] = key_file
    return files


def _stored_addresses(store: "Store") -> "list[Address]":
    """Return the addresses in the storage of all tables and models in the database."""
    from gateway.store.models import SqlModels
    from gateway.store.repositories import SqlDatasets

    addresses = [dataset.address for dataset in SqlDatasets(store).list()]
    addresses += SqlModels(store).addresses()
    return addresses


def _address_text(address: "Address") -> str:
    """Return an address in the storage as messages name it."""
    if address.storage:
        return f"{address.dataset_id} in {address.storage}"
    return address.dataset_id


def _tables_then_files(
    archive: ZipFile,
    names: Iterable[str],
    files: Mapping[str, Path],
) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """Yield each table with its rows, then write the files.

    The caller commits the rows only after this iterator has ended, so that the database stays empty
    if a file cannot be written. ``files`` are the files' paths by their names in the backup.
    """
    for name in names:
        yield name, _rows(archive, name)
    _unpack(archive, files)


def _rows(
    archive: ZipFile,
    table_name: str,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in a backup."""
    with archive.open(_table_entry(table_name)) as lines:
        yield from map(json.loads, lines)


def _unpack(archive: ZipFile, files: Mapping[str, Path]) -> None:
    """Write entries of a backup to files, each whole or not at all."""
    for name, path in files.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _atomic_writer(path) as out:
            out.write(archive.read(name))
