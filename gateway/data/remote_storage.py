"""Storages elsewhere, S3 and HDFS, in the form in which `gateway.data.storage` describes tables."""

import asyncio
import io
import ipaddress
import math
import os
import re
import secrets
import shutil
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import certifi
import structlog
from opendal import AsyncOperator, Operator, exceptions
from opendal.layers import RetryLayer, TimeoutLayer

from gateway.data.file_storage import Staging
from gateway.data.s3_reader import ObjectReader
from gateway.data.storage import (
    CHUNK,
    METADATA,
    PARTITION,
    Parts,
    Storage,
    Stored,
    check_names,
    missing,
    taken,
)
from gateway.data.table_search import FIRST_PARTITION, TableListing, TableSearch
from gateway.domain.run import Address
from gateway.errors import GatewayError, StorageAway, StorageFailed

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

log = structlog.get_logger(__name__)

S3 = "s3"
HDFS = "hdfs"
FILE = "file"
KINDS = (S3, HDFS)

# Addressing of S3: the bucket in the path, before the host, or found out at the first request.
AUTO = "auto"
PATH = "path"
VIRTUAL = "virtual"

TIMEOUT = 20.0  # for one request
_CONNECT_SECONDS = 3.0
RETRIES = 3
SAMPLE_SECONDS = 10.0  # for writing, reading and deleting a sample in a storage that works
_SAMPLE = b"bfia" * 32 * 1024
_ADDRESSING_PROBE = ".addressing"  # object requested to find out the addressing
_MAX_OWN_WORDS = 300  # characters

PIECE = 5 * 1024 * 1024  # bytes of a part, except a file's last: the least that S3 takes
_UPLOADS_AT_ONCE = 2  # parts of one file in flight
_MAX_OPEN_FILES = 4  # written at the same time; the library keeps a piece of each in memory
_CHECKS_AT_ONCE = 32  # requests in flight while tables are searched for

# Codes of OSS, COS and OBS for a request with the bucket in its path.
_VIRTUAL_ONLY = (
    "SecondLevelDomainForbidden",
    "PathStyleDomainForbidden",
    "VirtualHostDomainRequired",
)
# Code and sentence of an error, in the library's text and in the server's.
_OWN_WORDS = (
    re.compile(r'code: "([^"]*)", message: "([^"]*)"'),
    re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL),
)
# Reason and text for the storages' own error codes.
_CODES = {
    "NoSuchBucket": ("STORAGE_GONE", "has no such bucket"),
    "QuotaExceeded": ("STORAGE_FULL", "is full: its quota is reached"),
    "DSQuotaExceededException": ("STORAGE_FULL", "is full: its quota is reached"),
    "InvalidAccessKeyId": ("STORAGE_DENIED", "does not know the access key"),
    "SignatureDoesNotMatch": ("STORAGE_DENIED", "does not accept the secret key"),
    **dict.fromkeys(
        _VIRTUAL_ONLY, ("STORAGE_ADDRESSING", "takes requests of the virtual-hosted style only")
    ),
    "AccessDenied": ("STORAGE_DENIED", "denies access"),
    "AccessControlException": ("STORAGE_DENIED", "denies access"),
}
_BUSY_STATUSES = (409, 500, 502, 503, 504)
_LASTING_REASONS = ("STORAGE_GONE", "STORAGE_DENIED", "STORAGE_ADDRESSING")
# All exceptions of the library, which have no base class.
_LIBRARY_ERRORS: Any = tuple(kind for kind in vars(exceptions).values() if isinstance(kind, type))


@dataclass(frozen=True)
class Remote:
    """Address and credentials of a storage elsewhere."""

    name: str
    kind: str  # s3 or hdfs
    host: str
    port: int
    folder: str  # bucket of S3, or the folder of HDFS below which everything lies
    username: str = ""  # access key of S3, or user of HDFS
    password: str = ""
    token: str = ""  # of temporary credentials of S3
    tls: bool = False
    region: str = "us-east-1"
    role: str = ""  # of S3, assumed for each run; empty: runs get the node's credentials
    datanodes: tuple[str, ...] = ()  # ``address:port`` from which HDFS serves its blocks
    addressing: str = PATH

    def operator(self) -> Operator:
        """Return the client for reading and writing."""
        operator = self._hdfs_operator() if self.kind == HDFS else self._s3_operator()
        return operator.layer(TimeoutLayer(timeout=TIMEOUT, io_timeout=TIMEOUT))

    def _hdfs_operator(self) -> Operator:
        if self.username:  # the library takes the user only from the environment
            os.environ["HADOOP_USER_NAME"] = self.username
        name_node = f"hdfs://{self.host}:{self.port}"
        return Operator("hdfs-native", name_node=name_node, root=self.folder)

    def _s3_operator(self) -> Operator:
        _ensure_certificate_authorities()
        options = {
            "endpoint": self.endpoint,
            "bucket": self.folder,
            "region": self.region,
            "access_key_id": self.username,
            "secret_access_key": self.password,
            "disable_config_load": "true",
            "disable_ec2_metadata": "true",
        }
        if self.addressing == VIRTUAL:
            options["enable_virtual_host_style"] = "true"
        if self.token:
            options["session_token"] = self.token
        # Not for HDFS, whose client retries by itself.
        retries = RetryLayer(
            max_times=RETRIES,
            min_delay=0.2,
            max_delay=2.0,
        )
        return Operator("s3", **options).layer(retries)

    @contextmanager
    def client(self, service: str, denial: str = "denies access") -> Iterator[Any]:
        """Yield a client of S3, or of its ``sts``.

        Raises `StorageFailed`, with the text ``denial`` if the server refuses a request.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as in `_client`

        try:
            yield _client(self, service)
        except ClientError as error:
            code = client_error_code(error)
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status in _BUSY_STATUSES:
                raise StorageAway(f"storage {self.name} is busy: {code}") from None
            raise StorageFailed(f"storage {self.name} {denial}: {code}") from None
        except BotoCoreError as error:
            text = f"storage {self.name} cannot be reached: {type(error).__name__}"
            raise StorageAway(text) from None

    @property
    def services(self) -> tuple[str, ...]:
        """Return the addresses that its users must reach, as ``host:port``."""
        host = self.host
        if self.addressing == VIRTUAL:
            host = f"{self.folder}.{host}"
        return (f"{host}:{self.port}", *self.datanodes)

    @property
    def endpoint(self) -> str:
        """Return the URL of S3's interface."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.host}:{self.port}"

    def url(self) -> str:
        """Return ``system.storage`` of a container (component layer 4.2), credentials included."""
        values = {"username": self.username, "password": self.password}
        if self.kind == HDFS:
            values["dir"] = self.folder
        else:
            values["bucket"] = self.folder
            values["token"] = self.token
        if self.kind == S3 and self.region != Remote.region:
            values["region"] = self.region
        if self.tls:
            values["scheme"] = "https"
        if self.addressing == VIRTUAL:
            values["addressing"] = VIRTUAL
        present = {name: value for name, value in values.items() if value}
        query = urlencode(present, quote_via=quote)
        return f"{self.kind}://{self.host}:{self.port}?{query}"


@cache
def _ensure_certificate_authorities() -> None:
    """Set certificate authorities on a machine without any, where the library fails even over http."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return
    if paths.capath and os.listdir(paths.capath):
        return
    os.environ["SSL_CERT_FILE"] = certifi.where()


@cache
def _client(remote: Remote, service: str) -> Any:
    import botocore.session  # noqa: PLC0415 - a node without S3 starts sooner without it
    from botocore.config import Config  # noqa: PLC0415

    addressing = VIRTUAL if remote.addressing == VIRTUAL else PATH
    config = Config(
        connect_timeout=5,
        read_timeout=20,
        retries={"max_attempts": 2},
        proxies={},
        s3={"addressing_style": addressing},
    )
    return botocore.session.Session().create_client(
        service,
        endpoint_url=remote.endpoint,
        region_name=remote.region,
        aws_access_key_id=remote.username,
        aws_secret_access_key=remote.password,
        aws_session_token=remote.token or None,
        config=config,
    )


def client_error_code(error: "ClientError") -> str:
    """Return the code of an error response; some servers put it in another place."""
    code = error.response.get("Error", {}).get("Code")
    return str(code or error.response.get("Code", ""))


class RemoteStorage(Storage):
    """Tables, models and reports in one storage elsewhere."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self._operator: Operator | None = None
        self._is_doubtful = False  # was full or slow, and has taken no sample in time since

    # ------------------------------------------------------------ reading

    def files(self, address: Address) -> Mapping[str, Stored]:
        check_names(address)
        if address.in_place == FILE:
            return self._single_file(f"{address.namespace}/{address.name}")
        entries = self._list(_folder(address))
        return {name: stored for name, stored in entries.items() if stored is not None}

    def _single_file(self, path: str) -> dict[str, Stored]:
        """Return a file that was registered in place, as the only one of a folder."""
        name = f"{PARTITION}0"
        with self._storage_errors(), suppress(exceptions.NotFound):
            about = asyncio.run(self._stat(path))
            if about.is_file:
                return {name: _stored(name, about)}
        return {}

    async def _stat(self, path: str) -> Any:
        return await self._connect().to_async_operator().stat(path)

    def names(self, namespace: str, storage: str = "") -> list[str]:
        return sorted(self._list(f"{namespace}/"))

    def namespaces(self) -> set[str]:
        return set(self._list(""))

    def _list(self, folder: str) -> dict[str, Stored | None]:
        """Return the files of a folder, and its folders with None; empty if it does not exist."""
        entries: dict[str, Stored | None] = {}
        with self._storage_errors(), suppress(exceptions.NotFound):
            for entry in asyncio.run(self._entries(folder)):
                name = entry.path.removeprefix(folder)
                if name in ("", "/"):  # the folder itself; HDFS lists its root, too
                    continue
                if name.endswith("/"):
                    entries[name.removesuffix("/")] = None
                else:
                    entries[name] = _stored(name, entry.metadata)
        return entries

    async def _entries(self, folder: str, limit: int | None = None) -> list[Any]:
        """List a folder without blocking all threads, as the library's synchronous call would."""
        operator = self._connect().to_async_operator()
        return [entry async for entry in await operator.list(folder, limit=limit)]

    def find_tables(self, search: TableSearch) -> TableListing:
        """Search for tables. Raises `StorageFailed`."""
        with self._storage_errors():
            return asyncio.run(self._find_tables(search))

    async def _find_tables(self, search: TableSearch) -> TableListing:
        operator = self._connect().to_async_operator()
        tables: list[Address] = []
        try:
            async with asyncio.timeout(search.seconds):
                async for candidates in self._candidates(operator, search):
                    checks = (_holds_table(operator, address) for address in candidates)
                    are_tables = await asyncio.gather(*checks)
                    tables += compress(candidates, are_tables)
                    if len(tables) > search.max_tables:
                        return TableListing(tables[: search.max_tables], is_complete=False)
        except TimeoutError:
            return TableListing(tables, is_complete=False)
        return TableListing(tables, is_complete=True)

    async def _candidates(
        self, operator: AsyncOperator, search: TableSearch
    ) -> AsyncIterator[list[Address]]:
        """Yield the folders that may be tables, in batches to check at the same time."""
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
                raise missing(address) from error
        return buffered

    def _open(self, path: str) -> Any:
        if self.remote.kind == S3 and not self.remote.tls:
            return ObjectReader(lambda: asyncio.run(self._sign(path)), TIMEOUT, RETRIES)
        return self._connect().open(path, "rb")

    async def _sign(self, path: str) -> Any:
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
        parts = staging.parts
        if not overwrite and parts is None and self.taken(address):
            raise taken(address)
        first = f"{PARTITION}0"  # sent last: a table without it does not exist
        with self._undo_on_error(staging, address):
            for path in sorted(staging.table.iterdir(), key=lambda file: file.name == first):
                with self._storage_errors():
                    self._send(path, _folder(address) + path.name)
            if parts is not None:
                parts.finish()
            yield

    @contextmanager
    def parts(self, staging: Staging, address: Address) -> Iterator[Parts]:
        check_names(address)
        with self._undo_on_error(staging, address):
            parts = RemoteParts(
                self._connect(), _folder(address), staging.folder, self._storage_errors
            )
            staging.parts = parts
            try:
                yield parts
            finally:
                parts.drop()

    @contextmanager
    def _undo_on_error(self, staging: Staging, address: Address) -> Iterator[None]:
        """Delete the files at the address if the block raises."""
        try:
            yield
        except BaseException:
            try:
                self.delete(address)
            except GatewayError:
                staging.stays = True  # `gc` deletes them once the storage is back
            raise

    def _send(self, path: Path, target: str) -> None:
        with path.open("rb") as source, self._connect().open(target, "wb", chunk=PIECE) as file:
            shutil.copyfileobj(source, file, PIECE)

    def write_metadata(self, address: Address, data: bytes) -> None:
        if not self.taken(address):
            raise missing(address)
        path = _folder(address) + METADATA
        with self._storage_errors():
            if self.remote.kind == S3:
                self._connect().write(path, data)
                return
            # A file of HDFS is visible while it is written.
            self._connect().write(f"{path}.new", data)
            self._connect().rename(f"{path}.new", path)

    def delete(self, address: Address) -> bool:
        check_names(address)
        folder = _folder(address)
        names = self._list(folder)
        first = f"{PARTITION}0"
        with self._storage_errors():
            if first in names:  # first, so that no half deleted table is visible
                self._connect().delete(folder + first)
            self._connect().remove_all(folder)
            if self.remote.kind == HDFS and not self._list(f"{address.namespace}/"):
                self._connect().delete(f"{address.namespace}/")
        if self.remote.kind == S3:
            self._abort_uploads(folder)
        return bool(names)

    def _abort_uploads(self, folder: str) -> None:
        """Abort unfinished multipart uploads.

        Without the right to, the bucket's lifecycle rule must.
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
        except StorageAway:
            raise
        except StorageFailed as error:
            log.warning("unfinished uploads stay", storage=self.remote.name, cause=error.message)

    def _unfinished_uploads(self, client: Any, folder: str) -> list[Any]:
        paginator = client.get_paginator("list_multipart_uploads")
        uploads: list[Any] = []
        for page in paginator.paginate(Bucket=self.remote.folder, Prefix=folder):
            uploads += page.get("Uploads", [])
        return uploads

    def copy(self, source: Address, target: Address) -> None:
        """Copy all files at an address to another, unless a complete copy is there.

        An object in another folder marks a copy under way.
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
        """Check that it answers; after a failure, also that it takes a sample.

        Raises `StorageFailed`.
        """
        if self._is_doubtful:
            self.check()
            return
        with self._storage_errors(), suppress(exceptions.NotFound):
            asyncio.run(self._entries("", 1))

    def check(self) -> None:
        """Write, read and delete a sample. Raises `StorageFailed`."""
        name = f".check-{secrets.token_hex(8)}"
        began = time.monotonic()
        with self._storage_errors():
            self._connect().write(name, _SAMPLE)
            self._connect().read(name)
            self._connect().delete(name)
        if time.monotonic() - began > SAMPLE_SECONDS:
            self._is_doubtful = True
            raise self.slow(SAMPLE_SECONDS)
        self._is_doubtful = False

    def _connect(self) -> Operator:
        """Return the operator, made at the first call. Raises `StorageFailed`."""
        if self.remote.kind == HDFS:
            self._check_name_node()
        if self._operator is None:
            if self.remote.addressing == AUTO:
                self.remote = replace(self.remote, addressing=self._detect_addressing())
            self._operator = self.remote.operator()
        return self._operator

    def _check_name_node(self) -> None:
        """Raise `StorageFailed` if nothing listens; the client itself would take 20 s to notice."""
        address = (self.remote.host, self.remote.port)
        try:
            socket.create_connection(address, _CONNECT_SECONDS).close()
        except OSError as error:
            raise self._failure(error) from None

    def _detect_addressing(self) -> str:
        """Return the addressing that the server takes. Raises `StorageFailed`."""
        try:
            self.remote.operator().read(_ADDRESSING_PROBE)
        except (exceptions.NotFound, exceptions.PermissionDenied) as error:
            if not any(code in str(error) for code in _VIRTUAL_ONLY):
                return PATH  # any other fault shows at the next request
            if _is_ip_address(self.remote.host):  # no bucket's name can precede it
                text = "takes requests of the virtual-hosted style only, for which its url needs a name as host"
                failure = self._error("STORAGE_ADDRESSING", text)
                failure.own_words = own_words(str(error))
                raise failure from None
            return VIRTUAL
        except _LIBRARY_ERRORS as error:
            raise self._failure(error) from None
        return PATH

    # ------------------------------------------------------------ errors

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Raise the library's errors as `StorageFailed`, except `NotFound` of a file."""
        try:
            yield
        except exceptions.NotFound as error:
            if _known_code(str(error)):
                raise self._failure(error) from None
            raise
        except OSError as error:
            if error.errno is not None:  # of this machine
                raise
            # The library's files raise it for every cause.
            if str(error).startswith("NotFound") and not _known_code(str(error)):
                raise exceptions.NotFound(str(error)) from None
            raise self._failure(error) from None
        except _LIBRARY_ERRORS as error:
            raise self._failure(error) from None  # its text may hold secrets

    def _failure(self, error: Exception) -> StorageFailed:
        failure = self._explain(error)
        failure.own_words = own_words(str(error))
        return failure

    def _explain(self, error: Exception) -> StorageFailed:
        failure = self.meaning(str(error))
        if failure is not None:
            return failure
        if isinstance(error, exceptions.PermissionDenied):
            return self._error("STORAGE_DENIED", "denies access")
        if "timeout" in str(error).lower():
            self._is_doubtful = True
            return self.slow(TIMEOUT)
        return self._error(StorageAway.reason, "cannot be reached")

    def meaning(self, text: str) -> StorageFailed | None:
        """Return the failure for a storage's own code in a text; None without a known code."""
        code = _known_code(text)
        if not code:
            return None
        reason, meaning = _CODES[code]
        return self._error(reason, meaning)

    def slow(self, seconds: float) -> StorageFailed:
        """Return the failure of a request that took too long."""
        return self._error("STORAGE_SLOW", f"took longer than {seconds:g} s for one request")

    def _error(self, reason: str, text: str) -> StorageFailed:
        if reason == "STORAGE_FULL":
            self._is_doubtful = True
        kind = StorageFailed if reason in _LASTING_REASONS else StorageAway
        # Other institutions read it: neither address nor bucket.
        return kind(f"storage {self.remote.name} ({self.remote.kind}) {text}", reason=reason)


class RemoteParts:
    """The partitions of a table that is being written.

    They become visible in `finish`, ``data_0`` last.

    A rest shorter than a piece waits in memory or on the disk, and so do all partitions after the
    first few.
    """

    def __init__(
        self,
        operator: Operator,
        folder: str,
        scratch: Path,
        storage_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """``storage_errors`` translates the library's errors."""
        self._operator = operator
        self._folder = folder
        self._scratch = scratch
        self._storage_errors = storage_errors
        self._buffers: defaultdict[int, list[bytes]] = defaultdict(list)
        self._buffered = 0  # bytes in all buffers since the last flush
        self._spilled: dict[int, int] = {}  # bytes on the disk, by partition
        self._files: dict[int, Any] = {}
        # HDFS: a file is visible while it is written, and takes one piece after the other.
        self._is_visible_early = operator.capability().rename

    def add(self, number: int, data: bytes) -> None:
        """Append to a partition. Raises `OSError`, `StorageFailed`."""
        self._buffers[number].append(data)
        self._buffered += len(data)
        if self._buffered >= PIECE:
            self._flush()

    def _flush(self) -> None:
        """Empty all buffers: send what fills a piece, write the rest to the disk."""
        for number in list(self._buffers):
            waiting = self._spilled.get(number, 0) + sum(map(len, self._buffers[number]))
            if waiting >= PIECE and self._may_open(number):
                self._send(number)
            else:
                self._spill(number, waiting)
        self._buffered = 0

    def _may_open(self, number: int) -> bool:
        return number in self._files or len(self._files) < _MAX_OPEN_FILES

    def _spill(self, number: int, waiting: int) -> None:
        self._spilled[number] = waiting
        with self._spill_path(number).open("ab") as file:
            file.writelines(self._buffers.pop(number))

    def _send(self, number: int) -> None:
        """Send the waiting bytes, in pieces of full length except a file's last."""
        with self._storage_errors():
            if number not in self._files:
                self._files[number] = self._open(number)
            for piece in self._take_pieces(number):
                self._files[number].write(piece)

    def _open(self, number: int) -> Any:
        uploads = 1 if self._is_visible_early else _UPLOADS_AT_ONCE
        return self._operator.open(self._target(number), "wb", concurrent=uploads)

    def _take_pieces(self, number: int) -> Iterator[bytes]:
        """Yield the waiting bytes from the disk, then from memory, and remove them there."""
        rest = b""
        if self._spilled.pop(number, 0):
            with self._spill_path(number).open("rb") as file:
                rest = file.read(PIECE)
                while len(rest) == PIECE:
                    yield rest
                    rest = file.read(PIECE)
            self._spill_path(number).unlink()
        rest += b"".join(self._buffers.pop(number, []))
        if rest:
            yield rest

    def finish(self) -> None:
        """Send the rest and close every file. Raises `OSError`, `StorageFailed`."""
        numbers = {*self._buffers, *self._spilled, *self._files}
        for number in sorted(numbers, reverse=True):
            self._send(number)
            with self._storage_errors():
                self._files.pop(number).close()
                if number == 0 and self._is_visible_early:
                    self._operator.rename(self._target(0), f"{self._folder}{PARTITION}0")

    def drop(self) -> None:
        """Leave unfinished files as they are."""
        self._files.clear()

    def _target(self, number: int) -> str:
        name = f"{PARTITION}{number}"
        if number == 0 and self._is_visible_early:
            name += ".new"
        return self._folder + name

    def _spill_path(self, number: int) -> Path:
        return self._scratch / f"{PARTITION}{number}"


def _folder(address: Address) -> str:
    return f"{address.namespace}/{address.name}/"


async def _folders(operator: AsyncOperator, folder: str) -> AsyncIterator[str]:
    """Yield the names of the folders in a folder; none if it does not exist."""
    try:
        async for entry in await operator.list(folder):
            name = entry.path.removeprefix(folder)
            if name.endswith("/") and name != "/":  # HDFS lists its own root, too
                yield name.removesuffix("/")
    except exceptions.NotFound:
        return


async def _holds_table(operator: AsyncOperator, address: Address) -> bool:
    try:
        about = await operator.stat(_folder(address) + FIRST_PARTITION)
    except exceptions.NotFound:
        return False
    return bool(about.is_file)


def _stored(name: str, about: Any) -> Stored:
    return Stored(name, about.content_length, f"{about.etag or ''} {about.last_modified or ''}")


def _known_code(text: str) -> str:
    """Return the known error code in a text; empty without one."""
    for code in _CODES:
        if re.search(rf"\b{code}\b", text):
            return code
    return ""


def own_words(text: str) -> str:
    """Return code and sentence of a server's error, printable; empty if a text has none."""
    for pattern in _OWN_WORDS:
        match = pattern.search(text)
        if match:
            code, sentence = match.groups()
            line = f"{code}: {sentence}"[:_MAX_OWN_WORDS]
            return "".join(c if c.isprintable() else " " for c in line)
    return ""


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Reader(io.RawIOBase):
    """A file of the library as a raw stream of Python."""

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
