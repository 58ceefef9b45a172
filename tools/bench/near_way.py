"""A short way into a network namespace: passes connections on to ports of its loopback address.

``python -m tools.bench.near_way ADDRESS PORT...`` runs in the namespace until its standard input
ends.
"""

import asyncio
import sys
from functools import partial

_BLOCK = 1 << 18  # bytes


async def main(address: str, ports: list[int]) -> None:
    """Serve the ports at an address until the standard input ends."""
    for port in ports:
        await asyncio.start_server(partial(_pass_on, port), address, port)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _pass_on(
    port: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(
        _copy(reader, inner_writer),
        _copy(inner_reader, writer),
    )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [int(port) for port in sys.argv[2:]]))
