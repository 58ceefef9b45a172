"""Attack: a database that a table is imported from asks the client for a file of its machine."""

import socket
import threading
from contextlib import suppress

import pytest

from gateway.errors import Invalid
from gateway.store.source import Source

# Packets of MySQL's protocol: a server's greeting, and a positive response.
GREETING = (
    b"\x0a5.5.5-10.11.0-MariaDB\0"
    + b"\1\0\0\0"  # connection id
    + b"a" * 8  # challenge, first part
    + b"\0"
    + b"\xff\xf7\x21\2\0\xff\x81\x15"  # capabilities, character set, status
    + bytes(10)
    + b"b" * 12  # challenge, second part
    + b"\0mysql_native_password\0"
)
OK = b"\0\0\0\2\0\0\0"
SEND_FILE = b"\xfb"  # a request for a file, followed by its name


class RogueServer:
    """Speaks as much of MySQL's protocol as it needs to ask for a file."""

    def __init__(self, file):
        self.received = b""  # after the login
        self._file = file
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._server.close()

    def _serve(self):
        client, _ = self._server.accept()
        with client, suppress(ConnectionError):
            send_packet(client, 0, GREETING)
            client.recv(65536)
            send_packet(client, 2, OK)
            packet = client.recv(65536)
            while packet:
                self.received += packet
                send_packet(client, 1, self._response_to(packet))
                packet = client.recv(65536)

    def _response_to(self, packet):
        statement = packet[5:]
        if statement.startswith(b"SET"):
            return OK
        return SEND_FILE + str(self._file).encode()


def send_packet(client, number, content):
    """Send a packet; its header is the length in 3 bytes, and its number."""
    client.sendall(len(content).to_bytes(3, "little") + bytes([number]) + content)


@pytest.fixture
def rogue(tmp_path):
    """Give a server that asks for a private key of the gateway."""
    key = tmp_path / "signing.pem"
    key.write_text("the private key")
    server = RogueServer(key)
    yield server
    server.close()


@pytest.mark.parametrize(
    "options",
    ["", "?local_infile=1", "?local_infile=true&charset=utf8mb4"],
)
def test_no_file_is_sent_to_a_database_that_asks_for_one(rogue, options):
    source = Source(f"mysql+pymysql://ann@127.0.0.1:{rogue.port}/lake{options}", "secret")

    with (
        pytest.raises(
            Invalid,
            match="cannot be used",
        ),
        source.selected("select * from customers"),
    ):
        pass

    assert rogue.received
    assert b"the private key" not in rogue.received
