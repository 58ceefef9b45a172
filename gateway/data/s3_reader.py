"""Reads objects of S3 over plain HTTP, with requests that the library signs.

The library's own reader costs twice the CPU. With TLS the library is used, as it knows TLS better.
"""

import io
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opendal import exceptions

T = TypeVar("T")

_FIRST_PAUSE = 0.2  # seconds before the second try; doubled before each further one
_PIECE = 1024 * 1024
_MAX_ERROR = 64 * 1024  # bytes of an error response that are read
_ERRORS = {404: exceptions.NotFound, 403: exceptions.PermissionDenied}


class ObjectReader:
    """An object as a file; failed reads are tried again from the same position.

    Raises the library's exceptions, with the server's own words.
    """

    def __init__(
        self,
        sign: Callable[[], Any],
        seconds: float,
        retries: int,
    ) -> None:
        """``sign`` returns a signed request for the whole object; ``seconds`` bounds each step."""
        self._sign = sign
        self._seconds = seconds
        self._retries = retries
        self._position = 0
        self._size: int | None = None
        self._etag = ""
        self._connection: HTTPConnection | None = None
        self._response: HTTPResponse | None = None

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a byte."""
        if whence == io.SEEK_END and self._size is None:
            self._retry(self._request)
        bases = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._position,
            io.SEEK_END: self._size or 0,
        }
        position = bases[whence] + offset
        if position != self._position:
            self.close()
            self._position = position
        return position

    def read(self, size: int | None = None, /) -> bytes:
        """Return up to ``size`` bytes, fewer at the end of the object; None: all that follow."""
        if size is not None:
            return self._retry(lambda: self._read_some(size))
        pieces = []
        piece = self.read(_PIECE)
        while piece:
            pieces.append(piece)
            piece = self.read(_PIECE)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the connection."""
        if self._response is not None:
            self._response.close()
        if self._connection is not None:
            self._connection.close()
        self._response = None
        self._connection = None

    def _read_some(self, size: int) -> bytes:
        if self._response is None:
            self._request()
        assert self._response is not None
        assert self._size is not None
        if self._position >= self._size:
            return b""
        data = self._response.read(size)
        if size and not data:
            raise ConnectionError("it ended before its end")
        self._position += len(data)
        return data

    def _retry(self, work: Callable[[], T]) -> T:
        tries = 0
        while True:
            try:
                return work()
            except (OSError, HTTPException, exceptions.Unexpected) as error:
                self.close()
                if tries == self._retries:
                    text = "timeout" if isinstance(error, TimeoutError) else str(error)
                    raise exceptions.Unexpected(text) from error
            time.sleep(_FIRST_PAUSE * 2**tries)
            tries += 1

    def _request(self) -> None:
        """Request the object from the position on, unchanged since the first request."""
        signed = self._sign()
        url = urlsplit(signed.url)
        headers = dict(signed.headers)
        if self._position:
            headers["range"] = f"bytes={self._position}-"
        if self._etag:
            headers["if-match"] = self._etag
        self._connection = HTTPConnection(url.netloc, timeout=self._seconds)
        self._connection.request(signed.method, f"{url.path}?{url.query}", headers=headers)
        self._response = self._connection.getresponse()
        self._check_response(self._response)

    def _check_response(self, response: HTTPResponse) -> None:
        if response.status in (200, 206):
            expected = 206 if self._position else 200
            if response.status != expected or response.length is None:
                raise HTTPException("it serves no ranges, or names no length")
            self._size = self._position + response.length
            self._etag = response.getheader("etag", "")
        elif response.status == 416:  # the position is past the end
            self._size = self._position
        else:
            text = response.read(_MAX_ERROR).decode(errors="replace")
            raise _ERRORS.get(response.status, exceptions.Unexpected)(text)
