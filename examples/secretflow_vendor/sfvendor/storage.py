"""A run's storage: a folder, a bucket of S3, or a folder of HDFS.

Paths are ``<namespace>/<name>``, and ``<namespace>/<name>/<file>``.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    import opendal

# Repeats of a failed request: together a minute, as results of long work may wait for a storage.
RETRIES = 7
FIRST_PAUSE = 0.5  # seconds; each further pause is twice as long
# Codes of errors in opendal's texts: of HDFS's tokens, of S3, of WebHDFS, of HDFS itself.
CODES = (
    r"\$(InvalidToken)",
    r'code: "(\w+)"',
    r'exception: "(\w+)"',
    r"RPC error: [\w.$]+\.(\w+)",
)
# How codes begin, and what they mean.
MEANINGS = {
    "NoSuchBucket": "the bucket does not exist",
    "NoSuchKey|FileNotFound": "it does not exist",
    "QuotaExceeded|DSQuota": "the storage is full",
    "Expired|InvalidToken": "the credentials have expired or are not valid",
    "AccessDenied|AccessControl|InvalidAccessKey|Signature": "access is denied",
}


class StorageFailed(Exception):
    """A file cannot be read or written; the text contains no credential."""


class Storage(Protocol):
    """The place of a run's inputs and outputs. Every method raises `StorageFailed`."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file in place of an earlier one."""


def open_storage(url: str) -> Storage:
    """Return the storage at an address of ``system.storage``. Raises `StorageFailed`."""
    address = urlsplit(url)
    query = query_values(address.query)
    if address.scheme == "file":
        return Folder(Path(unquote(address.path)))
    if address.scheme == "s3":
        return Remote("s3", s3_settings(address, query))
    if address.scheme != "hdfs":
        raise StorageFailed("system.storage begins with none of file://, s3:// and hdfs://")
    if query.get("token"):
        return WebHdfs(query)
    # The client takes the user from the environment only.
    os.environ["HADOOP_USER_NAME"] = query.get("username", "")
    settings = {
        "name_node": f"hdfs://{address.netloc}",
        "root": query.get("dir", "/"),
    }
    return Remote("hdfs-native", settings)


def query_values(query: str) -> dict[str, str]:
    """Return the values of a query. Unlike in forms, "+" is literal: many secrets contain it."""
    pairs = [pair.partition("=") for pair in query.split("&")]
    return {name: unquote(value) for name, _, value in pairs}


def s3_settings(
    address: SplitResult,
    query: Mapping[str, str],
) -> dict[str, str]:
    """Return opendal's settings of a bucket, without any credentials but the address's."""
    settings = {
        "endpoint": f"{query.get('scheme', 'http')}://{address.netloc}",
        "bucket": query.get("bucket", ""),
        "region": query.get("region", "us-east-1"),
        "access_key_id": query.get("username", ""),
        "secret_access_key": query.get("password", ""),
        "session_token": query.get("token", ""),
        "disable_config_load": "true",
        "disable_ec2_metadata": "true",
    }
    if query.get("addressing") == "virtual":
        settings["enable_virtual_host_style"] = "true"
    return {name: value for name, value in settings.items() if value}


class Folder:
    """A folder that the container shares with its node."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if it does not exist."""
        path = self._root / folder
        if not path.is_dir():
            return []
        return [file.name for file in path.iterdir()]

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        try:
            return (self._root / path).read_bytes()
        except OSError as error:
            raise StorageFailed(str(error.strerror)) from None

    def write(self, path: str, content: bytes) -> None:
        """Write a file in place of an earlier one."""
        file = self._root / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        except OSError as error:
            raise StorageFailed(str(error.strerror)) from None


class Remote:
    """A bucket of S3, or a folder of HDFS, by one of opendal's services."""

    def __init__(
        self,
        service: str,
        settings: Mapping[str, str],
    ) -> None:
        """Raises `StorageFailed`."""
        self._operator = open_operator(service, settings)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if it does not exist."""
        try:
            paths = [entry.path for entry in self._operator.list(f"{folder}/")]
        except Exception as error:
            raise StorageFailed(cause_of(error)) from None
        return [path.removeprefix(f"{folder}/") for path in paths]

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        try:
            return bytes(self._operator.read(path))
        except Exception as error:
            raise StorageFailed(cause_of(error)) from None

    def write(self, path: str, content: bytes) -> None:
        """Write a file in place of an earlier one."""
        try:
            self._operator.write(path, content)
        except Exception as error:
            raise StorageFailed(cause_of(error)) from None


class WebHdfs(Remote):
    """A folder of HDFS with Kerberos, by a run's delegation token."""

    def __init__(self, query: Mapping[str, str]) -> None:
        settings = {
            "endpoint": query.get("web", ""),
            "root": query.get("dir", "/"),
            "delegation": query["token"],
            "disable_list_batch": "true",
        }
        super().__init__("webhdfs", settings)

    def write(self, path: str, content: bytes) -> None:
        """Write a file, and read its length: a full DataNode may report success."""
        super().write(path, content)
        try:
            length = self._operator.stat(path).content_length
        except Exception as error:
            raise StorageFailed(cause_of(error)) from None
        if length != len(content):
            raise StorageFailed(f"HDFS has {length} of {len(content)} bytes, it may be full")


def open_operator(
    service: str,
    settings: Mapping[str, str],
) -> opendal.Operator:
    """Return opendal's operator, which repeats failed requests. Raises `StorageFailed`."""
    # Imported late: runs with data in a folder do without it.
    import opendal  # noqa: PLC0415

    provide_authorities()
    retries = opendal.layers.RetryLayer(
        max_times=RETRIES,
        min_delay=FIRST_PAUSE,
        jitter=True,
    )
    try:
        return opendal.Operator(service, **settings).layer(retries)
    except opendal.exceptions.ConfigInvalid as error:
        raise StorageFailed(f"system.storage cannot be used: {cause_of(error)}") from None


def provide_authorities() -> None:
    """Use certifi's certificate authorities in an image without any.

    Opendal needs some even for plain HTTP.
    """
    import certifi  # noqa: PLC0415

    paths = ssl.get_default_verify_paths()
    has_folder = paths.capath is not None and bool(os.listdir(paths.capath))
    if not paths.cafile and not has_folder:
        os.environ["SSL_CERT_FILE"] = certifi.where()


def cause_of(error: Exception) -> str:
    """Return what went wrong, with the server's own words.

    Opendal's errors have no common class. The rest of their texts may contain credentials.
    """
    words = words_of(str(error)) or type(error).__name__
    for pattern, meaning in MEANINGS.items():
        if re.match(pattern, words):
            return f"{meaning} ({words})"
    return words


def words_of(text: str) -> str:
    """Return the server's code in opendal's text, or else the innermost cause."""
    for pattern in CODES:
        code = re.search(pattern, text)
        if code is not None:
            return code[1]
    cause = re.search(r"\nSource:\n +(.*)", text) or re.search(r" => (.*)", text)
    if cause is None:
        return ""
    # "?" may begin a token, ": [" a list of all of HDFS's servers
    return re.split(r"\?|: \[", cause[1])[0]
