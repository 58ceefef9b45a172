"""An S3 that accepts only virtual-hosted requests, as OSS does: ``python -m
tests.services.virtual_hosted``.

It prints its port.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "lake"
OBJECTS: dict[str, bytes] = {}
REFUSAL = (
    "<Error><Code>SecondLevelDomainForbidden</Code>"
    "<Message>Please use virtual hosted style to access.</Message></Error>"
)


class Store(BaseHTTPRequestHandler):
    """Keeps objects in memory."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        key, query = unquote(parts.path.removeprefix("/")), parse_qs(parts.query)
        if not str(self.headers["host"]).startswith(f"{BUCKET}."):
            self.send(403, REFUSAL.encode())
        elif self.command == "PUT":
            OBJECTS[key] = body
            self.send(200)
        elif self.command == "DELETE":
            OBJECTS.pop(key, None)
            self.send(204)
        elif self.command == "POST":  # DeleteObjects
            for name in body.decode().split("<Key>")[1:]:
                OBJECTS.pop(name.partition("</Key>")[0], None)
            self.send(200, b"<DeleteResult></DeleteResult>")
        elif not key:
            self.send(
                200,
                _listing(query.get("prefix", [""])[0]).encode(),
            )
        elif key in OBJECTS:
            self.send_object(key)
        else:
            self.send(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

    def send_object(self, key: str) -> None:
        """Send an object from the first byte of the requested range."""
        byte_range = self.headers.get("range", "bytes=0-")
        begin = int(byte_range.removeprefix("bytes=").partition("-")[0])
        status = 206
        if begin == 0:
            status = 200
        self.send(status, OBJECTS[key][begin:])

    def send(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("etag", '"1"')
        self.send_header("last-modified", "Sat, 21 Nov 2026 08:00:00 GMT")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _listing(prefix: str) -> str:
    files = ""
    for key, data in sorted(OBJECTS.items()):
        if key.startswith(prefix):
            size = f"<Size>{len(data)}</Size>"
            time = "<LastModified>2026-11-21T08:00:00.000Z</LastModified>"
            files += f'<Contents><Key>{escape(key)}</Key>{time}<ETag>"1"</ETag>{size}</Contents>'
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{files}</ListBucketResult>"


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    print(server.server_port, flush=True)
    sys.stdin.close()
    server.serve_forever()
