"""Reads objects of S3 over plain HTTP, by requests that the library (opendal) signs.

The library's own reader takes twice the CPU time. The node uses that reader only over TLS, which
this module cannot do.
"""

import io
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opendal import exceptions

T = TypeVar("T")

_FIRST_PAUSE = 0.2  # seconds before the second try; doubled before each further one
_PIECE = 1024 * 1024  # bytes of one read while an object is read to its end
_MAX_ERROR = 64 * 1024  # bytes of an error response that are read
# HTTP status -> the exception of the library; `Unexpected` for all others.
_ERRORS = {
    404: exceptions.NotFound,
    403: exceptions.PermissionDenied,
}


class ObjectReader:
    """An object of S3 as a file. A failed read is repeated from the same position.

    Raises the library's exceptions, with the server's own words as their text.
    """

    def __init__(
        self,
        sign: Callable[[], Any],
        seconds: float,
        retries: int,
    ) -> None:
        """Read the object for which ``sign`` returns a signed request.

        ``seconds`` bounds the connection and each read; ``retries`` is how often a failed request
        or read is repeated.
        """
        self._sign = sign
        self._seconds = seconds
        self._retries = retries
        self._position = 0
        self._size: int | None = None  # of the object; None before the first response
        self._etag = ""
        self._connection: HTTPConnection | None = None
        self._response: HTTPResponse | None = None

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a byte and return its position.

        ``offset`` and ``whence`` have the meaning that Python's files give them.
        """
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
        """Return up to ``size`` bytes, b"" only at the end of the object; None: all that follow."""
        if size is None:
            return b"".join(self._read_rest())
        limit = size

        def read_some() -> bytes:
            return self._read_some(limit)

        return self._retry(read_some)

    def _read_rest(self) -> Iterator[bytes]:
        """Yield the bytes up to the end of the object, piece by piece.

        A piece has at most `_PIECE` bytes.
        """
        piece = self.read(_PIECE)
        while piece:
            yield piece
            piece = self.read(_PIECE)

    def close(self) -> None:
        """Close the connection.

        The next read opens another one, and continues at the same position.
        """
        if self._response is not None:
            self._response.close()
        if self._connection is not None:
            self._connection.close()
        self._response = None
        self._connection = None

    def _read_some(self, size: int) -> bytes:
        """Return up to ``size`` bytes without a retry; b"" only at the end of the object."""
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
        """Call a function; after a failure of the connection, call it again after a pause.

        Raises `Unexpected` with the text of the last failure. Other exceptions, such as `NotFound`,
        are raised without another call.
        """
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
        """Request the object from the position on.

        If it has changed since the first request, the server refuses this one (by ``if-match``).
        """
        signed = self._sign()
        url = urlsplit(signed.url)
        headers = dict(signed.headers)
        if self._position:
            headers["range"] = f"bytes={self._position}-"
        if self._etag:
            headers["if-match"] = self._etag
        self._connection = HTTPConnection(
            url.netloc,
            timeout=self._seconds,
        )
        self._connection.request(
            signed.method,
            f"{url.path}?{url.query}",
            headers=headers,
        )
        self._response = self._connection.getresponse()
        self._check_response(self._response)

    def _check_response(self, response: HTTPResponse) -> None:
        """Note size and etag of the object from a response.

        Raises the error that the response reports, as an exception of the library.
        """
        if response.status in (200, 206):
            self._check_range(response)
        elif response.status == 416:  # the position is past the end
            self._size = self._position
        else:
            text = response.read(_MAX_ERROR).decode(errors="replace")
            raise _ERRORS.get(response.status, exceptions.Unexpected)(text)

    def _check_range(self, response: HTTPResponse) -> None:
        """Note size and etag of the object from a response with content.

        Raises `HTTPException` if the content does not begin at the requested position, or if the
        response does not name its length.
        """
        expected = 206 if self._position else 200
        if response.status != expected or response.length is None:
            raise HTTPException("it serves no ranges, or names no length")
        self._size = self._position + response.length
        self._etag = response.getheader("etag", "")
