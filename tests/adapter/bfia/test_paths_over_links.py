"""The path in a route's URL is for a reverse proxy: requests over a link leave it out."""

import asyncio
import socket

import pytest

from adapter.bfia.channel.http_client import HttpConnections
from adapter.bfia.connections import Client, Request
from tests.plain import NO_TLS

URL = "https://partner.example/bfia"
PATH = "/v1/interconn/schedule/node/hello"
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
SECONDS = 60


class OneLink:
    """Opens one connection over a link, to an end that has already responded."""

    def __init__(self):
        self.end, self._near_end = socket.socketpair()
        self.end.sendall(RESPONSE)

    def connect(self, *address):
        return self._near_end


def send_control_request(link):
    client = Client(URL, NO_TLS, links=link)
    request = Request(
        "POST",
        PATH,
        {},
        b"{}",
    )
    client.send(request, SECONDS)
    client.close()


def send_message(link):
    async def post():
        connections = HttpConnections(NO_TLS, links=link)
        await connections.post(
            URL,
            [b"{}"],
            [],
            SECONDS,
            path=PATH,
        )
        connections.close()

    asyncio.run(post())


@pytest.mark.parametrize("send", [send_control_request, send_message])
def test_a_request_over_a_link_has_the_path_of_the_standard_alone(send):
    link = OneLink()
    with link.end:
        send(link)
        request_line = link.end.recv(1000).partition(b"\r\n")[0]
    assert request_line == f"POST {PATH} HTTP/1.1".encode()
