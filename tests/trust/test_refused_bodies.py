"""Large bodies that a real node refuses leave nothing behind in its memory."""

import http.client
import json
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.e2e.nodes import Federation, Node, wait_for
from tests.inprocess import ME, PEER, STRANGER
from tools.bench.upload import resident

MIB = 1024**2
SIZE = 30 * MIB
INVOKE = "/v1/interconn/chan/invoke"
CREATE = "/v1/interconn/schedule/job/create"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = tmp_path_factory.mktemp("nodes")
    federation = Federation(home, [ME], {"kind": "process"})
    (home / ME / "routes.yml").write_text(yaml.safe_dump({PEER: {"host": "127.0.0.1", "port": 9}}))
    with federation:
        yield federation[ME]


def envelope(source: str) -> bytes:
    names = {"source-node-id": source, "target-node-id": ME, "session-id": "s", "topic": "t", "uri": "/no"}
    metadata = {f"x-ptp-{name}": value for name, value in names.items()}
    return json.dumps({"metadata": metadata, "payload": "A" * SIZE}).encode()


@pytest.mark.parametrize(
    ("path", "headers", "made"),
    [
        (INVOKE, JSON, lambda: envelope(STRANGER)),
        (INVOKE, JSON, lambda: envelope(PEER)),
        (INVOKE, JSON, lambda: b"[" * SIZE),
        (CREATE, JSON | {"x-source-node-id": STRANGER}, lambda: b"x" * SIZE),
        (CREATE, JSON | {"x-source-node-id": PEER}, lambda: b'{"job_id": "%s"}' % (b"x" * SIZE)),
    ],
    ids=["unknown peer", "known peer", "brackets", "control of unknown", "long id"],
)
def test_nothing_is_held_after_a_refusal(
    node: Node, path: str, headers: dict[str, str], made: Callable[[], bytes]
) -> None:
    body = made()
    host = node.peer.removeprefix("http://")
    connections = [http.client.HTTPConnection(host, timeout=120) for _ in range(5)]
    try:
        for number, connection in enumerate(connections):  # they stay open
            if number == 1:
                before = resident(node)  # the allocator keeps some of the first
            connection.request("POST", path, body, headers)
            answer = json.loads(connection.getresponse().read())
            assert answer["code"] not in (0, "E0000000000"), answer
        wait_for(lambda: resident(node) - before < 100 * MIB, about="nothing of four bodies is held")
    finally:
        for connection in connections:
            connection.close()
