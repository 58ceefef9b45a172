"""What an application learns of the certificate that a client shows, over real TLS."""

import http.client
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.http.server import Tls
from tests.certificates import Authority
from tests.plain import NO_TLS
from tests.trust.listening import listening


async def extensions(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(scope.get("extensions"))(scope, receive, send)


def asked(url: str, trusted: ssl.SSLContext) -> list[Any]:
    """Return the extensions of two requests on one connection."""
    with httpx.Client(verify=trusted) as client:
        return [json.loads(client.get(url).content) for _ in range(2)]


def test_each_request_carries_the_certificate_of_its_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine, theirs = authority.sign("node"), authority.sign("partner")
    trusted = ssl.create_default_context(cafile=authority.file)
    trusted.load_cert_chain(theirs.certificate, theirs.key)
    with listening(extensions, Tls(mine.certificate, mine.key, authority.file)) as port:
        found = asked(f"https://127.0.0.1:{port}/", trusted)
    shown = Path(theirs.certificate).read_text()
    assert found == [{"tls": {"client_cert_chain": [shown]}}] * 2


def test_without_a_certificate_the_chain_is_empty(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    mine = authority.sign("node")
    with listening(extensions, Tls(mine.certificate, mine.key)) as port:
        found = asked(f"https://127.0.0.1:{port}/", ssl.create_default_context(cafile=authority.file))
    assert found == [{"tls": {"client_cert_chain": []}}] * 2


def test_an_idle_client_does_not_hold_up_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "error", lambda text, *_: said.append(text))
    mine = Authority(tmp_path).sign("node")
    with listening(extensions, Tls(mine.certificate, mine.key)) as port:
        client = http.client.HTTPSConnection("127.0.0.1", port, context=ssl._create_unverified_context())
        client.request("GET", "/")
        assert client.getresponse().read()
    client.close()
    assert said == []  # else: that it waited in vain


def test_a_header_adds_no_certificate_to_a_plain_connection() -> None:
    with listening(extensions) as port, httpx.Client(verify=NO_TLS, headers={"x-client-cert": "me"}) as client:
        assert client.get(f"http://127.0.0.1:{port}/").json() is None


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    mine, theirs = authority.sign("node"), other.sign("partner")
    trusted = ssl.create_default_context(cafile=authority.file)
    trusted.load_cert_chain(theirs.certificate, theirs.key)
    with (
        listening(extensions, Tls(mine.certificate, mine.key, authority.file)) as port,
        pytest.raises(httpx.TransportError),
    ):
        asked(f"https://127.0.0.1:{port}/", trusted)
