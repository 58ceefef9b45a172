"""Delegation tokens of HDFS with Kerberos: one for each run, by WebHDFS.

A token has the rights of the node's principal, and ends with the run, or after the time that the
cluster's ``dfs.namenode.delegation.token.renew-interval`` sets.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from gateway.data.remote import TIMEOUT, Remote
from gateway.data.spnego import NoTicket, authorization
from gateway.errors import StorageAway, StorageFailed

_KIND = b"HDFS_DELEGATION_TOKEN"  # as clients of the NameNode's own protocol look for it
_FILE_MODE = 0o600
# Hadoop's encoding of whole numbers: from -112 to 127 in one byte; a smaller first byte says how
# many bytes follow.
_SMALLEST_LENGTH = -112
_LARGEST_IN_ONE_BYTE = 127


class TokenFiles:
    """The tokens of this gateway's runs, each in a file, so that a restarted gateway cancels it."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made at the first token."""
        self._folder = folder

    def write(self, run_id: str, token: str) -> None:
        """Store a run's token. Raises `OSError`."""
        self._folder.mkdir(
            parents=True,
            exist_ok=True,
            mode=0o700,
        )
        part = self._file(run_id).with_suffix(".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        with os.fdopen(descriptor, "w") as out:
            out.write(token)
        part.replace(self._file(run_id))

    def read(self, run_id: str) -> str:
        """Return a run's token; "" without one."""
        try:
            return self._file(run_id).read_text()
        except FileNotFoundError:
            return ""

    def delete(self, run_id: str) -> None:
        """Delete a run's token, if there is one."""
        self._file(run_id).unlink(missing_ok=True)

    def _file(self, run_id: str) -> Path:
        """Return the file of a run's token."""
        return self._folder / run_id


def for_run(
    remote: Remote,
    run_id: str,
    tokens: TokenFiles,
) -> Remote:
    """Return a storage with a delegation token for a run, which is stored until `end`.

    Raises `StorageFailed`.
    """
    end(remote, run_id, tokens)  # a token of a launch that was interrupted
    token = fetch(remote)
    tokens.write(run_id, token)
    return replace(remote, token=token)


def end(
    remote: Remote,
    run_id: str,
    tokens: TokenFiles,
) -> None:
    """Cancel the token of a run, if it has one. Raises `StorageFailed`."""
    token = tokens.read(run_id)
    if token:
        cancel(remote, token)
        tokens.delete(run_id)


def fetch(remote: Remote) -> str:
    """Return a new token for a run in the form of Hadoop's URLs.

    Raises `StorageFailed`.
    """
    response = _request(remote, "GET", "GETDELEGATIONTOKEN", renewer=remote.username)
    try:
        token = response.json()["Token"]["urlString"]
        return _for_name_node(str(token), f"{remote.host}:{remote.port}")
    except (ValueError, LookupError, TypeError) as error:
        raise StorageFailed(f"storage {remote.name} (hdfs) gives no delegation token") from error


def cancel(remote: Remote, token: str) -> None:
    """Cancel a token. Does nothing for a token that has ended. Raises `StorageFailed`."""
    _request(remote, "PUT", "CANCELDELEGATIONTOKEN", token=token)


def _request(
    remote: Remote,
    method: str,
    operation: str,
    **parameters: str,
) -> httpx.Response:
    """Return the response of WebHDFS to an operation as the node's principal.

    Raises `StorageFailed`.
    """
    remote.use_keytab()
    try:
        response = httpx.request(
            method,
            f"{remote.web}/webhdfs/v1/",
            params={"op": operation, **parameters},
            headers={"authorization": authorization(str(urlsplit(remote.web).hostname))},
            timeout=TIMEOUT,
            trust_env=False,
        )
    except NoTicket as error:
        text = f"storage {remote.name} (hdfs) gets no Kerberos ticket: {error}"
        raise StorageFailed(text) from error
    except httpx.HTTPError as error:
        text = f"storage {remote.name} (hdfs) cannot be reached by WebHDFS: {type(error).__name__}"
        raise StorageAway(text) from None
    if response.is_success or "InvalidToken" in response.text:
        return response
    text = f"storage {remote.name} (hdfs) denies {operation}: HTTP {response.status_code}"
    raise StorageFailed(text)


def _for_name_node(url_string: str, service: str) -> str:
    """Return a token of WebHDFS as one for the NameNode's own protocol.

    Clients choose a token by its kind and service, neither of which the NameNode checks. Raises
    `ValueError` for anything that is not a token.
    """
    padding = "=" * (-len(url_string) % 4)
    identifier, password, *_ = _fields(urlsafe_b64decode(url_string + padding))
    token = b""
    for field in (identifier, password, _KIND, service.encode()):
        token += _with_length(field)
    return urlsafe_b64encode(token).decode().rstrip("=")


def _fields(data: bytes) -> Iterator[bytes]:
    """Yield the fields of one of Hadoop's records, each of which begins with its length."""
    position = 0
    while position < len(data):
        first = int.from_bytes(data[position : position + 1], "big", signed=True)
        position += 1
        length = first
        if first < _SMALLEST_LENGTH:  # the length itself follows
            size = _SMALLEST_LENGTH - first
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if length < 0 or position + length > len(data):
            raise ValueError("not one of Hadoop's records")
        yield data[position : position + length]
        position += length


def _with_length(field: bytes) -> bytes:
    """Return a field with its length before it, in Hadoop's encoding of whole numbers."""
    length = len(field)
    if length <= _LARGEST_IN_ONE_BYTE:
        return bytes([length]) + field
    size = (length.bit_length() + 7) // 8
    first = (_SMALLEST_LENGTH - size).to_bytes(1, "big", signed=True)
    return first + length.to_bytes(size, "big") + field
