"""Reads objects of S3 over a connection of its own: what the library does for each piece costs as much CPU again.

Without TLS only, which the library knows better. The requests are those that it signs.
"""

import io
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opendal import exceptions

T = TypeVar("T")

_PAUSE = 0.2
"""seconds before the second try; before each further one, twice as many"""
_PIECE = 1024 * 1024
_MOST_ERROR = 64 * 1024
"""bytes of an error that are read"""


class ObjectReader:
    """An object that is read like the library's own files. What fails is tried again from where it was.

    Raises what the library raises, with the server's own words.
    """

    def __init__(
        self,
        sign: Callable[[], Any],
        seconds: float,
        retries: int,
    ) -> None:
        """``sign`` returns a request for the whole object, ``seconds`` is for each step of it."""
        self._sign = sign
        self._seconds = seconds
        self._retries = retries
        self._at = 0
        self._size: int | None = None
        self._etag = ""
        self._connection: HTTPConnection | None = None
        self._answer: HTTPResponse | None = None

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a byte."""
        if whence == io.SEEK_END and self._size is None:
            self._trying(self._ask)
        target = (
            offset
            + {
                io.SEEK_SET: 0,
                io.SEEK_CUR: self._at,
                io.SEEK_END: self._size or 0,
            }[whence]
        )
        if target != self._at:
            self.close()
            self._at = target
        return target

    def read(self, size: int | None = None, /) -> bytes:
        """Return so many bytes, fewer where the object ends; None: all that follow."""
        if size is not None:
            return self._trying(lambda: self._some(size))
        return b"".join(iter(lambda: self.read(_PIECE), b""))

    def close(self) -> None:
        """End the connection."""
        for one in (self._answer, self._connection):
            if one is not None:
                one.close()
        self._answer = self._connection = None

    def _some(self, size: int) -> bytes:
        if self._answer is None:
            self._ask()
        assert self._answer is not None and self._size is not None
        data = self._answer.read(size) if self._at < self._size else b""
        if not data and size and self._at < self._size:
            raise ConnectionError("it ended before its end")
        self._at += len(data)
        return data

    def _trying(self, work: Callable[[], T]) -> T:
        tries = 0
        while True:
            try:
                return work()
            except (OSError, HTTPException, exceptions.Unexpected) as error:
                self.close()
                if tries == self._retries:
                    what = "timeout" if isinstance(error, TimeoutError) else str(error)
                    raise exceptions.Unexpected(what) from error
            time.sleep(_PAUSE * 2**tries)
            tries += 1

    def _ask(self) -> None:
        signed = self._sign()
        url = urlsplit(signed.url)
        self._connection = HTTPConnection(url.netloc, timeout=self._seconds)
        headers = dict(signed.headers) | ({"range": f"bytes={self._at}-"} if self._at else {})
        headers |= {"if-match": self._etag} if self._etag else {}
        self._connection.request(signed.method, f"{url.path}?{url.query}", headers=headers)
        self._answer = answer = self._connection.getresponse()
        if answer.status in (200, 206):
            if answer.status != (206 if self._at else 200) or answer.length is None:
                raise HTTPException("it serves no ranges, or names no length")
            self._size = self._at + answer.length
            self._etag = answer.getheader("etag", "")
            return
        if answer.status == 416:  # nothing is there any more
            self._size = self._at
            return
        text = answer.read(_MOST_ERROR).decode(errors="replace")
        kinds = {404: exceptions.NotFound, 403: exceptions.PermissionDenied}
        raise kinds.get(answer.status, exceptions.Unexpected)(text)
