"""A node behind an https proxy with a certificate that an institution signs itself."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bfia_gateway_client import Client, Invalid, NoAnswer
from tests.certificates import Authority


class Proxy(BaseHTTPRequestHandler):
    """Responds with a JSON body."""

    def do_GET(self) -> None:
        body = b'{"live": true}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_the_authority_of_an_institution_is_named_by_its_file(tmp_path):
    authority = Authority(tmp_path / "ours")
    files = authority.sign("proxy")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.socket = context.wrap_socket(
            server.socket,
            server_side=True,
        )
        serving = threading.Thread(
            target=server.serve_forever,
            args=(0.01,),
        )
        serving.start()
        try:
            url = f"https://127.0.0.1:{server.server_port}"
            with Client(url, ca=authority.file) as client:
                assert client.request("GET", "/health/live") == {"live": True}
            with (
                Client(url, ca=Authority(tmp_path / "theirs").file) as client,
                pytest.raises(NoAnswer) as caught,
            ):
                client.request("GET", "/health/live")
            assert "certificate verify failed" in caught.value.message
        finally:
            server.shutdown()
            serving.join()
    for file in ("nowhere.pem", files.key):
        with pytest.raises(Invalid, match="ca: is not a readable file of certificates"):
            Client("https://127.0.0.1:9", ca=tmp_path / file)
