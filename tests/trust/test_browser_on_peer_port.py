"""A page makes the browser of a person in the bank's network ask a listener that has no password for persons."""

from pathlib import Path

import pytest

from tests.inprocess import ask, running

PAGES = {
    "another site": {"origin": "https://evil.example"},
    "a name that was made to lead here": {"host": "evil.example:7380", "origin": "http://evil.example:7380"},
    "a page that keeps its origin to itself": {"origin": "null"},
    "a picture, which tells no origin": {"sec-fetch-site": "cross-site"},
}


@pytest.mark.parametrize("listener", ["peer", "container"])
def test_a_page_reaches_neither_peers_nor_containers_listener(tmp_path: Path, listener: str) -> None:
    paths = {"peer": "/v1/interconn/schedule/job/start", "container": "/v1/interconn/chan/pop"}
    with running(tmp_path) as node:
        for page, headers in PAGES.items():
            for method, path in (
                ("POST", paths[listener]),
                ("GET", "/openapi.json"),
                ("OPTIONS", paths[listener]),
            ):
                answer = ask(node, listener, method, path, headers=headers)
                assert answer.status_code == 403, (page, method)
                assert answer.json()["data"] == {"reason": "FOREIGN_ORIGIN"}
                assert not [name for name in answer.headers if name.startswith("access-control")]
        assert ask(node, listener, "GET", "/openapi.json").status_code == 200


def test_where_one_port_serves_both(tmp_path: Path) -> None:
    listen = {"peer": {"bind": "127.0.0.1:0"}, "container": None, "operator": {"bind": "127.0.0.1:0"}}
    with running(tmp_path, listen=listen) as node:
        assert ask(node, "peer", "GET", "/openapi.json", headers=PAGES["another site"]).status_code == 403
