"""The console's files and a browser's session: words, weight, policy, and what a cookie may do."""

import gzip
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.auth import Role
from gateway.bootstrap.node import Gateway
from gateway.http.guard import cookie_name
from tests.console import FILES, modules, words
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask, running, token_of

OWN = "0123456789abcdef0123"
SESSION = "/api/v1/session"


# Calls whose first argument is a key of a text.
KEYED_CALL = re.compile(
    r'\b(?:translate|button|card|foldedCard|actionButton|act|field)\(\s*"([^"]+)"'
)
COLUMNS = re.compile(r"(?:\btable\(\s*|columns = )\[([^\]]*)\]")
FACTS = re.compile(r"\bfacts\(\[(.*?)\]\)", re.S)
EMPTY_TEXT = re.compile(r', "((?:no|nothing) [a-z ]+)"\)')


def used() -> set[str]:
    """Return the keys in the pages; those that are put together are in `test_words_that_are_put_together`."""
    keys: set[str] = set()
    for module in modules():
        text = module.read_text(encoding="utf-8")
        keys |= set(KEYED_CALL.findall(text)) | set(EMPTY_TEXT.findall(text))
        for columns in COLUMNS.findall(text):
            keys |= set(re.findall(r'"([^"]+)"', columns))
        for facts in FACTS.findall(text):
            keys |= set(re.findall(r'\["([^"]+)"', facts))
    return {key for key in keys if re.fullmatch(r"[a-z][a-z0-9 ]*\??", key)}


def test_every_word_is_there_in_both_languages():
    known = words()
    assert {key for key in known["zh"] if not key.startswith("=")} == {
        k for k in known["en"] if not k.startswith("=")
    }
    assert len(used()) > 130
    assert not used() - known["zh"].keys()
    for key, text in known["zh"].items():
        assert re.search(r"[\u4e00-\u9fff]", text) or key in ("sha256",), key
        blanks = [sorted(re.findall(r"\{\w+\}", one)) for one in (text, known["en"].get(key, text))]
        assert blanks[0] == blanks[1], key
        assert not re.search(r"[\u4e00-\u9fff][,;?!]", text), f"{key}: ASCII punctuation"


def test_what_comes_from_others_is_as_they_published_it():
    vendor = FILES / "vendor"
    sums = dict(reversed(line.split()) for line in (vendor / "SHA256SUMS").read_text().splitlines())
    published = [file for file in vendor.iterdir() if file.suffix in (".js", ".css")]
    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in published}
    assert all((vendor / f"{name.partition('.min.')[0]}.LICENSE").is_file() for name in sums)


def test_words_that_are_put_together():
    known = words()["zh"]
    names = re.findall(r'^  (\w+): \{ list: "', (FILES / "app.js").read_text("utf-8"), re.M)
    assert len(names) == 7
    assert all(f"page {name}" in known for name in names)
    verbs = (
        "approve",
        "reject",
        "enable",
        "disable",
        "retire",
        "unretire",
        "revoke",
        "stop",
        "suspend",
        "resume",
    )
    for verb in verbs:
        assert {verb, f"{verb}?"} <= known.keys()


def test_the_first_visit_is_light_and_no_file_asks_another_host():
    weight = 0
    for file in (file for file in FILES.rglob("*") if file.is_file()):
        content = file.read_bytes()
        weight += len(gzip.compress(content))
        assert not re.search(rb"(?:src|href|from|import|url\()\s*[=(\"' ]*https?://", content), (
            file.name
        )
    assert weight < 150_000
    page = (FILES / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|javascript:", page)
    for file in modules():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function",
            file.read_text(encoding="utf-8"),
        ), file.name


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node"), auth={"mode": "on", "token": OWN}) as gateway:
        yield gateway


def send(
    node: Gateway,
    method: str,
    path: str,
    **more: Any,
) -> httpx.Response:
    return ask(node, "operator", method, path, **more)


def logged_in(node: Gateway, token: str = OWN) -> dict[str, str]:
    answer = send(node, "POST", SESSION, headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    (kept,) = answer.headers.get_list("set-cookie")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(kept.split("; "))
    return {"cookie": kept.partition(";")[0]}


def test_the_pages_need_no_token_and_forbid_browsers_all_else(node):
    assert send(node, "GET", "/").headers["location"] == "/console/"
    for path in ("/console/", "/console/app.js", "/console/style.css"):
        found = send(node, "GET", path)
        assert found.status_code == 200
        assert "script-src 'self'" in found.headers["content-security-policy"]
        assert "unsafe" not in found.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in found.headers["content-security-policy"]
    for path in ("/console/none", "/console/../pages.py", "/console/%2e%2e/pages.py"):
        assert send(node, "GET", path).status_code in (401, 404)
    assert send(node, "GET", SESSION).status_code == 401
    # a page has only asked whether its browser is logged in: that is not in the audit
    assert (
        send(node, "GET", SESSION, headers={"authorization": "Bearer bfia_no"}).status_code == 401
    )
    wait_for(lambda: node.audit.list(action=SESSION), about="a wrong token is in the audit")
    assert [entry.detail["reason"] for entry in node.audit.list(action=SESSION)] == [
        "TOKEN_UNKNOWN"
    ]


def test_a_cookie_reads_and_changes_only_with_the_pages_own_header(node):
    mine = logged_in(node)
    session = send(node, "GET", SESSION, headers=mine).json()
    assert session["node"] == ME
    assert session["user"] == "operator"
    assert session["role"] == "admin"
    assert send(node, "GET", "/api/v1/jobs", headers=mine).status_code == 200
    change: dict[str, Any] = {
        "method": "POST",
        "path": "/api/v1/gc",
        "json": {"dry_run": True},
    }
    assert (
        send(node, **change, headers=mine).json()["data"]["reason"] == "NO_TOKEN"
    )  # a form of another site
    assert send(node, **change, headers=mine | {"x-console": "1"}).status_code == 200
    assert send(node, **change, headers={"x-console": "1"}).status_code == 401
    others = {"cookie": mine["cookie"].replace(cookie_name(ME), cookie_name("JG0100009900000099"))}
    assert send(node, "GET", "/api/v1/jobs", headers=others).status_code == 401
    (ended,) = send(node, "DELETE", SESSION, headers=mine | {"x-console": "1"}).headers.get_list(
        "set-cookie"
    )
    assert "Max-Age=0" in ended


def test_a_cookie_may_do_what_its_token_may(node):
    mine = logged_in(node, token_of(node, Role.VIEWER))
    assert send(node, "GET", SESSION, headers=mine).json()["role"] == "viewer"
    assert send(node, "GET", "/api/v1/audit", headers=mine).status_code == 403
    assert (
        send(node, "POST", "/api/v1/gc", json={}, headers=mine | {"x-console": "1"}).status_code
        == 403
    )
    assert (
        send(node, "POST", SESSION, headers={"authorization": "Bearer bfia_no"}).status_code == 401
    )
