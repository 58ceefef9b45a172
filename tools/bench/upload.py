"""Large uploads: how fast, and how much memory the node needs for them."""

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

PIECE = 8 * 1024 * 1024
"""bytes that are sent or read in one piece"""


def write_table(file: Path, size: int) -> int:
    """Write a table of about ``size`` bytes with rows of a kilobyte; return their number."""
    rest = ",".join(f"{i}." + "0625" * 25 for i in range(10))
    count = size // (len(rest) + 11)
    with file.open("w") as stream:
        stream.write("id," + ",".join(f"x{i}" for i in range(10)) + "\n")
        for i in range(count):
            stream.write(f"{i:010d},{rest}\n")
    return count


def peak_growth(node: Node, work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what the work gives, and by how many bytes the node's resident memory grew at most
    meanwhile.
    """
    before = resident(node)
    peak = before
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.05):
            peak = max(peak, resident(node))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        result = work()
    finally:
        over.set()
        watching.join()
    return result, peak - before


def resident(node: Node) -> int:
    """Return the bytes that the node's process holds in memory."""
    status = Path(f"/proc/{node.addresses['pid']}/status").read_text()
    return (
        int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        * 1024
    )


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fetch(
    node: Node,
    namespace: str,
    name: str,
) -> None:
    """Download a table and throw it away, with next to no work for the client."""
    connection = _connection(node)
    connection.request("GET", f"/api/v1/datasets/{namespace}/{name}/download")
    answer, room = connection.getresponse(), bytearray(PIECE)
    assert answer.status == 200
    while answer.readinto(room):
        pass
    connection.close()


def send(
    node: Node,
    file: Path,
    namespace: str,
    name: str,
) -> None:
    """Upload a table whose ids are in the column id, with next to no work for the client."""
    fields = {
        "namespace": namespace,
        "name": name,
        "meta": '{"match_id_name": "id"}',
    }
    mark = (
        "-" * 24 + "b3d1f09c77a2e845"
    )  # as long as that of curl: a short one takes longer to look for
    form = "".join(
        f'--{mark}\r\ncontent-disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'
        for k, v in fields.items()
    )
    head = f'{form}--{mark}\r\ncontent-disposition: form-data; name="file"; filename="t.csv"\r\n\r\n'.encode()
    end = f"\r\n--{mark}--\r\n".encode()
    connection = _connection(node)
    connection.putrequest("POST", "/v2/component/upload/file")
    connection.putheader("content-type", f"multipart/form-data; boundary={mark}")
    connection.putheader("content-length", str(len(head) + file.stat().st_size + len(end)))
    connection.endheaders(head)
    with file.open("rb") as source:
        connection.sock.sendfile(source)
    connection.send(end)
    answer = json.loads(connection.getresponse().read())
    assert answer["code"] == 0, answer
    connection.close()


def _connection(node: Node) -> HTTPConnection:
    return HTTPConnection(urlsplit(node.operator).netloc, timeout=600)


def bare_write(operator: Operator, file: Path) -> None:
    """Send a file by the library alone."""
    with file.open("rb") as source, operator.open("bare", "wb", chunk=PIECE) as target:
        while data := source.read(PIECE):
            target.write(data)


def bare_read(operator: Operator) -> None:
    """Read by the library alone what `bare_write` sent."""
    with operator.open("bare", "rb") as source:
        while source.read(PIECE):
            pass
