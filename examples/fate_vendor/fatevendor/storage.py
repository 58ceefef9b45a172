"""Reads inputs and writes outputs in a run's storage: a folder, a bucket of S3, or HDFS.

FATE works on local files, so an input at S3 or HDFS is copied to the container first, and an output
is copied from there. Paths are ``<namespace>/<name>``.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from .task import TaskFailed

METADATA = "metadata"


class StorageFailed(TaskFailed):
    """An input or output that cannot be read or written."""


class Storage(Protocol):
    """The place of a run's inputs and outputs."""

    def fetch(self, path: str, local: Path) -> Path:
        """Return a local folder with an input's files, ``local`` if it has to be copied.

        Raises `StorageFailed`.
        """

    def publish(self, local: Path, path: str) -> None:
        """Write the files of a local folder as an output. Raises `StorageFailed`."""


def open_storage(url: str) -> Storage:
    """Return the storage of an address in ``system.storage``. Raises `StorageFailed`."""
    address = urlsplit(url)
    if address.scheme == "file":
        return Folder(Path(unquote(address.path)))
    # Imported late: runs with data in a folder do without it.
    import opendal  # noqa: PLC0415

    service, settings = remote_settings(address)
    try:
        operator = opendal.Operator(service, **settings)
    except opendal.exceptions.ConfigInvalid as error:
        raise StorageFailed(f"system.storage cannot be used: {cause_of(error)}") from None
    retries = opendal.layers.RetryLayer(max_times=4, min_delay=0.25, jitter=True)
    return Remote(operator.layer(retries))


def remote_settings(address: SplitResult) -> tuple[str, dict[str, str]]:
    """Return opendal's name of a storage's service, and its settings."""
    query = query_values(address.query)
    if address.scheme == "s3":
        return "s3", _s3_settings(address, query)
    root = query.get("dir", "/")
    if query.get("token"):  # of HDFS with Kerberos
        settings = {
            "endpoint": query.get("web", ""),
            "root": root,
            "delegation": query["token"],
            "disable_list_batch": "true",
        }
        return "webhdfs", settings
    # The client takes the user from the environment only.
    os.environ["HADOOP_USER_NAME"] = query.get("username", "")
    return "hdfs-native", {"name_node": f"hdfs://{address.netloc}", "root": root}


def query_values(query: str) -> dict[str, str]:
    """Return the values of a query. Unlike in forms, "+" is literal: many secrets contain it."""
    pairs = [pair.partition("=") for pair in query.split("&")]
    return {name: unquote(value) for name, _, value in pairs}


def _s3_settings(address: SplitResult, query: dict[str, str]) -> dict[str, str]:
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

    def fetch(self, path: str, local: Path) -> Path:
        """Return the folder of an input; nothing is copied."""
        folder = self._root / path
        for name in (METADATA, *partitions_of(folder, path)):
            if not (folder / name).exists():
                raise StorageFailed(f"input {path} cannot be read: {name} is missing")
        return folder

    def publish(self, local: Path, path: str) -> None:
        """Move the files of a local folder to an output's."""
        folder = self._root / path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in in_writing_order(local):
                shutil.move(file, folder / file.name)
        except OSError as error:
            raise StorageFailed(f"output {path} cannot be written: {error.strerror}") from None


class Remote:
    """A bucket of S3, or a folder of HDFS."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator

    def fetch(self, path: str, local: Path) -> Path:
        """Copy an input's files to a local folder."""
        local.mkdir(parents=True)
        self._copy(path, METADATA, local)
        for name in partitions_of(local, path):
            self._copy(path, name, local)
        return local

    def publish(self, local: Path, path: str) -> None:
        """Write the files of a local folder as an output, one after the other."""
        for file in in_writing_order(local):
            content = file.read_bytes()
            try:
                self._operator.write(f"{path}/{file.name}", content)
                length = self._operator.stat(f"{path}/{file.name}").content_length
            except Exception as error:
                reason = f"{file.name}: {cause_of(error)}"
                raise StorageFailed(f"output {path} cannot be written: {reason}") from None
            if length != len(content):  # WebHDFS reports success beyond a quota, too
                reason = f"{file.name}: {length} of {len(content)} bytes are there, it may be full"
                raise StorageFailed(f"output {path} cannot be written: {reason}")

    def _copy(self, path: str, name: str, local: Path) -> None:
        """Copy a file of an input to a local folder."""
        try:
            content = self._operator.read(f"{path}/{name}")
        except Exception as error:
            reason = f"{name}: {cause_of(error)}"
            raise StorageFailed(f"input {path} cannot be read: {reason}") from None
        (local / name).write_bytes(content)


def partitions_of(folder: Path, path: str) -> list[str]:
    """Return the names of an input's parts, by its metadata in a local folder."""
    try:
        metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
        count = int(metadata.get("partitions", 1))
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise StorageFailed(f"input {path} cannot be read: its metadata is invalid") from None
    return [f"data_{number}" for number in range(count)]


def in_writing_order(folder: Path) -> list[Path]:
    """Return the files of an output: ``metadata`` is the last, as it says that all are there."""
    return sorted(folder.iterdir())


def cause_of(error: Exception) -> str:
    """Return what went wrong by opendal's error, whose errors have no common class.

    The rest of its text may contain credentials, and HDFS lists all its servers there.
    """
    kind = type(error).__name__
    text = str(error)
    code = re.search(r'(?:code|exception): "(\w+)"', text)  # of S3, or of WebHDFS
    if code is not None:
        return f"{kind}, {code[1]}"
    # "?" may begin a token, ": [" the list of servers
    source = re.search(r"\nSource:\n +(.*?)(?:\?|: \[|\n|$)", text)
    if source is not None:
        return f"{kind}, {source[1]}"
    return kind
