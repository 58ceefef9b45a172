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
from typing import Any
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

log = structlog.get_logger(__name__)

S3, HDFS = "s3", "hdfs"
FILE = "file"
KINDS = (S3, HDFS)
_SECONDS, _CONNECT_SECONDS, _RETRIES = 20.0, 3.0, 3
AUTO, PATH, VIRTUAL = "auto", "path", "virtual"
_VIRTUAL_ONLY = (
    "SecondLevelDomainForbidden",
    "PathStyleDomainForbidden",
    "VirtualHostDomainRequired",
)
"""what OSS, COS and OBS answer to a request of the path style"""
_OWN_WORDS = (
    re.compile(r'code: "([^"]*)", message: "([^"]*)"'),
    re.compile(r"<Code>([^<]*)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL),
)
"""code and sentence of an error, in the library's text and in the server's"""
_LONGEST_WORDS = 300
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
"""what a storage's own error means: reason, and what is said of it"""
SAMPLE_SECONDS = 10.0
"""seconds within which a storage that works takes a sample and gives it back"""
_SAMPLE = b"bfia" * 32 * 1024
_BUSY = (409, 500, 502, 503, 504)
_LASTING = ("STORAGE_GONE", "STORAGE_DENIED", "STORAGE_ADDRESSING")
_NO_OBJECT = ".addressing"
"""what is asked for to see which style a server takes"""

PIECE = 5 * 1024 * 1024
"""bytes that are sent in one piece, but for the last: the least that S3 takes, and it takes 10,000 of them"""
_AT_ONCE = 2
_CHECKS_AT_ONCE = 32  # requests in flight while tables are searched for
_MOST_OPEN = 4
"""files that are sent while they are written; of each the library keeps a piece in memory"""
_FAILURES: Any = tuple(kind for kind in vars(exceptions).values() if isinstance(kind, type))
"""all that the library raises; it has no base class for them"""


@cache
def _see_to_authorities() -> None:
    """Name certificate authorities on a machine that has none: without any, the library fails even over http."""
    found = ssl.get_default_verify_paths()
    if not found.cafile and not (found.capath and os.listdir(found.capath)):
        os.environ["SSL_CERT_FILE"] = certifi.where()


@dataclass(frozen=True)
class Remote:
    """How a storage elsewhere is reached."""

    name: str
    kind: str
    """s3 or hdfs"""
    host: str
    port: int
    folder: str
    """a bucket of S3, the folder of HDFS below which everything lies"""
    username: str = ""
    """S3's access key; the user of HDFS"""
    password: str = ""
    token: str = ""
    """S3's, of temporary credentials"""
    tls: bool = False
    region: str = "us-east-1"
    role: str = ""
    """S3's role, assumed for each run so that it gets credentials of its own; empty: runs get the node's"""
    datanodes: tuple[str, ...] = ()
    """``address:port`` of the machines from which HDFS serves its blocks"""
    addressing: str = PATH
    """where S3 has the bucket: in the path, or before the host (virtual); auto: in the path unless refused"""

    def operator(self) -> Operator:
        """Return what reads and writes there."""
        if self.kind == HDFS:
            if self.username:  # the library reads the user there alone
                os.environ["HADOOP_USER_NAME"] = self.username
            made = Operator(
                "hdfs-native", name_node=f"hdfs://{self.host}:{self.port}", root=self.folder
            )
        else:
            _see_to_authorities()
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
            made = Operator(
                "s3", **options, **({"session_token": self.token} if self.token else {})
            )
        if self.kind == S3:  # the client of HDFS tries again by itself
            made = made.layer(
                RetryLayer(
                    max_times=_RETRIES,
                    min_delay=0.2,
                    max_delay=2.0,
                )
            )
        return made.layer(TimeoutLayer(timeout=_SECONDS, io_timeout=_SECONDS))

    @contextmanager
    def client(self, service: str, what: str = "denies access") -> Iterator[Any]:
        """Give what speaks to S3, or to its ``sts``. Raises `StorageFailed`: with ``what`` for what it denies."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as in `_client`

        try:
            yield _client(self, service)
        except ClientError as error:
            about = error.response.get("Error", {}).get("Code") or error.response.get("Code", "")
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in _BUSY:
                raise StorageAway(f"storage {self.name} is busy: {about}") from None
            raise StorageFailed(f"storage {self.name} {what}: {about}") from None
        except BotoCoreError as error:
            raise StorageAway(
                f"storage {self.name} cannot be reached: {type(error).__name__}"
            ) from None

    @property
    def services(self) -> tuple[str, ...]:
        """Return what who works there has to reach, as ``host:port``."""
        host = f"{self.folder}.{self.host}" if self.addressing == VIRTUAL else self.host
        return (f"{host}:{self.port}", *self.datanodes)

    @property
    def endpoint(self) -> str:
        """Return the address of S3's interface."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def url(self) -> str:
        """Return what a container gets as ``system.storage`` (component layer 4.2), credentials included."""
        given = {"username": self.username, "password": self.password}
        given |= (
            {"dir": self.folder}
            if self.kind == HDFS
            else {"bucket": self.folder, "token": self.token}
        )
        if self.kind == S3 and self.region != Remote.region:
            given["region"] = self.region
        if self.tls:
            given["scheme"] = "https"
        if self.addressing == VIRTUAL:
            given["addressing"] = VIRTUAL
        query = urlencode({name: text for name, text in given.items() if text}, quote_via=quote)
        return f"{self.kind}://{self.host}:{self.port}?{query}"


@cache
def _client(remote: Remote, service: str) -> Any:
    import botocore.session  # noqa: PLC0415 - a node without S3 starts sooner without it
    from botocore.config import Config  # noqa: PLC0415

    return botocore.session.Session().create_client(
        service,
        endpoint_url=remote.endpoint,
        region_name=remote.region,
        aws_access_key_id=remote.username,
        aws_secret_access_key=remote.password,
        aws_session_token=remote.token or None,
        config=Config(
            connect_timeout=5,
            read_timeout=20,
            retries={"max_attempts": 2},
            proxies={},
            s3={"addressing_style": VIRTUAL if remote.addressing == VIRTUAL else PATH},
        ),
    )


class RemoteStorage(Storage):
    """Tables, models and reports at one storage elsewhere."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self._operator: Operator | None = None
        self._doubtful = False
        """whether it was full or slow, and took no write in time since"""

    def files(self, address: Address) -> Mapping[str, Stored]:
        check_names(address)
        folder = f"{address.namespace}/{address.name}/"
        if address.in_place == FILE:
            return self._object(folder[:-1])
        return {name: stored for name, stored in self._listed(folder).items() if stored is not None}

    def _object(self, path: str) -> dict[str, Stored]:
        """Return a file that was registered where it lies, as if it were the only one of a folder."""
        with self._named(), suppress(exceptions.NotFound):
            about = asyncio.run(self._about(path))
            if about.is_file:
                return {f"{PARTITION}0": _stored(f"{PARTITION}0", about)}
        return {}

    async def _about(self, path: str) -> Any:
        return await self._at().to_async_operator().stat(path)

    def names(self, namespace: str, storage: str = "") -> list[str]:
        return sorted(self._listed(f"{namespace}/"))

    def namespaces(self) -> set[str]:
        return set(self._listed(""))

    def find_tables(self, search: TableSearch) -> TableListing:
        """Search for tables. Raises `StorageFailed`."""
        with self._named():
            return asyncio.run(self._find_tables(search))

    async def _find_tables(self, search: TableSearch) -> TableListing:
        operator = self._at().to_async_operator()
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

    def _listed(self, folder: str) -> dict[str, Stored | None]:
        """Return what lies in a folder, the folders in it with None; empty where there is none."""
        found: dict[str, Stored | None] = {}
        with self._named(), suppress(exceptions.NotFound):
            for entry in asyncio.run(self._entries(folder)):
                name = entry.path.removeprefix(folder)
                if name == "/":  # HDFS lists its own root, too
                    continue
                if name.endswith("/"):
                    found[name[:-1]] = None
                elif name:
                    found[name] = _stored(name, entry.metadata)
        return found

    async def _entries(self, folder: str, limit: int | None = None) -> list[Any]:
        """List a folder; the library's other way to do so stops all threads of the process meanwhile."""
        return [
            entry async for entry in await self._at().to_async_operator().list(folder, limit=limit)
        ]

    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> io.BufferedReader:
        check_names(address)
        path = f"{address.namespace}/{address.name}"
        path = path if address.in_place == FILE else f"{path}/{name}"
        with self._named():
            try:
                if self.remote.kind == S3 and not self.remote.tls:
                    file: Any = ObjectReader(
                        lambda: asyncio.run(self._signed(path)), _SECONDS, _RETRIES
                    )
                else:
                    file = self._at().open(path, "rb")
                if start:
                    file.seek(start)
                buffered: io.BufferedReader = io.BufferedReader(_Reader(file, self._named), CHUNK)
                buffered.peek(1)  # a missing file is only noticed when it is read
            except exceptions.NotFound as error:
                raise missing(address) from error
        return buffered

    async def _signed(self, path: str) -> Any:
        return await self._at().to_async_operator().presign_read(path, math.ceil(_SECONDS))

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
        first = f"{PARTITION}0"
        with self._undone(staging, address):
            for path in sorted(staging.table.iterdir(), key=lambda file: file.name == first):
                with self._named():
                    self._send(path, f"{address.namespace}/{address.name}/{path.name}")
            if parts is not None:
                parts.finish()
            yield

    @contextmanager
    def parts(self, staging: Staging, address: Address) -> Iterator[Parts]:
        check_names(address)
        folder = f"{address.namespace}/{address.name}/"
        with self._undone(staging, address):
            staging.parts = parts = RemoteParts(self._at(), folder, staging.folder, self._named)
            try:
                yield parts
            finally:
                parts.drop()

    @contextmanager
    def _undone(self, staging: Staging, address: Address) -> Iterator[None]:
        """Delete what was sent if the block raises."""
        try:
            yield
        except BaseException:
            try:
                self.delete(address)
            except GatewayError:
                staging.stays = True  # `gc` deletes it once the storage is back
            raise

    def _send(self, path: Path, to: str) -> None:
        with path.open("rb") as source, self._at().open(to, "wb", chunk=PIECE) as target:
            shutil.copyfileobj(source, target, PIECE)

    def write_metadata(self, address: Address, data: bytes) -> None:
        if not self.taken(address):
            raise missing(address)
        path = f"{address.namespace}/{address.name}/{METADATA}"
        with self._named():
            if self.remote.kind == S3:
                self._at().write(path, data)
            else:  # a file of HDFS is seen while it is written
                self._at().write(f"{path}.new", data)
                self._at().rename(f"{path}.new", path)

    def delete(self, address: Address) -> bool:
        check_names(address)
        folder = f"{address.namespace}/{address.name}/"
        there = self._listed(folder)
        with self._named():
            if f"{PARTITION}0" in there:  # first, so that nothing half deleted is visible
                self._at().delete(f"{folder}{PARTITION}0")
            self._at().remove_all(folder)
            if self.remote.kind == HDFS and not self._listed(f"{address.namespace}/"):
                self._at().delete(f"{address.namespace}/")
        if self.remote.kind == S3:
            self._give_up(folder)
        return bool(there)

    def copy(self, source: Address, target: Address) -> None:
        """Copy all files at an address, of any name, to another, unless more than a part of them lies there."""
        check_names(source)
        begun = replace(target, name=f"{target.name}-begun")
        if self.taken(target) and not self.taken(begun):
            return
        with (
            self._named(),
            self._at().open(f"{begun.namespace}/{begun.name}/{PARTITION}0", "wb") as mark,
        ):
            mark.write(b"begun")
        for name in self.files(source):
            to = f"{target.namespace}/{target.name}/{name}"
            with (
                self._named(),
                self.open_file(source, name) as old,
                self._at().open(to, "wb", chunk=PIECE) as new,
            ):
                shutil.copyfileobj(old, new, PIECE)
        self.delete(begun)

    def _give_up(self, folder: str) -> None:
        """Delete the pieces of files of which not all were sent; a bucket's own rule does where this may not."""
        try:
            with self.remote.client("s3") as client:
                pages = client.get_paginator("list_multipart_uploads").paginate(
                    Bucket=self.remote.folder, Prefix=folder
                )
                for one in [upload for page in pages for upload in page.get("Uploads", [])]:
                    with suppress(client.exceptions.NoSuchUpload):  # another was faster
                        client.abort_multipart_upload(
                            Bucket=self.remote.folder,
                            Key=one["Key"],
                            UploadId=one["UploadId"],
                        )
        except StorageAway:
            raise
        except StorageFailed as error:
            log.warning("unfinished uploads stay", storage=self.remote.name, cause=error.message)

    def check_answers(self) -> None:
        """Look whether it answers, and works again where it was full or slow. Raises `StorageFailed`."""
        if self._doubtful:
            self.check()
            return
        with self._named(), suppress(exceptions.NotFound):
            asyncio.run(self._entries("", 1))

    def check(self) -> None:
        """Write, read and delete a sample, which takes a moment where it works. Raises `StorageFailed`."""
        name, began = f".check-{secrets.token_hex(8)}", time.monotonic()
        with self._named():
            self._at().write(name, _SAMPLE)
            self._at().read(name)
            self._at().delete(name)
        if time.monotonic() - began > SAMPLE_SECONDS:
            self._doubtful = True
            raise self.slow(SAMPLE_SECONDS)
        self._doubtful = False

    def _at(self) -> Operator:
        if self.remote.kind == HDFS:  # its client notices only after 20 s that nobody is there
            try:
                socket.create_connection(
                    (self.remote.host, self.remote.port), _CONNECT_SECONDS
                ).close()
            except OSError as error:
                raise self._failed(error) from None
        if self._operator is None:
            if self.remote.addressing == AUTO:
                self.remote = replace(self.remote, addressing=self._addressing())
            self._operator = self.remote.operator()
        return self._operator

    def _addressing(self) -> str:
        """Find the style of requests that the server takes. Raises `StorageFailed`."""
        try:
            self.remote.operator().read(_NO_OBJECT)
        except (exceptions.NotFound, exceptions.PermissionDenied) as error:
            if not any(code in str(error) for code in _VIRTUAL_ONLY):
                return PATH  # what else is wrong, the next request shows
            if _is_address(self.remote.host):
                what = "takes requests of the virtual-hosted style only, for which its url needs a name as host"
                failed = self._error("STORAGE_ADDRESSING", what)
                failed.own_words = own_words(str(error))
                raise failed from None
            return VIRTUAL
        except _FAILURES as error:
            raise self._failed(error) from None
        return PATH

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say what a storage's own errors mean. Raises `StorageFailed`; lets `NotFound` of a file through."""
        try:
            yield
        except exceptions.NotFound as error:
            if _code(str(error)):
                raise self._failed(error) from None
            raise
        except OSError as error:  # reading a file fails in this way, whatever the cause
            if error.errno is not None:
                raise
            if str(error).startswith("NotFound") and not _code(str(error)):
                raise exceptions.NotFound(str(error)) from None
            raise self._failed(error) from None
        except _FAILURES as error:
            raise self._failed(error) from None  # its text may have more than people should read

    def _failed(self, error: Exception) -> StorageFailed:
        failed = self._explained(error)
        failed.own_words = own_words(str(error))
        return failed

    def _explained(self, error: Exception) -> StorageFailed:
        if (meant := self.meaning(str(error))) is not None:
            return meant
        if isinstance(error, exceptions.PermissionDenied):
            return self._error("STORAGE_DENIED", "denies access")
        if "timeout" in str(error).lower():
            self._doubtful = True
            return self.slow(_SECONDS)
        return self._error(StorageAway.reason, "cannot be reached")

    def meaning(self, text: str) -> StorageFailed | None:
        """Return what a storage's own words mean, None where they are unknown."""
        return self._error(*_CODES[code]) if (code := _code(text)) else None

    def slow(self, seconds: float) -> StorageFailed:
        """Return the error of one that did not answer in time."""
        return self._error("STORAGE_SLOW", f"took longer than {seconds:g} s for one request")

    def _error(self, reason: str, what: str) -> StorageFailed:
        self._doubtful = self._doubtful or reason == "STORAGE_FULL"
        kind = StorageFailed if reason in _LASTING else StorageAway
        return kind(f"{self._shown} {what}", reason=reason)

    @property
    def _shown(self) -> str:
        return f"storage {self.remote.name} ({self.remote.kind})"  # other institutions read it


class RemoteParts:
    """The files ``data_0`` … of one table; none is there before `finish`, and ``data_0`` is the last.

    What is short of a piece waits in memory or on the disk, and so do all partitions after the first few.
    """

    def __init__(
        self,
        operator: Operator,
        folder: str,
        scratch: Path,
        named: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """``named`` says what the storage's own errors mean."""
        self._operator = operator
        self._folder = folder
        self._scratch = scratch
        self._named = named
        self._held: defaultdict[int, list[bytes]] = defaultdict(list)
        self._bytes = 0
        self._spilled: dict[int, int] = {}
        self._files: dict[int, Any] = {}
        self._renames = operator.capability().rename  # then a file is seen while it is written

    def add(self, number: int, data: bytes) -> None:
        """Append to a partition. Raises `OSError`, `StorageFailed`."""
        self._held[number].append(data)
        self._bytes += len(data)
        if self._bytes >= PIECE:
            self._make_room()

    def _make_room(self) -> None:
        for number in list(self._held):
            waiting = self._spilled.get(number, 0) + sum(map(len, self._held[number]))
            if waiting < PIECE or (number not in self._files and len(self._files) == _MOST_OPEN):
                self._spilled[number] = waiting
                with self._path(number).open("ab") as file:
                    file.writelines(self._held.pop(number))
                continue
            self._send(number)
        self._bytes = 0

    def _send(self, number: int) -> None:
        """Send what waits, in pieces of which none but the file's last is too short."""
        with self._named():
            if number not in self._files:
                at_once = 1 if self._renames else _AT_ONCE  # HDFS takes one piece after the other
                self._files[number] = self._operator.open(
                    self._name(number), "wb", concurrent=at_once
                )
            for piece in self._waiting(number):
                self._files[number].write(piece)

    def _waiting(self, number: int) -> Iterator[bytes]:
        data = b""
        if self._spilled.pop(number, 0):
            with self._path(number).open("rb") as file:
                while len(data := file.read(PIECE)) == PIECE:
                    yield data
            self._path(number).unlink()
        if data := data + b"".join(self._held.pop(number, [])):
            yield data

    def finish(self) -> None:
        """Send what is left, and end every file. Raises `OSError`, `StorageFailed`."""
        for number in sorted({*self._held, *self._spilled, *self._files}, reverse=True):
            self._send(number)
            with self._named():
                self._files.pop(number).close()
                if number == 0 and self._renames:
                    self._operator.rename(self._name(number), f"{self._folder}{PARTITION}0")

    def drop(self) -> None:
        """Leave what is not finished as it is."""
        self._files.clear()

    def _name(self, number: int) -> str:
        return f"{self._folder}{PARTITION}{number}{'.new' if number == 0 and self._renames else ''}"

    def _path(self, number: int) -> Path:
        return self._scratch / f"{PARTITION}{number}"


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
        about = await operator.stat(f"{address.namespace}/{address.name}/{FIRST_PARTITION}")
    except exceptions.NotFound:
        return False
    return bool(about.is_file)


def _stored(name: str, about: Any) -> Stored:
    return Stored(name, about.content_length, f"{about.etag or ''} {about.last_modified or ''}")


def _code(text: str) -> str:
    """Return the storage's own name of an error, as far as a text has one that is known."""
    return next((code for code in _CODES if re.search(rf"\b{code}\b", text)), "")


def own_words(text: str) -> str:
    """Return the code and the sentence of a server's error; empty where a text has none."""
    for expression in _OWN_WORDS:
        if words := expression.search(text):
            line = f"{words[1]}: {words[2]}"[:_LONGEST_WORDS]
            return "".join(c if c.isprintable() else " " for c in line)
    return ""


def _is_address(host: str) -> bool:
    """Tell whether a host is an IP address, before which no bucket's name can stand."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Reader(io.RawIOBase):
    """A file of the library as Python's own kind of file."""

    def __init__(self, file: Any, named: Any) -> None:
        self._file = file
        self._named: Any = named

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        with self._named():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1, /) -> bytes:
        with self._named():
            return bytes(self._file.read(size if size >= 0 else None))

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
