"""The storage behind the URL in ``system.storage``: a directory, a bucket of S3 or a folder of
HDFS.

Paths are ``<namespace>/<name>`` and ``<namespace>/<name>/<file>``. Every failure is an `OSError`
whose ``strerror`` describes it in one line, without a credential.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

import opendal
from opendal.layers import RetryLayer

from refvendor.contract import StorageFailed

SCHEMES = ("file", "s3", "hdfs")
_RETRY = RetryLayer(
    max_times=4,
    min_delay=0.25,
    jitter=True,
)
_OPENDAL_ERRORS = (
    opendal.exceptions.Unexpected,
    opendal.exceptions.NotFound,
    opendal.exceptions.PermissionDenied,
    opendal.exceptions.ConfigInvalid,
    opendal.exceptions.RateLimited,
)


class StorageEngine(Protocol):
    """A root with folders of files."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if the folder does not exist."""

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises `FileNotFoundError` if it does not exist."""

    def publish(
        self,
        folder: str,
        content: Mapping[str, bytes],
    ) -> None:
        """Write the files of a folder, so that all of them are complete when the last one
        appears.
        """


def open_engine(url: str) -> StorageEngine:
    """Return the engine for a URL.

    Raises `StorageFailed` if the URL is invalid or its scheme is not supported.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise StorageFailed("system.storage: is not a URL") from error
    if parts.scheme not in SCHEMES:
        raise StorageFailed(
            f"system.storage: storage engine {parts.scheme or 'without a name'} is not supported, "
            f"this image reads and writes {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
        )
    if parts.scheme == "file":
        return _open_directory(parts)
    has_path = parts.path not in ("", "/")
    if not parts.hostname or not port or "@" in parts.netloc or has_path:
        raise StorageFailed(
            f"system.storage: must be {parts.scheme}://<host>:<port>?<credentials and place>"
        )
    try:
        return _open_remote(parts)
    except opendal.exceptions.ConfigInvalid as error:
        raise StorageFailed(f"system.storage: {_describe(error)}") from error


def _open_directory(parts: SplitResult) -> Directory:
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise StorageFailed("system.storage: must be file:///<absolute directory>")
    return Directory(Path(unquote(parts.path)))


def _open_remote(parts: SplitResult) -> RemoteFolder:
    query = _parse_query(parts.query)
    if parts.scheme == "s3":
        return RemoteFolder(
            _s3_operator(parts, query),
            writes_are_atomic=True,
        )
    if query.get("token"):  # of HDFS with Kerberos
        return RemoteFolder(
            _web_operator(query),
            writes_are_atomic=False,
            rename=partial(_rename_by_web, query),
        )
    return RemoteFolder(
        _hdfs_operator(parts, query),
        writes_are_atomic=False,
    )


def _parse_query(query: str) -> dict[str, str]:
    """Return the values of a query. Unlike in forms, "+" is literal: many secrets contain it."""
    values = {}
    for pair in query.split("&"):
        key, _, value = pair.partition("=")
        values[key] = unquote(value)
    return values


def _s3_operator(
    parts: SplitResult,
    query: Mapping[str, str],
) -> opendal.Operator:
    """Build from ``username``, ``password`` and ``bucket``; ``token`` for temporary keys,
    ``scheme`` for TLS.
    """
    settings = {
        "endpoint": f"{query.get('scheme', 'http')}://{parts.netloc}",
        "bucket": query.get("bucket", "storage"),
        "region": "us-east-1",
        "access_key_id": query.get("username", ""),
        "secret_access_key": query.get("password", ""),
        # no credentials but the URL's
        "disable_config_load": "true",
        "disable_ec2_metadata": "true",
    }
    if query.get("token"):
        settings["session_token"] = query["token"]
    if query.get("addressing") == "virtual":
        settings["enable_virtual_host_style"] = "true"
    return opendal.Operator("s3", **settings).layer(_RETRY)


def _hdfs_operator(
    parts: SplitResult,
    query: Mapping[str, str],
) -> opendal.Operator:
    """Build from ``username`` and ``dir``.

    The client reads user and timeouts from the environment only.
    """
    if query.get("username"):
        os.environ["HADOOP_USER_NAME"] = query["username"]
    os.environ.setdefault(
        "HADOOP_CONF_DIR",
        str(files("refvendor").joinpath("hadoop")),
    )
    operator = opendal.Operator(
        "hdfs-native",
        name_node=f"hdfs://{parts.netloc}",
        root=query.get("dir", "/"),
    )
    return operator.layer(_RETRY)


def _web_operator(query: Mapping[str, str]) -> opendal.Operator:
    """Build from ``web``, ``dir`` and ``token``, the run's delegation token, by WebHDFS."""
    operator = opendal.Operator(
        "webhdfs",
        endpoint=query["web"],
        root=query.get("dir", "/"),
        delegation=query["token"],
        disable_list_batch="true",
    )
    return operator.layer(_RETRY)


def _rename_by_web(
    query: Mapping[str, str],
    source: str,
    target: str,
) -> None:
    """Rename a file by WebHDFS, which opendal does not offer; replace the target.

    Raises `OSError`.
    """
    root = query.get("dir", "/").rstrip("/")
    _request_by_web(query, "DELETE", f"{root}/{target}", op="DELETE")
    is_renamed = _request_by_web(
        query,
        "PUT",
        f"{root}/{source}",
        op="RENAME",
        destination=f"{root}/{target}",
    )
    if not is_renamed:
        raise OSError(errno.EIO, "WebHDFS did not rename a file")


def _request_by_web(
    query: Mapping[str, str],
    method: str,
    path: str,
    **parameters: str,
) -> bool:
    """Return whether an operation of WebHDFS changed anything. Raises `OSError`."""
    values = urlencode(parameters | {"delegation": query["token"]}, quote_via=quote)
    url = f"{query['web']}/webhdfs/v1{quote(path)}?{values}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as r:
            return bool(json.load(r)["boolean"])
    except urllib.error.HTTPError as error:  # its URL has the token
        raise OSError(errno.EIO, f"WebHDFS answered {error.code}") from None


class Directory:
    """A local or mounted directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if the folder does not exist."""
        path = self._root / folder
        return [entry.name for entry in path.iterdir()] if path.is_dir() else []

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises `FileNotFoundError` if it does not exist."""
        try:
            return (self._root / path).read_bytes()
        except (NotADirectoryError, IsADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error

    def publish(
        self,
        folder: str,
        content: Mapping[str, bytes],
    ) -> None:
        """Replace the files of an earlier attempt, one after the other.

        The folder itself stays: it may be a mount.
        """
        target = self._root / folder
        target.mkdir(
            parents=True,
            exist_ok=True,
        )
        for entry in target.iterdir():
            if entry.name not in content:
                entry.unlink()
        for name, data in content.items():
            incomplete = target / f".{name}"
            incomplete.write_bytes(data)
            incomplete.rename(target / name)


class RemoteFolder:
    """A bucket, or a folder of HDFS."""

    def __init__(
        self,
        operator: opendal.Operator,
        *,
        writes_are_atomic: bool,
        rename: Callable[[str, str], None] | None = None,
    ) -> None:
        """``writes_are_atomic``: a file appears when it is complete, as in S3.

        Others are written under another name and then renamed, by ``rename`` (None: by the
        operator).
        """
        self._operator = operator
        self._rename = rename or operator.rename
        self._writes_are_atomic = writes_are_atomic

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if the folder does not exist."""
        try:
            entries = list(self._operator.list(f"{folder}/"))
        except opendal.exceptions.NotFound:
            return []
        except _OPENDAL_ERRORS as error:
            raise _os_error(error) from error
        # HDFS lists a file as a folder that contains itself, and WebHDFS also the folder
        paths = [entry.path for entry in entries if entry.path != f"{folder}/"]
        return [path.rpartition("/")[2] for path in paths if path.startswith(f"{folder}/")]

    def read(self, path: str) -> bytes:
        """Return a file's content. Raises `FileNotFoundError` if it does not exist."""
        try:
            return bytes(self._operator.read(path))
        except _OPENDAL_ERRORS as error:
            raise _os_error(error) from error

    def publish(
        self,
        folder: str,
        content: Mapping[str, bytes],
    ) -> None:
        """Write the files, one after the other."""
        try:
            if self._writes_are_atomic:
                self._write(folder, content)
            else:
                self._write_and_rename(folder, content)
        except _OPENDAL_ERRORS as error:
            raise _os_error(error) from error

    def _write(
        self,
        folder: str,
        content: Mapping[str, bytes],
    ) -> None:
        for name, data in content.items():
            self._operator.write(f"{folder}/{name}", data)

    def _write_and_rename(
        self,
        folder: str,
        content: Mapping[str, bytes],
    ) -> None:
        staging = f"{folder}/.{secrets.token_hex(8)}.new"
        try:
            self._write(staging, content)
            self._check_lengths(staging, content)
            for name in content:
                self._rename(f"{staging}/{name}", f"{folder}/{name}")
        finally:
            with suppress(*_OPENDAL_ERRORS):
                self._operator.remove_all(f"{staging}/")

    def _check_lengths(
        self,
        folder: str,
        content: Mapping[str, bytes],
    ) -> None:
        """Raise `OSError` if a file is incomplete: WebHDFS reports success beyond a quota, too."""
        for name, data in content.items():
            length = self._operator.stat(f"{folder}/{name}").content_length
            if length != len(data):
                text = f"the storage has {length} of {len(data)} bytes, it may be full"
                raise OSError(errno.EIO, text)


def _os_error(error: Exception) -> OSError:
    if isinstance(error, opendal.exceptions.NotFound):
        return FileNotFoundError(errno.ENOENT, _describe(error))
    return OSError(errno.EIO, _describe(error))


def _describe(error: Exception) -> str:
    """Return the server's error code or the innermost cause.

    The rest of the error's text may contain keys.
    """
    text = str(error)
    code = re.search(r'S3Error \{ code: "(\w+)"', text)
    if code is not None:
        return f"the S3 server returned {code[1]}"
    description = text.partition(" => ")[2].partition("\n")[0]
    if description == "send http request":
        description = text.partition("\nSource:\n")[2].strip().partition("\n")[0]
    # HDFS appends a list of all servers with their figures
    return description.partition(": [")[0] or type(error).__name__
