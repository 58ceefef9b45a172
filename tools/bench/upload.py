"""Uploads and downloads of large tables, and the memory that a node needs for them."""

import json
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opendal import Operator

from tests.e2e.nodes import Node

PIECE = 8 * 1024 * 1024  # bytes that are sent or read in one piece
_COLUMNS = 10
_SAMPLE_INTERVAL = 0.05  # seconds between two looks at a node's memory
_TIMEOUT = 600  # seconds of a request
# As long as the boundaries of curl: a node takes longer to search for a short one.
_BOUNDARY = "-" * 24 + "b3d1f09c77a2e845"
_FORM_END = f"\r\n--{_BOUNDARY}--\r\n".encode()


def write_table(file: Path, size: int) -> int:
    """Write a table of about ``size`` bytes, with rows of a kilobyte; return their number."""
    cells = ",".join(f"{number}." + "0625" * 25 for number in range(_COLUMNS))
    headings = ",".join(f"x{number}" for number in range(_COLUMNS))
    id_length = 11  # with the comma
    count = size // (len(cells) + id_length)
    with file.open("w") as stream:
        stream.write(f"id,{headings}\n")
        for row in range(count):
            stream.write(f"{row:010d},{cells}\n")
    return count


def peak_growth(
    node: Node,
    work: Callable[[], Any],
) -> tuple[Any, int]:
    """Do the work; return its result, and the largest growth of the node's memory in bytes."""
    before = resident(node)
    peak = before
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(_SAMPLE_INTERVAL):
            peak = max(peak, resident(node))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        result = work()
    finally:
        is_over.set()
        watcher.join()
    return result, peak - before


def resident(node: Node) -> int:
    """Return the resident memory of a node's process in bytes."""
    return resident_of(int(node.addresses["pid"]))


def resident_of(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    kibibytes = int(line.split()[1])
    return kibibytes * 1024


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds of the work."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fetch(node: Node, namespace: str, name: str) -> None:
    """Download a table and drop it, with next to no work for the client."""
    connection = _connection(node)
    connection.request("GET", f"/api/v1/datasets/{namespace}/{name}/download")
    response = connection.getresponse()
    assert response.status == 200
    buffer = bytearray(PIECE)
    while response.readinto(buffer):
        pass
    connection.close()


def send(
    node: Node,
    file: Path,
    namespace: str,
    name: str,
) -> None:
    """Upload a table whose ids are in the column id, with next to no work for the client."""
    connection = begin_upload(node, file.stat().st_size, namespace, name)
    with file.open("rb") as source:
        connection.sock.sendfile(source)
    finish_upload(connection)


def begin_upload(
    node: Node,
    size: int,
    namespace: str,
    name: str,
) -> HTTPConnection:
    """Begin the upload of a table of ``size`` bytes whose ids are in the column id.

    The table is then sent over the returned connection, and `finish_upload` ends the upload.
    """
    fields = {
        "namespace": namespace,
        "name": name,
        "meta": '{"match_id_name": "id"}',
    }
    parts = [_form_part(f'name="{field}"') + value for field, value in fields.items()]
    file_head = _form_part('name="file"; filename="t.csv"')
    head = "\r\n".join([*parts, file_head]).encode()
    connection = _connection(node)
    connection.putrequest("POST", "/v2/component/upload/file")
    connection.putheader("content-type", f"multipart/form-data; boundary={_BOUNDARY}")
    connection.putheader(
        "content-length",
        str(len(head) + size + len(_FORM_END)),
    )
    connection.endheaders(head)
    return connection


def finish_upload(connection: HTTPConnection) -> dict[str, Any]:
    """End an upload whose table was sent; return the data of the response."""
    connection.send(_FORM_END)
    response = json.loads(connection.getresponse().read())
    assert response["code"] == 0, response
    connection.close()
    return dict(response["data"])


def _form_part(disposition: str) -> str:
    """Return the beginning of a part of a form, up to its value."""
    return f"--{_BOUNDARY}\r\ncontent-disposition: form-data; {disposition}\r\n\r\n"


def _connection(node: Node) -> HTTPConnection:
    return HTTPConnection(
        urlsplit(node.operator).netloc,
        timeout=_TIMEOUT,
    )


def bare_write(operator: Operator, file: Path) -> None:
    """Write a file to a storage by the library alone."""
    with file.open("rb") as source, operator.open("bare", "wb", chunk=PIECE) as target:
        while data := source.read(PIECE):
            target.write(data)


def bare_read(operator: Operator) -> None:
    """Read the file of `bare_write` by the library alone."""
    with operator.open("bare", "rb") as source:
        while source.read(PIECE):
            pass
