"""Checks of the database, the storages, the folders, the disk and the clock."""

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engines.base import (
    BridgedEngine,
    Engine,
    EngineError,
)
from gateway.bootstrap.parts import storages
from gateway.config.schema import Settings
from gateway.config.secrets import (
    is_open_beyond_group,
    is_open_to_others,
    move_command,
    secrets_in_clear,
    secrets_of,
    unreadable_secrets,
)
from gateway.data import credentials
from gateway.data.reading import nearest_existing
from gateway.data.remote import Remote
from gateway.data.workspace import is_disk_full, try_to_write
from gateway.diagnostics.installation import (
    Installation,
    Risk,
    causes_and_remedies,
    explained_step,
    routes_in_file,
    warning_of,
)
from gateway.errors import GatewayError, Invalid, StorageFailed
from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.database import next_step
from gateway.store.queries import database_time
from gateway.store.store import Store

if TYPE_CHECKING:
    from gateway.data.remote_storage import RemoteStorage

_MAX_SKEW = 30.0  # seconds that the clocks of two machines may differ
_SQLITE = "sqlite:///"  # start of the URL of a database in a file
# The remedy for a failure of a storage whose reason has no next step
_STORAGE_STEP = "see bfia-gateway docs data; each reason is explained in bfia-gateway docs reasons"
_UNREADABLE_STEP = (
    "correct the file or the command that the settings name, or the file's mode and owner"
)


def database(node: Installation) -> Step:
    """Check that the database responds; the result names its kind, such as ``mysql``.

    Fails with the cause that the database's driver names, and with a step that helps.
    """
    try:
        _ = node.revisions  # connects to the database
    except GatewayError as error:
        cause = "; ".join(map(str, error.problems))
        return trials.failed(cause or error.message, next_step(error))
    return trials.ok(f"{urlsplit(node.settings.database.url).scheme.partition('+')[0]} answers")


def migrations(node: Installation) -> Step:
    """Compare the schema of the database with this version's.

    Warns of another schema, which may be an older or a newer one. Skipped if the database does not
    respond.
    """
    if not node.database_up:
        return trials.skipped()
    current, newest = node.revisions
    if current is None:
        return trials.ok("the schema is not made yet; serve makes it")
    if current == newest:
        return trials.ok(newest)
    if node.revisions.is_newer:
        text = f"the schema {current} is of a newer version; this one's is {newest}"
        return trials.warning(text, "upgrade this gateway, too; until then it can use the database")
    remedy = (
        "serve upgrades a schema that it knows and refuses any other; back up the database first"
    )
    return trials.warning(f"the schema is {current}, this version's is {newest}", remedy)


def writable(folder: Path) -> Step:
    """Check that files can be written to a folder, or to the nearest existing folder above it.

    The node makes a missing folder when it starts. Fails for a full disk and for a folder to which
    the gateway's user cannot write.
    """
    existing = nearest_existing(folder)
    try:
        try_to_write(existing)
    except OSError as error:
        if is_disk_full(error):
            return trials.failed(
                f"{existing} is full: {error.strerror}", f"make room on the disk of {folder}"
            )
        text = f"user {os.getuid()} cannot write to {existing}: {error.strerror}"
        return trials.failed(text, f"give the gateway's user the right to write to {folder}")
    if existing != folder:
        return trials.ok(f"{folder} (made at the start)")
    return trials.ok(str(folder))


def storages_of(
    settings: Settings,
    engine: Engine | None = None,
) -> Step:
    """Write, read and delete a small object at each remote storage.

    With an ``engine``, also check that its containers reach the storages, which only a
    `BridgedEngine` can find out. Fails with the problems of every storage; warns of weaknesses
    of storages that work.
    """
    try:
        remote_storages = list(storages(settings).remotes.values())
    except Invalid as error:
        remedy = "give the gateway's user the right to read the file, or correct its path"
        return trials.failed(error.message, remedy)
    problems: list[Risk] = []
    for storage in remote_storages:
        problems += _storage_problems(storage, engine)
        if not storage.remote.serves_runs:
            problems.append(_key_not_shared(storage.remote))
    if problems:
        return trials.failed(*causes_and_remedies(problems))
    remotes = [storage.remote for storage in remote_storages]
    text = ", ".join(f"{remote.name} ({remote.kind}://{remote.host})" for remote in remotes)
    risks = list(_storage_risks(remotes))
    if risks:
        return warning_of(risks, text)
    return trials.ok(text or "none but the node's folder")


def _storage_problems(
    storage: "RemoteStorage",
    engine: Engine | None,
) -> Iterator[Risk]:
    """Yield the problems of one storage; ``engine`` is the one whose containers must reach it.

    The storage's own words about a failure follow as a problem with the remedy "".
    """
    try:
        storage.check()
    except StorageFailed as error:
        remedy = explained_step(error.reason) or _STORAGE_STEP
        yield Risk(f"{error.reason}: {error.message}", remedy)
        if error.own_words:
            yield Risk(f"the storage says: {error.own_words}", "")
    if isinstance(engine, BridgedEngine):
        unreachable = _unreachable_from_containers(engine, storage.remote)
        if unreachable:
            yield Risk(unreachable, _STORAGE_STEP)


def _key_not_shared(remote: Remote) -> Risk:
    """Return the problem of a storage that no run may use."""
    cause = f"STORAGE_KEY_NOT_SHARED: jobs with data in {remote.name} are refused"
    return Risk(cause, explained_step("STORAGE_KEY_NOT_SHARED"))


def _storage_risks(remotes: Sequence[Remote]) -> Iterator[Risk]:
    """Yield the weaknesses of storages that work.

    These are a key that all containers share, credentials that outlast their run, and HDFS, which
    does not authenticate its clients.
    """
    shared_keys = [remote.name for remote in remotes if remote.shares_key_of_s3]
    if shared_keys:
        yield Risk(
            f"containers get the node's own key of {', '.join(shared_keys)}, "
            "which opens every dataset there",
            "where the server has STS, set role in storages: each run gets a key of its own",
        )
    lasting = "; ".join(_lasting_credentials(remotes))
    if lasting:
        yield Risk(
            f"credentials of runs outlast them, by up to 12 hours: {lasting}",
            "allow this node's key s3:GetBucketPolicy and s3:PutBucketPolicy",
        )
    open_to_all = ", ".join(remote.name for remote in remotes if remote.believes_names)
    if open_to_all:
        yield Risk(
            f"containers can change all of {open_to_all}: HDFS believes the name that a client "
            "gives",
            "keep there only what every image that runs here may read; for more, use Kerberos, "
            "or S3 with role",
        )


def _lasting_credentials(remotes: Sequence[Remote]) -> Iterator[str]:
    """Yield a message for each storage at which the node cannot end the credentials of ended runs.

    Only storages with a role give each run credentials of its own, so the others are left out.
    """
    for remote in remotes:
        if not remote.role:
            continue
        try:
            credentials.check_policy_readable(remote)
        except StorageFailed as error:
            yield error.message


def _unreachable_from_containers(engine: BridgedEngine, remote: Remote) -> str:
    """Return why an engine's containers cannot reach a storage; "" if they can.

    A component reads its data from within its container, so the gateway's own connection proves
    nothing about that.
    """
    try:
        cause = engine.obstacle_to(remote.services)
    except EngineError as error:
        cause = str(error)
    if not cause:
        return ""
    return f"containers cannot reach storage {remote.name}: {cause}"


def disk(node: Installation) -> Step:
    """Compare the free space of the storage's disk with the reserve.

    Fails below the reserve (`limits.storage_reserve_bytes`), because no task would be started.
    """
    folder = node.settings.storage.path
    reserve = node.settings.limits.storage_reserve_bytes
    free = shutil.disk_usage(nearest_existing(folder)).free
    text = f"{_size(free)} free at {folder}"
    if free < reserve:
        cause = (
            f"{text}, {_size(reserve)} wanted (limits.storage_reserve_bytes): "
            "no task will be started"
        )
        return trials.failed(cause, "make room, or lower the reserve")
    return trials.ok(text)


def _size(count: int) -> str:
    """Return a number of bytes in GiB, or in MiB below one GiB.

    Examples are "1.5 GiB" and "512 MiB".
    """
    if count >= 1024**3:
        return f"{count / 1024**3:.1f} GiB"
    return f"{count / 1024**2:.0f} MiB"


def secrets(node: Installation) -> Step:
    """Warn of passwords, keys and tokens that the configuration file contains in clear.

    A file of a node that `init` has written contains none: that node would not start with one.
    Fails for secrets with an unusable file or command.
    """
    unreadable = unreadable_secrets(node.settings)
    if unreadable:
        return trials.failed("; ".join(map(str, unreadable)), _UNREADABLE_STEP)
    settings = [secret.in_clear for secret in secrets_in_clear(node.settings)]
    if not settings:
        return trials.ok("none in the configuration file")
    return trials.warning(
        f"in clear in the configuration file: {', '.join(settings)}",
        move_command(node.config),
    )


def modes_of(
    settings: Settings,
    config: Path | None = None,
) -> Step:
    """Warn of files and folders with data, secrets or keys that other users can read.

    - ``config``: the configuration file, which may have passwords; None if there is none

    The remedy is a ``chmod`` command: mode 600 for files and 700 for folders. What only a group may
    read is left alone, unless the node needs it closed: a PIN file, and all with `secrets.mode`
    refuse.
    """
    files = _secret_files(settings)
    if config is not None:
        files.insert(0, config)
    folders = [settings.state_dir, settings.storage.path]
    is_open = is_open_beyond_group
    if settings.secrets.mode == "refuse":
        is_open = is_open_to_others
    rules: Sequence[tuple[str, Sequence[Path], Callable[[Path], bool]]] = (
        ("600", files, is_open),
        ("600", _pin_files(settings), is_open_to_others),
        ("700", folders, is_open),
    )
    open_paths = []
    commands = []
    for mode, paths, is_too_open in rules:
        too_open = list(map(str, filter(is_too_open, dict.fromkeys(paths))))
        if too_open:
            open_paths += too_open
            commands.append(shlex.join(["chmod", mode, *too_open]))
    if not open_paths:
        return trials.ok("closed to other users")
    cause = f"open to other users of this machine: {', '.join(open_paths)}"
    return trials.warning(cause, "; ".join(commands))


def _secret_files(settings: Settings) -> list[Path]:
    """Return the files with keys, passwords or data that the settings and routes name.

    Some of them may be missing, such as the write-ahead log of a database that is closed.
    """
    secret_files = [secret.file for secret in secrets_of(settings)]
    secret_files += [storage.keytab for storage in settings.storages.values()]
    identities = [route.identity for route in routes_in_file(settings).table.routes.values()]
    route_keys = [identity.key for identity in identities]
    return [
        *_tls_keys_and_kubeconfigs(settings),
        *Keyring(settings.state_dir).files.values(),
        SealingKeyFile(settings.state_dir).path,
        *filter(None, secret_files),
        *map(Path, filter(None, route_keys)),
        *_database_files(settings.database.url),
    ]


def _pin_files(settings: Settings) -> list[Path]:
    """Return the file with the PIN of the key for statements; empty without one."""
    statements_key = settings.identity.statements_key
    if statements_key is None or statements_key.pkcs11 is None:
        return []
    return list(filter(None, [statements_key.pkcs11.pin_file]))


def _database_files(url: str) -> list[Path]:
    """Return the files of the SQLite database at a URL; empty for a database server.

    SQLite keeps the newest data in a write-ahead log with an index, two files with names of their
    own.
    """
    if not url.startswith(_SQLITE):
        return []
    database = url.removeprefix(_SQLITE).partition("?")[0]
    return [Path(database + suffix) for suffix in ("", "-wal", "-shm")]


def _tls_keys_and_kubeconfigs(settings: Settings) -> list[Path]:
    """Return the files with private keys for TLS, and with credentials of Kubernetes clusters.

    The keys are the node's for engines and for the listener of peers; `_secret_files` adds the keys
    of routes. A cluster without a kubeconfig is reached with the credentials of the gateway's own
    pod.
    """
    tls_settings = [settings.engine.docker.tls, settings.engine.swarm.tls]
    kubeconfigs = [settings.engine.kubernetes.kubeconfig]
    for engine in settings.engines.values():
        tls_settings.append(engine.tls)
        if engine.kubernetes:
            kubeconfigs.append(engine.kubernetes.kubeconfig)
    keys = [tls.key for tls in filter(None, tls_settings)]
    if settings.listen.peer.tls:
        keys.append(settings.listen.peer.tls.key)
    return list(filter(None, [*keys, *kubeconfigs]))


def clock(node: Installation) -> Step:
    """Compare the clocks of the storage and of a database server with this machine's.

    SQLite has no clock of its own.
    """
    store = None
    if node.database_up and not node.settings.database.url.startswith("sqlite:"):
        store = node.store
    return clock_of(node.settings.storage.path, store)


def clock_of(
    folder: Path,
    store: Store | None,
    now: Callable[[], float] = time.time,
) -> Step:
    """Compare this machine's clock with the clocks of the storage and of a database server.

    - ``folder``: the storage's folder, whose clock dates a new file; one that cannot be written to
      is left out, as another check reports it
    - ``store``: None without a database server
    - ``now``: returns this machine's time in seconds since 1970

    Fails if a clock is off by more than `_MAX_SKEW`.
    """
    skews = {}  # seconds by which each clock is fast
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=nearest_existing(folder)) as file:
        file.write(b"x")
        file.flush()
        skews["storage"] = os.fstat(file.fileno()).st_mtime - now()
    if store is not None:
        skews["database"] = database_time(store) - now()
    offsets = []
    causes = []
    for name, skew in skews.items():
        # Adding 0 turns -0.0, which would be shown with its sign, into 0.0.
        offsets.append(f"{name} {round(skew, 1) + 0:+.1f} s")
        if abs(skew) > _MAX_SKEW:
            causes.append(f"the clock of the {name} is {abs(skew):.0f} s off this machine's")
    text = ", ".join(offsets) or "nothing to compare with"
    if causes:
        return trials.failed(
            "; ".join(causes),
            "let both machines follow a time server",
            text,
        )
    return trials.ok(text)
