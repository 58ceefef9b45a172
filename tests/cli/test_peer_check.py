"""``bfia-gateway peer check``: its lists, its reports, and nodes that cannot be checked."""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from route_table.document import parse
from tests.cli import NOBODY, call
from tests.conformance.platforms.checked import Site, checked_node

NODE = "JG0100001100000010"
QUICK = ("--clause", "C-2-envelope", "--clause", "C-3.2-create", "--clause", "M-3")


def check(*words: str) -> Any:
    """Run the command with the words."""
    return call("peer", "check", *words)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with checked_node(tmp_path_factory.mktemp("checked"), signing="off") as checked:
        yield checked


def target(site: Site) -> tuple[str, ...]:
    """Return the options that name a node and the component it has."""
    peer_url = site.node.addresses()["peer"]
    return ("--url", peer_url, "--node", NODE, "--component", "acme/Probe@1.0.0")


def test_the_clauses_are_listed_without_a_request():
    result = check("--list", "--clause", "C-3.4", "--json")
    assert result.exit_code == 0
    clauses = json.loads(result.stdout)
    assert {"C-3.4-repeat", "C-3.4-order"} <= {clause["id"] for clause in clauses}


def test_the_printed_route_can_be_loaded(tmp_path):
    words = ("--print-route", "--listen", "127.0.0.1:7999", "--key-folder", str(tmp_path))
    result = check(*words)
    assert result.exit_code == 0
    entry = result.stdout.partition("\n")[2]
    route = parse(entry).resolve("JG0000000000000777")
    assert route.url == "http://127.0.0.1:7999"
    assert route.signing_mode == "required"


def test_a_report_is_written_and_verified(site, tmp_path):
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    result = check(*target(site), *QUICK, "--report", str(report), "--html", str(page))
    assert result.exit_code == 0, result.output
    assert "5 holds, 0 deviates, 0 fails" in result.output

    payload = json.loads(base64.b64decode(json.loads(report.read_text())["payload"]))
    package = files("gateway.conformance.platforms")
    schema = json.loads(package.joinpath("report.schema.json").read_text())
    jsonschema.validate(payload, schema)
    assert payload["node_id"] == NODE
    verified = check("--verify", str(report))
    assert verified.exit_code == 0, verified.output
    assert "5 holds" in verified.output
    html = page.read_text()
    assert "C-3.2-create" in html
    assert "参与方接受合法的作业" in html
    assert "src=" not in html
    assert "href=" not in html


def test_an_altered_report_is_refused(site, tmp_path):
    report = tmp_path / "report.json"
    check(*target(site), "--clause", "M-3", "--report", str(report))
    envelope = json.loads(report.read_text())
    payload = base64.b64decode(envelope["payload"]).replace(b'"good":true', b'"good":null')
    envelope["payload"] = base64.b64encode(payload).decode()
    report.write_text(json.dumps(envelope))

    result = check("--verify", str(report))
    assert result.exit_code == 1
    assert "not a report as it was signed" in result.output


def test_a_node_without_a_route_to_the_check_is_told_which_one(site):
    result = check(*target(site), "--as", "JG0000000000000778", *QUICK)
    assert result.exit_code == 1
    assert "it needs this route" in result.output
    assert "JG0000000000000778" in result.output


def test_clauses_that_need_an_option_name_it(site):
    words = ("--clause", "C-3.1-once", "--clause", "C-3.2-create")
    result = check("--url", site.node.addresses()["peer"], "--node", NODE, *words)
    assert result.exit_code == 0, result.output
    assert "give --listen" in result.output
    assert "give --component" in result.output


def test_clauses_that_were_not_tried_are_named_by_reason(site):
    words = ("--clause", "C-3.1-once", "--clause", "C-3.1-wait")
    result = check(*target(site), *words)
    reason = "no way back: give --listen and --advertise"
    assert f"not tried: C-3.1-once, C-3.1-wait ({reason})" in result.output
    assert "2 clauses; a step that the node leaves out takes 60 s" in result.output


def test_containers_without_a_token_are_told_how_to_give_one(site):
    containers = ("--container-url", site.node.addresses()["container"])
    result = check(*target(site), *containers, "--clause", "T-2.2-push")
    assert result.exit_code == 0
    assert "a push without a token is refused" in result.output
    assert "--container-token" in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--url", NOBODY), "--url and --node"),
        (("--url", "ftp://x", "--node", NODE), "must begin with http"),
        (("--list", "--clause", "Z-1"), "no clause of version 1.2.0"),
        (("--list", "--standard", "2.0"), "one of 1.0, 1.1, 1.2.0"),
        (("--url", NOBODY, "--node", NODE, "--component", "x"), "PROVIDER/NAME@VERSION"),
        (
            ("--url", NOBODY, "--node", NODE, "--listen", "x"),
            "HOST:PORT",
        ),
        (
            ("--url", NOBODY, "--node", NODE, "--as", "a b"),
            "--as",
        ),
        (
            ("--url", NOBODY, "--node", NODE, "--ca", "/absent.pem"),
            "--ca",
        ),
        (
            ("--url", NOBODY, "--node", NODE, "--report", "/absent/r.json"),
            "--report",
        ),
        (
            ("--url", NOBODY, "--node", NODE, "--html", "/"),
            "--html",
        ),
        (
            ("--url", NOBODY, "--node", NODE, "--container-url", "x"),
            "--container-url x: must begin with http",
        ),
        (
            ("--url", NOBODY, "--node", NODE, "--container-token", "/absent"),
            "--container-token needs --container-url",
        ),
    ],
)
def test_wrong_options_are_named(words, text):
    result = check(*words)
    assert result.exit_code == 2
    assert text in result.output


def test_a_node_that_cannot_be_reached_is_named():
    result = check("--url", NOBODY, "--node", NODE)
    assert result.exit_code == 1
    assert NOBODY in result.output


# ---------------------------------------------------------------- nodes that misbehave


def drip(connection: socket.socket, over: threading.Event) -> None:
    """Answer one byte after the other, without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while not over.wait(0.05):
        connection.sendall(b" ")


def flood(connection: socket.socket, _: threading.Event) -> None:
    """Answer 10 MiB."""
    size = 10 << 20
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
    connection.sendall(b"x" * size)


def reset(connection: socket.socket, _: threading.Event) -> None:
    """Close the connection without a response."""


def garble(connection: socket.socket, _: threading.Event) -> None:
    """Answer bytes that are neither UTF-8 nor JSON."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xfe\xfd{")


@contextmanager
def misbehaving(behaviour: Any) -> Iterator[str]:
    """Serve a node that answers every request in one way; yield its address."""
    over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                behaviour(connection, over)
            except OSError:
                return  # the check has hung up

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.close()


@pytest.mark.parametrize("behaviour", [flood, reset, garble, drip], ids=lambda each: each.__name__)
def test_a_check_of_a_misbehaving_node_ends_with_a_verdict(behaviour, tmp_path):
    with misbehaving(behaviour) as url:
        words = ("--clause", "C-2-refusal", "--url", url, "--node", NODE)
        result = check(*words, "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 1
    assert "Traceback" not in result.output
