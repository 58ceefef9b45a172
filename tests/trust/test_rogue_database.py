"""A database from which somebody imports a table asks the client for a file of its own machine instead."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import Invalid
from gateway.store.source import Source

GREETING = (
    b"\x0a5.5.5-10.11.0-MariaDB\0"
    + b"\1\0\0\0"
    + b"a" * 8
    + b"\0"
    + b"\xff\xf7\x21\2\0\xff\x81\x15"
)
GREETING += bytes(10) + b"b" * 12 + b"\0mysql_native_password\0"
OK = b"\0\0\0\2\0\0\0"


class Rogue:
    """Speaks as much of MySQL's protocol as it needs to ask for a file."""

    def __init__(self, wanted: Path) -> None:
        self._wanted = wanted
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.got = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._server.accept()
        with client, suppress(ConnectionError):
            self._send(client, 0, GREETING)
            client.recv(65536)
            self._send(client, 2, OK)
            while asked := client.recv(65536):
                self.got += asked
                self._send(
                    client, 1, OK if asked[5:8] == b"SET" else b"\xfb" + str(self._wanted).encode()
                )

    def _send(
        self,
        client: socket.socket,
        number: int,
        packet: bytes,
    ) -> None:
        client.sendall(len(packet).to_bytes(3, "little") + bytes([number]) + packet)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def rogue(tmp_path: Path) -> Iterator[Rogue]:
    secret = tmp_path / "signing.pem"
    secret.write_text("the private key")
    server = Rogue(secret)
    yield server
    server.close()


@pytest.mark.parametrize("options", ["", "?local_infile=1", "?local_infile=true&charset=utf8mb4"])
def test_no_file_goes_to_a_database_that_asks_for_one(rogue: Rogue, options: str):
    source = Source(f"mysql+pymysql://ann@127.0.0.1:{rogue.port}/lake{options}", "secret")
    with pytest.raises(Invalid, match="cannot be used"), source.selected("select * from customers"):
        pass
    assert rogue.got and b"the private key" not in rogue.got
