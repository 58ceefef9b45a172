"""Partners that cost this machine almost nothing, to measure what calls to many of them cost.

`python -m tools.bench.partners DELAY PEER_URL NODE_ID:PORT...` serves one partner per node id, at a
port of loopback. Each answers every request with a success after ``DELAY`` seconds, as over a line,
and reports a started task as successful to the peers' listener at ``PEER_URL``.
"""

import asyncio
import json
import sys
from dataclasses import dataclass

import httpx

_BASE = "/v1/interconn/schedule"
_START_TASK = f"{_BASE}/task/start"
_HEAD_END = b"\r\n\r\n"
_ROLE = "host"  # of every partner
_ANSWER = b'{"code":0,"msg":"success","data":{}}'
_RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(_ANSWER)
    + _ANSWER
)


@dataclass(frozen=True)
class _Partner:
    """One partner; ``delay`` in seconds."""

    node_id: str
    delay: float
    client: httpx.AsyncClient

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection until its end."""
        try:
            while True:
                path, body = await _read_request(reader)
                await asyncio.sleep(self.delay)
                writer.write(_RESPONSE)
                if path == _START_TASK:
                    await self._report_success(json.loads(body)["task_id"])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _report_success(self, task_id: str) -> None:
        """Report a task as successful to the scheduling node."""
        report = {"task_id": task_id, "role": _ROLE, "status": "SUCCESS"}
        await asyncio.sleep(self.delay)
        headers = {"x-source-node-id": self.node_id}
        response = await self.client.post(f"{_BASE}/task/callback", json=report, headers=headers)
        assert response.json()["code"] == 0, response.text


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Return the path and the body of the next request.

    Raises `asyncio.IncompleteReadError` at the end of the connection.
    """
    head = (await reader.readuntil(_HEAD_END)).decode("latin-1").lower()
    _, path, _ = head.split(" ", 2)
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return path, await reader.readexactly(length)


async def _serve(delay: float, peer_url: str, addresses: list[str]) -> None:
    """Serve the partners for ever."""
    async with httpx.AsyncClient(base_url=peer_url, trust_env=False) as client:
        servers = []
        for address in addresses:
            node_id, port = address.split(":")
            partner = _Partner(node_id, delay, client)
            servers.append(await asyncio.start_server(partner.serve, "127.0.0.1", port))
        await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
