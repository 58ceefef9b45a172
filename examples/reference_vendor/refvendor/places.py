"""Where tables lie, by the URL in ``system.storage``: a directory, a bucket of S3, a folder of HDFS.

Paths are ``<namespace>/<name>`` and ``<namespace>/<name>/<file>``. Every failure is an `OSError` whose
``strerror`` says what is wrong in one line, without a credential.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import opendal
from opendal.layers import RetryLayer

from refvendor.contract import StorageFailed

ENGINES = ("file", "s3", "hdfs")
_RETRY = RetryLayer(
    max_times=4,
    min_delay=0.25,
    jitter=True,
)


class Place(Protocol):
    """A root with folders of files."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if the folder does not exist."""

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises `FileNotFoundError` if it does not exist."""

    def publish(self, folder: str, content: Mapping[str, bytes]) -> None:
        """Write the files of a folder; no reader who waits for the last of them sees a half."""


def open_place(url: str) -> Place:
    """Return the place that a URL names. Raises `StorageFailed`."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise StorageFailed("system.storage: is not a URL") from error
    if parts.scheme not in ENGINES:
        raise StorageFailed(
            f"system.storage: storage engine {parts.scheme or 'without a name'} is not supported, "
            f"this image reads and writes {', '.join(f'{engine}://' for engine in ENGINES)}"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise StorageFailed("system.storage: must be file:///<absolute directory>")
        return Directory(Path(unquote(parts.path)))
    if not parts.hostname or not parts.port or "@" in parts.netloc or parts.path not in ("", "/"):
        raise StorageFailed(
            f"system.storage: must be {parts.scheme}://<host>:<port>?<credentials and place>"
        )
    # "+" is literal here: many secrets contain it
    query = {
        key: unquote(value)
        for key, _, value in (pair.partition("=") for pair in parts.query.split("&"))
    }
    try:
        if parts.scheme == "s3":
            return Remote(_s3(parts, query), writes_at_once=True)
        return Remote(_hdfs(parts, query), writes_at_once=False)
    except opendal.exceptions.ConfigInvalid as error:
        raise StorageFailed(f"system.storage: {_words(error)}") from error


def _s3(parts: SplitResult, query: Mapping[str, str]) -> opendal.Operator:
    """Build from ``username``, ``password`` and ``bucket``; ``token`` for temporary keys, ``scheme`` for TLS."""
    settings = {
        "endpoint": f"{query.get('scheme', 'http')}://{parts.netloc}",
        "bucket": query.get("bucket", "storage"),
        "region": "us-east-1",
        "access_key_id": query.get("username", ""),
        "secret_access_key": query.get("password", ""),
    }
    if query.get("token"):
        settings["session_token"] = query["token"]
    if query.get("addressing") == "virtual":
        settings["enable_virtual_host_style"] = "true"
    alone = {
        "disable_config_load": "true",
        "disable_ec2_metadata": "true",
    }  # no credentials but these
    return opendal.Operator("s3", **settings, **alone).layer(_RETRY)


def _hdfs(parts: SplitResult, query: Mapping[str, str]) -> opendal.Operator:
    """Build from ``username`` and ``dir``. The client reads user and timeouts from the environment only."""
    if query.get("username"):
        os.environ["HADOOP_USER_NAME"] = query["username"]
    os.environ.setdefault("HADOOP_CONF_DIR", str(files("refvendor").joinpath("hadoop")))
    root = query.get("dir", "/")
    return opendal.Operator("hdfs-native", name_node=f"hdfs://{parts.netloc}", root=root).layer(
        _RETRY
    )


class Remote:
    """A bucket or a folder of HDFS; of what is published the last file comes last."""

    def __init__(self, operator: opendal.Operator, *, writes_at_once: bool) -> None:
        """``writes_at_once``: a file is there complete or not at all, as in S3; else it is renamed when it is."""
        self._operator = operator
        self._writes_at_once = writes_at_once

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        try:
            found = self._operator.list(f"{folder}/")
            return [
                entry.name for entry in found if entry.path.startswith(f"{folder}/")
            ]  # HDFS lists a file as well
        except opendal.exceptions.NotFound:
            return []
        except _FAILURES as error:
            raise _failure(error) from error

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        try:
            return bytes(self._operator.read(path))
        except _FAILURES as error:
            raise _failure(error) from error

    def publish(self, folder: str, content: Mapping[str, bytes]) -> None:
        """Write one file after the other."""
        target = folder if self._writes_at_once else f"{folder}/.{secrets.token_hex(8)}.new"
        try:
            for name, data in content.items():
                self._operator.write(f"{target}/{name}", data)
            if target != folder:
                for name in content:
                    self._operator.rename(f"{target}/{name}", f"{folder}/{name}")
        except _FAILURES as error:
            raise _failure(error) from error
        finally:
            if target != folder:
                with suppress(*_FAILURES):
                    self._operator.remove_all(f"{target}/")


_FAILURES = (
    opendal.exceptions.Unexpected,
    opendal.exceptions.NotFound,
    opendal.exceptions.PermissionDenied,
    opendal.exceptions.ConfigInvalid,
    opendal.exceptions.RateLimited,
)


def _failure(error: Exception) -> OSError:
    kind = FileNotFoundError if isinstance(error, opendal.exceptions.NotFound) else OSError
    return kind(errno.ENOENT if kind is FileNotFoundError else errno.EIO, _words(error))


def _words(error: Exception) -> str:
    """Return the server's own word for what is wrong, or the innermost cause; what else is there may name keys."""
    text = str(error)
    if code := re.search(r'S3Error \{ code: "(\w+)"', text):
        return f"the S3 server returned {code[1]}"
    words = text.partition(" => ")[2].partition("\n")[0]
    if words == "send http request":
        words = text.partition("\nSource:\n")[2].strip().partition("\n")[0]
    return (
        words.partition(": [")[0] or type(error).__name__
    )  # without a list of all servers and their figures


class Directory:
    """A directory; of a folder that is published the last file is put in place last."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        path = self._root / folder
        return [entry.name for entry in path.iterdir()] if path.is_dir() else []

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        try:
            return (self._root / path).read_bytes()
        except (NotADirectoryError, IsADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error

    def publish(self, folder: str, content: Mapping[str, bytes]) -> None:
        """Write the files one after the other, in place of what an earlier attempt left.

        The folder itself stays: it may be a mount.
        """
        target = self._root / folder
        target.mkdir(parents=True, exist_ok=True)
        for entry in target.iterdir():
            if entry.name not in content:
                entry.unlink()
        for name, data in content.items():
            part = target / f".{name}"
            part.write_bytes(data)
            part.rename(target / name)
