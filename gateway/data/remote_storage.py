"""A storage elsewhere, S3 or HDFS, as a `gateway.data.storage.Storage`.

Lists, metadata and signed URLs come from the library's asynchronous operator: while one of its
synchronous calls waits for the network, no other thread of Python runs. Files are opened, written,
renamed and deleted by synchronous calls all the same.
"""

import asyncio
import io
import ipaddress
import math
import secrets
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import structlog
from opendal import AsyncOperator, Operator, exceptions

from gateway.data.file_storage import Staging
from gateway.data.remote import (
    AUTO,
    FILE,
    HDFS,
    PATH,
    RETRIES,
    S3,
    SAMPLE_SECONDS,
    TIMEOUT,
    VIRTUAL,
    Remote,
)
from gateway.data.remote_errors import (
    CODES,
    LASTING_REASONS,
    LIBRARY_ERRORS,
    VIRTUAL_ONLY,
    known_code,
    own_words,
)
from gateway.data.remote_parts import PIECE, RemoteParts
from gateway.data.s3_reader import ObjectReader
from gateway.data.storage import (
    CHUNK,
    METADATA,
    PARTITION,
    Parts,
    Storage,
    Stored,
    check_names,
    missing_error,
    taken_error,
)
from gateway.data.table_search import FIRST_PARTITION, TableListing, TableSearch
from gateway.domain.run import Address
from gateway.errors import GatewayError, StorageAway, StorageFailed

log = structlog.get_logger(__name__)


_CONNECT_SECONDS = 3.0  # the longest time for a connection to the NameNode of HDFS
_SAMPLE = b"bfia" * 32 * 1024  # 128 KiB
# Name of an object that is read to detect the addressing of S3; it need not exist.
_ADDRESSING_PROBE = ".addressing"
_CHECKS_AT_ONCE = 32  # requests in flight while tables are searched for


class RemoteStorage(Storage):
    """Tables, models and reports in one storage elsewhere."""

    def __init__(self, remote: Remote) -> None:
        """Take the address; the connection is made at the first request."""
        self.remote = remote  # with AUTO, its addressing is replaced once it is detected
        self._operator: Operator | None = None
        # True after the storage was full or slow, until `check` writes a sample in time
        self._is_doubtful = False

    # ------------------------------------------------------------ reading

    def files(self, address: Address) -> Mapping[str, Stored]:
        """Return the files at an address by name; empty if there are none.

        Folders inside the folder are left out. Raises `Invalid`, `StorageFailed`.
        """
        check_names(address)
        if address.in_place == FILE:
            return self._single_file(f"{address.namespace}/{address.name}")
        entries = self._list(_folder(address))
        return {name: stored for name, stored in entries.items() if stored is not None}

    def _single_file(self, path: str) -> dict[str, Stored]:
        """Return the file of a table that was registered in place as a single file.

        It is called ``data_0``, as the only partition of a table is. Empty if the file is gone.
        """
        name = f"{PARTITION}0"
        with self._storage_errors(), suppress(exceptions.NotFound):
            about = asyncio.run(self._stat(path))
            if about.is_file:
                return {name: _stored(name, about)}
        return {}

    async def _stat(self, path: str) -> Any:
        """Return the library's metadata of a file or folder.

        Raises the library's errors: `NotFound` for a missing file, another for a missing bucket.
        """
        operator = self._connect().to_async_operator()
        try:
            return await operator.stat(path)
        except exceptions.NotFound:
            # S3 gives no cause in its response to such a request, so the bucket may be missing: a
            # listing then fails.
            folder = path.rpartition("/")[0]
            await self._begin_listing(f"{folder}/")
            raise

    def names(
        self,
        namespace: str,
        storage: str = "",
    ) -> list[str]:
        """Return the names in a namespace, sorted.

        ``storage`` is not used: see `Storage.names`. Raises `StorageFailed`.
        """
        return sorted(self._list(f"{namespace}/"))

    def entries(self, address: Address) -> list[str]:
        """Return the names of all files and folders in an address's folder, sorted.

        Raises `Invalid`, `StorageFailed`.
        """
        check_names(address)
        return sorted(self._list(_folder(address)))

    def delete_entry(self, address: Address, name: str) -> None:
        """Delete a file or a folder in an address's folder. Raises `Invalid`, `StorageFailed`."""
        check_names(address)
        entries = self._list(_folder(address))
        if name not in entries:
            return
        path = _folder(address) + name
        with self._storage_errors():
            if entries[name] is None:  # a folder
                self._connect().remove_all(f"{path}/")
            else:
                self._connect().delete(path)

    def namespaces(self) -> set[str]:
        """Return the names of everything at the top of the storage, also of other programs.

        Raises `StorageFailed`.
        """
        return set(self._list(""))

    def _list(self, folder: str) -> dict[str, Stored | None]:
        """Return the entries of a folder by name: a file as stored, a folder in it as None.

        Empty if the folder does not exist. Raises `StorageFailed`.
        """
        entries: dict[str, Stored | None] = {}
        with self._storage_errors(), suppress(exceptions.NotFound):
            for entry in asyncio.run(self._entries(folder)):
                name = entry.path.removeprefix(folder)
                if name in ("", "/"):  # the folder itself; HDFS lists its root, too
                    continue
                is_folder = name.endswith("/")
                stored = None if is_folder else _stored(name, entry.metadata)
                entries[name.removesuffix("/")] = stored
        return entries

    async def _entries(self, folder: str) -> list[Any]:
        """Return the library's entries of a folder."""
        operator = self._connect().to_async_operator()
        return [entry async for entry in await operator.list(folder)]

    async def _begin_listing(self, folder: str) -> None:
        """Request the first entry of a folder. Raises the library's errors."""
        operator = self._connect().to_async_operator()
        # The limit is that of one response. Without the break, the library would request them all.
        async for _ in await operator.list(folder, limit=1):
            break

    def find_tables(self, search: TableSearch) -> TableListing:
        """Search for tables within the search's bounds. Raises `StorageFailed`."""
        with self._storage_errors():
            return asyncio.run(self._find_tables(search))

    async def _find_tables(self, search: TableSearch) -> TableListing:
        """Check the candidates batch by batch, until a bound of the search is reached.

        The listing is incomplete if time runs out or there are more tables than the search allows.
        """
        operator = self._connect().to_async_operator()
        tables: list[Address] = []
        try:
            async with asyncio.timeout(search.seconds):
                async for candidates in self._candidates(operator, search):
                    checks = (_holds_table(operator, address) for address in candidates)
                    are_tables = await asyncio.gather(*checks)
                    tables += compress(candidates, are_tables)
                    if len(tables) > search.max_tables:
                        return TableListing(
                            tables[: search.max_tables],
                            is_complete=False,
                        )
        except TimeoutError:
            return TableListing(tables, is_complete=False)
        return TableListing(tables, is_complete=True)

    async def _candidates(
        self, operator: AsyncOperator, search: TableSearch
    ) -> AsyncIterator[list[Address]]:
        """Yield the folders that may be tables, in batches of at most `_CHECKS_AT_ONCE`.

        A batch never spans two namespaces, and the last one of a namespace may be empty.
        """
        async for namespace in _folders(operator, ""):
            if not search.accepts_namespace(namespace):
                continue
            batch = []
            async for name in _folders(operator, f"{namespace}/"):
                address = Address(namespace, name, self.remote.name)
                if search.accepts(address):
                    batch.append(address)
                if len(batch) == _CHECKS_AT_ONCE:
                    yield batch
                    batch = []
            yield batch

    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> io.BufferedReader:
        """Open a file of an address, positioned at the byte ``start``.

        A table that was registered as a single file has that file for every ``name``. Raises
        `NotFound`, `StorageFailed`.
        """
        check_names(address)
        path = _folder(address) + name
        if address.in_place == FILE:
            path = f"{address.namespace}/{address.name}"
        with self._storage_errors():
            try:
                file = self._open(path)
                if start:
                    file.seek(start)
                reader = _Reader(file, self._storage_errors)
                buffered: io.BufferedReader = io.BufferedReader(reader, CHUNK)
                buffered.peek(1)  # a missing file is only noticed when it is read
            except exceptions.NotFound as error:
                raise missing_error(address) from error
        return buffered

    def _open(self, path: str) -> Any:
        """Open a file for reading.

        Over plain http, S3 is read by our own reader of signed URLs, see `gateway.data.s3_reader`.
        """
        is_plain_s3 = self.remote.kind == S3 and not self.remote.tls
        if not is_plain_s3:
            return self._connect().open(path, "rb")

        def sign() -> Any:
            return asyncio.run(self._sign(path))

        return ObjectReader(sign, TIMEOUT, RETRIES)

    async def _sign(self, path: str) -> Any:
        """Return a signed request for an object, which is valid for the time of one request."""
        operator = self._connect().to_async_operator()
        return await operator.presign_read(path, math.ceil(TIMEOUT))

    # ------------------------------------------------------------ writing

    @contextmanager
    def published(
        self,
        staging: Staging,
        address: Address,
        *,
        overwrite: bool,
    ) -> Iterator[None]:
        """Send a staged table to its place, the first partition last.

        With ``overwrite``, a file replaces the one of the same name; other files at the address
        stay. If the block or the sending raises, all files at the address are deleted. Raises
        `Conflict`, `StorageFailed`.
        """
        parts = staging.parts
        # If `parts` has sent partitions, the files at the address are of this table: do not check
        # whether the address is taken.
        if not overwrite and parts is None and self.taken(address):
            raise taken_error(address)
        first = f"{PARTITION}0"  # sent last: a table without it does not exist
        files = {path.name: path for path in staging.table.iterdir()}
        names = sorted(files.keys() - {first})
        if first in files:
            names.append(first)
        with self._undo_on_error(staging, address):
            for name in names:
                with self._storage_errors():
                    self._send(files[name], _folder(address) + name)
            if parts is not None:
                parts.finish()
            yield

    @contextmanager
    def parts(
        self,
        staging: Staging,
        address: Address,
    ) -> Iterator[Parts]:
        """Begin a table whose partitions are sent while they are written.

        If the block raises, the files at the address are deleted. Raises `Invalid`,
        `StorageFailed`.
        """
        check_names(address)
        with self._undo_on_error(staging, address):
            parts = RemoteParts(
                self._connect(), _folder(address), staging.folder, self._storage_errors
            )
            staging.parts = parts
            try:
                yield parts
            finally:
                parts.drop()  # does nothing after `published`, which has completed the parts

    @contextmanager
    def _undo_on_error(
        self,
        staging: Staging,
        address: Address,
    ) -> Iterator[None]:
        """Delete the files at the address if the block raises.

        If the storage fails to delete them, the staging folder stays, with its note of the address,
        so that `gc` deletes them later.
        """
        try:
            yield
        except BaseException:
            try:
                self.delete(address)
            except GatewayError:
                staging.stays = True
            raise

    def _send(self, path: Path, target: str) -> None:
        """Copy a file of the disk to a path of the storage.

        A large file is sent in pieces of `PIECE` bytes.
        """
        with path.open("rb") as source, self._connect().open(target, "wb", chunk=PIECE) as file:
            shutil.copyfileobj(source, file, PIECE)

    def write_metadata(self, address: Address, data: bytes) -> None:
        """Replace the metadata of a table in one step.

        Raises `NotFound` without a table, and `StorageFailed`.
        """
        if not self.taken(address):
            raise missing_error(address)
        path = _folder(address) + METADATA
        with self._storage_errors():
            if self.remote.kind == S3:
                self._connect().write(path, data)
                return
            # A file of HDFS is visible while it is written.
            self._connect().write(f"{path}.new", data)
            self._connect().rename(f"{path}.new", path)

    def delete(self, address: Address) -> bool:
        """Delete all files at an address; return whether there were any.

        HDFS keeps empty folders, so the folder of an empty namespace is deleted as well. Raises
        `Invalid`, `StorageFailed`.
        """
        check_names(address)
        folder = _folder(address)
        names = self._list(folder)
        first = f"{PARTITION}0"
        with self._storage_errors():
            if first in names:  # so that no half deleted table is visible
                self._connect().delete(folder + first)
            self._connect().remove_all(folder)
            if self.remote.kind == HDFS and not self._list(f"{address.namespace}/"):
                self._connect().delete(f"{address.namespace}/")
        if self.remote.kind == S3:
            self._abort_uploads(folder)
        return bool(names)

    def _abort_uploads(self, folder: str) -> None:
        """Abort the unfinished multipart uploads below a folder, which take up space.

        A node without the right to do so logs a warning; the bucket's lifecycle rule must do it
        then. Raises `StorageAway`.
        """
        try:
            with self.remote.client("s3") as client:
                for upload in self._unfinished_uploads(client, folder):
                    with suppress(client.exceptions.NoSuchUpload):  # it has ended already
                        client.abort_multipart_upload(
                            Bucket=self.remote.folder,
                            Key=upload["Key"],
                            UploadId=upload["UploadId"],
                        )
        except StorageAway:  # a later deletion may abort them
            raise
        except StorageFailed as error:
            log.warning(
                "unfinished uploads stay",
                storage=self.remote.name,
                cause=error.message,
            )

    def _unfinished_uploads(
        self,
        client: Any,
        folder: str,
    ) -> list[Any]:
        """Return the entries of unfinished multipart uploads below a folder.

        Each is a dictionary of the S3 client with ``Key`` and ``UploadId``.
        """
        paginator = client.get_paginator("list_multipart_uploads")
        uploads: list[Any] = []
        for page in paginator.paginate(Bucket=self.remote.folder, Prefix=folder):
            uploads += page.get("Uploads", [])
        return uploads

    def copy(self, source: Address, target: Address) -> None:
        """Copy all files at an address to another one, unless a complete copy is already there.

        While the copy is incomplete, a folder next to it, ``<name>-begun``, has an object as the
        mark of that. Raises `StorageFailed`.
        """
        check_names(source)
        mark = replace(target, name=f"{target.name}-begun")
        if self.taken(target) and not self.taken(mark):
            return
        with (
            self._storage_errors(),
            self._connect().open(f"{_folder(mark)}{PARTITION}0", "wb") as file,
        ):
            file.write(b"begun")
        for name in self.files(source):
            with (
                self._storage_errors(),
                self.open_file(source, name) as old,
                self._connect().open(_folder(target) + name, "wb", chunk=PIECE) as new,
            ):
                shutil.copyfileobj(old, new, PIECE)
        self.delete(mark)

    # ------------------------------------------------------------ health

    def check_answers(self) -> None:
        """Check that the storage answers, or that it takes a sample if it was full or slow.

        Raises `StorageFailed`.
        """
        if self._is_doubtful:
            self.check()
            return
        with self._storage_errors(), suppress(exceptions.NotFound):
            asyncio.run(self._begin_listing(""))

    def check(self) -> None:
        """Write, read and delete a sample. Raises `StorageFailed`, also if that takes too long.

        After a sample in time, `check_answers` needs no further one.
        """
        name = f".check-{secrets.token_hex(8)}"
        start = time.monotonic()
        with self._storage_errors():
            self._connect().write(name, _SAMPLE)
            self._connect().read(name)
            self._connect().delete(name)
        if time.monotonic() - start > SAMPLE_SECONDS:
            self._is_doubtful = True
            raise self.slow(SAMPLE_SECONDS)
        self._is_doubtful = False

    def _connect(self) -> Operator:
        """Return the operator, the library's client, which the first call makes.

        The first call also detects the addressing of S3 if the settings leave it open. For HDFS,
        every call checks whether the NameNode listens. Raises `StorageFailed` if the server cannot
        be reached.
        """
        if self.remote.kind == HDFS:
            self._check_name_node()
        if self._operator is None:
            if self.remote.addressing == AUTO:
                self.remote = replace(
                    self.remote,
                    addressing=self._detect_addressing(),
                )
            self._operator = self.remote.operator()
        return self._operator

    def _check_name_node(self) -> None:
        """Raise `StorageFailed` if the NameNode does not listen.

        The library's client takes 20 s to notice that.
        """
        address = (self.remote.host, self.remote.port)
        try:
            socket.create_connection(address, _CONNECT_SECONDS).close()
        except OSError as error:
            raise self._failure(error) from None

    def _detect_addressing(self) -> str:
        """Return the addressing that the server takes, PATH or VIRTUAL. Raises `StorageFailed`.

        An object is requested with the bucket in the path, which some servers refuse.
        """
        try:
            self.remote.operator().read(_ADDRESSING_PROBE)
        except (exceptions.NotFound, exceptions.PermissionDenied) as error:
            is_virtual_only = any(code in str(error) for code in VIRTUAL_ONLY)
            if not is_virtual_only:
                return PATH  # if access is denied, the next request shows that
            if _is_ip_address(self.remote.host):
                raise self._no_virtual_host(error) from None
            return VIRTUAL
        except LIBRARY_ERRORS as error:
            raise self._failure(error) from None
        return PATH

    def _no_virtual_host(self, error: Exception) -> StorageFailed:
        """Return the failure of a server that wants the bucket before its host.

        That is impossible for a host that is an IP address.
        """
        text = (
            "takes requests of the virtual-hosted style only, "
            "for which its url needs a name as host"
        )
        failure = self._failure_for("STORAGE_ADDRESSING", text)
        failure.own_words = own_words(str(error))  # the server's code and message
        return failure

    # ------------------------------------------------------------ errors

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Raise the library's errors as `StorageFailed`, except `NotFound` of a file.

        Some callers suppress `NotFound` inside the block. That does not hide a missing bucket, for
        which the listing of a folder raises `ConfigInvalid`.
        """
        try:
            yield
        except exceptions.NotFound as error:
            if known_code(str(error)):  # the bucket is missing, not the file
                raise self._failure(error) from None
            raise
        except OSError as error:
            raise self._os_failure(error) from None
        except LIBRARY_ERRORS as error:
            raise self._failure(error) from None  # its text may hold secrets

    def _os_failure(self, error: OSError) -> Exception:
        """Return the exception to raise for an `OSError`.

        The library's files raise all their errors as `OSError` without a number. An error with a
        number is one of this machine, and is returned unchanged.
        """
        if error.errno is not None:
            return error
        text = str(error)
        if text.startswith("NotFound") and not known_code(text):
            return exceptions.NotFound(text)
        return self._failure(error)

    def _failure(self, error: Exception) -> StorageFailed:
        """Return an error of the library as ours.

        The message is our explanation; ``own_words`` of the result has the words of the server.
        """
        failure = self._explain(error)
        failure.own_words = own_words(str(error))
        return failure

    def _explain(self, error: Exception) -> StorageFailed:
        """Return the meaning of an error: by the storage's code, the kind of error, or its text.

        A time-out makes the storage doubtful: the next health check writes a sample.
        """
        failure = self.failure_in(str(error))
        if failure is not None:
            return failure
        if isinstance(error, exceptions.PermissionDenied):
            return self._failure_for("STORAGE_DENIED", "denies access")
        if "timeout" in str(error).lower():
            self._is_doubtful = True
            return self.slow(TIMEOUT)
        return self._failure_for(StorageAway.reason, "cannot be reached")

    def failure_in(self, text: str) -> StorageFailed | None:
        """Return the failure that a storage's own code in a text means; None without a known code.

        ``text`` is an error of the library, or the message of a failed run.
        """
        code = known_code(text)
        if not code:
            return None
        reason, meaning = CODES[code]
        return self._failure_for(reason, meaning)

    def slow(self, seconds: float) -> StorageFailed:
        """Return the failure of a request that took longer than some seconds."""
        return self._failure_for("STORAGE_SLOW", f"took longer than {seconds:g} s for one request")

    def _failure_for(self, reason: str, text: str) -> StorageFailed:
        """Return a failure of this storage: a `StorageAway` if a later request may succeed.

        ``text`` follows the storage's name in the message. A full storage becomes doubtful.
        """
        if reason == "STORAGE_FULL":
            self._is_doubtful = True
        kind = StorageFailed if reason in LASTING_REASONS else StorageAway
        # Other institutions read the text: it names neither the address nor the bucket.
        return kind(f"storage {self.remote.name} ({self.remote.kind}) {text}", reason=reason)


def _folder(address: Address) -> str:
    """Return the path of an address's folder, with a slash at its end."""
    return f"{address.namespace}/{address.name}/"


async def _folders(operator: AsyncOperator, folder: str) -> AsyncIterator[str]:
    """Yield the names of the folders in a folder; none if it does not exist.

    Files in it are left out.
    """
    try:
        async for entry in await operator.list(folder):
            name = entry.path.removeprefix(folder)
            if name.endswith("/") and name != "/":  # HDFS lists its own root, too
                yield name.removesuffix("/")
    except exceptions.NotFound:
        return


async def _holds_table(operator: AsyncOperator, address: Address) -> bool:
    """Return whether the folder at an address has a first partition."""
    try:
        about = await operator.stat(_folder(address) + FIRST_PARTITION)
    except exceptions.NotFound:
        return False
    return bool(about.is_file)


def _stored(name: str, about: Any) -> Stored:
    """Return a stored file of this name; ``about`` is the library's metadata of it.

    Its stamp, which shows changes, is made of ETag and time, as a storage may lack one of them.
    """
    return Stored(name, about.content_length, f"{about.etag or ''} {about.last_modified or ''}")


def _is_ip_address(host: str) -> bool:
    """Return whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Reader(io.RawIOBase):
    """A file of the library as a raw stream of Python; errors are raised as ours."""

    def __init__(
        self,
        file: Any,
        storage_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._file = file
        self._storage_errors = storage_errors

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with self._storage_errors():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1, /) -> bytes:
        limit = size if size >= 0 else None
        with self._storage_errors():
            return bytes(self._file.read(limit))

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
