"""Connections through HTTP proxies: a real one, and proxies that misbehave."""

import asyncio
import base64
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from adapter.bfia.channel.grpc_client import GrpcConnection
from adapter.bfia.outbound import login_header, open_socket, proxy_of
from gateway.errors import Invalid
from route_table.document import parse
from route_table.model import Identity, InvalidRoutes
from route_table.proxies import LOGIN, REFUSED, UNREACHABLE, DefaultProxy, ProxyFailed
from tests.e2e.nodes import free_ports
from tests.inprocess import settings
from tests.services.outbound_proxy import PASSWORD, USER, outbound_proxy

NODE = "JG0100002200000020"
GREETING = b"hello"
SECONDS = 60.0  # only ends a hang


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """Listen, and send an answer to what each connection says first; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def through(
    port: int,
    user: str = "",
    password_file: str | None = None,
) -> Identity:
    """Return the way through a proxy at a port."""
    login = f"{user}@" if user else ""
    return Identity(
        proxy=f"http://{login}127.0.0.1:{port}",
        proxy_password=password_file,
    )


def refusal(identity: Identity, port: int = 443) -> ProxyFailed:
    """Return why a proxy opens no tunnel to a port."""
    with pytest.raises(ProxyFailed) as failure:
        open_socket("127.0.0.1", port, SECONDS, proxy_of(identity))
    return failure.value


# ---------------------------------------------------------------- a real proxy


@pytest.mark.slow
@pytest.mark.outbound_proxy
def test_a_real_proxy_opens_tunnels_and_refuses_with_a_reason(tmp_path):
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    wrong_password = tmp_path / "wrong"
    wrong_password.write_text("sesame")
    with answering(GREETING) as port, outbound_proxy(tmp_path / "proxy", port) as proxy:
        allowed = through(proxy.port, USER, str(password))

        with open_socket("127.0.0.1", port, SECONDS, proxy_of(allowed)) as tunnel:
            tunnel.sendall(b"?")
            assert tunnel.recv(len(GREETING)) == GREETING
        reasons = [
            refusal(allowed, port=9).reason,
            refusal(through(proxy.port, USER, str(wrong_password)), port).reason,
            refusal(through(proxy.port), port).reason,
        ]

    assert reasons == [REFUSED, LOGIN, LOGIN]


# ---------------------------------------------------------------- proxies that misbehave


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Login\r\n\r\n", LOGIN),
        (b"HTTP/1.1 403 Forbidden\r\nx: y\r\n\r\n", REFUSED),
        (b"HTTP/1.0 502\r\n\r\n", REFUSED),
        (b"SSH-2.0-OpenSSH\r\n\r\n", UNREACHABLE),
        (b"", UNREACHABLE),
        (b"HTTP/1.1 200 OK\r\n", UNREACHABLE),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000 + b"\r\n", UNREACHABLE),
    ],
    ids=["login", "forbidden", "bad gateway", "no proxy", "closed", "half a head", "flood"],
)
def test_each_refusal_has_its_reason(answer, reason):
    with answering(answer) as port:
        assert refusal(through(port)).reason == reason


def test_a_silent_proxy_ends_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = proxy_of(through(silent.getsockname()[1]))
        with pytest.raises(ProxyFailed) as failure:
            open_socket("127.0.0.1", 443, 0.2, proxy)
    assert failure.value.reason == UNREACHABLE


def test_a_missing_proxy_is_named():
    (port,) = free_ports(1)
    failure = refusal(through(port))
    assert failure.reason == UNREACHABLE
    assert f"127.0.0.1:{port}" in str(failure)


def test_a_missing_password_file_is_named(tmp_path):
    path = str(tmp_path / "nothing")
    with answering(b"") as port:
        failure = refusal(through(port, USER, path))
    assert failure.reason == LOGIN
    assert path in str(failure)


def test_what_follows_the_head_belongs_to_the_tunnel():
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + GREETING) as port:
        tunnel = open_socket("node.example", 443, SECONDS, proxy_of(through(port)))
        with tunnel:
            assert tunnel.recv(64) == GREETING


def test_a_user_may_be_percent_encoded(tmp_path):
    password = tmp_path / "password"
    password.write_text("geheim")
    proxy = proxy_of(through(3128, "bank%5Cann", str(password)))
    assert proxy is not None
    encoded = base64.b64encode(b"bank\\ann:geheim")
    assert login_header(proxy) == b"proxy-authorization: Basic " + encoded + b"\r\n"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_password_may_have_any_characters_and_end_its_line(tmp_path, end):
    file = tmp_path / "password"
    file.write_bytes(f" p@ss:/%#密 {end}".encode())
    proxy = proxy_of(through(3128, "ann", str(file)))
    assert proxy is not None
    assert proxy.login() == ("ann", " p@ss:/%#密 ")


# ---------------------------------------------------------------- the keys of an entry


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        (["proxy: https://proxy.bank:3128"], "proxy"),
        (["proxy: http://proxy.bank"], "proxy"),
        (["proxy: http://ann:secret@proxy.bank:3128"], "proxy"),
        (["proxy: http://proxy.bank:70000"], "proxy"),
        (["proxy: http://proxy.bank:3128", "proxy_password: /etc/secret"], "proxy_password"),
        (["proxy_password: /etc/secret"], "proxy_password"),
    ],
    ids=["https", "no port", "a password", "a large port", "no user", "no proxy"],
)
def test_a_proxy_that_cannot_work_is_refused(lines, path):
    entry = ["host: gw.example", "port: 7380", *lines]
    text = f"{NODE}:\n" + "".join(f"  {line}\n" for line in entry)
    with pytest.raises(InvalidRoutes) as refused:
        parse(text)
    (problem,) = refused.value.problems
    assert problem.path == f"{NODE}.{path}"
    assert "secret@" not in str(problem)


def test_a_proxy_belongs_to_the_entry_with_the_address():
    text = (
        "HUB: {host: hub.example, port: 7380, proxy: 'http://proxy.bank:3128'}\n"
        "BEHIND: {via: HUB, proxy: 'http://proxy.bank:3128'}\n"
    )
    with pytest.raises(InvalidRoutes) as refused:
        parse(text)
    (problem,) = refused.value.problems
    assert problem.path == "BEHIND.proxy"

    table = parse(
        text.replace(", proxy: 'http://proxy.bank:3128'}\n", "}\n").replace(
            "port: 7380", "port: 7380, proxy: 'http://proxy.bank:3128'"
        )
    )
    assert table.resolve("BEHIND").identity.proxy == "http://proxy.bank:3128"


# ---------------------------------------------------------------- the proxy of the settings

DIRECT = ("gw.bank.example", ".intern", "10.0.0.0/8", "2001:db8::7")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "gw.bank.example",
        "gw.a.intern",
        "10.1.2.3",
        "[2001:db8::7]",
    ],
)
def test_some_hosts_are_reached_without_the_default_proxy(host):
    proxy = DefaultProxy("http://proxy.bank:3128", direct=DIRECT)
    assert proxy.on_way_to(f"https://{host}:7380/bfia") is None


@pytest.mark.parametrize(
    "host", ["gw2.bank.example", "intern", "gw.bank.example.com", "11.0.0.1", "[2001:db8::8]"]
)
def test_all_other_hosts_are_reached_through_it(host):
    default = DefaultProxy("http://ann@proxy.bank:3128", Path("/etc/password"), direct=DIRECT)
    proxy = default.on_way_to(f"https://{host}:7380")
    assert proxy is not None
    assert (proxy.address, proxy.user) == ("proxy.bank:3128", "ann")


def test_a_route_with_a_proxy_of_its_own_keeps_it():
    default = DefaultProxy("http://proxy.bank:3128", direct=DIRECT)
    table = parse(
        "A: {host: gw.example, port: 1, proxy: 'http://other.bank:8080'}\n"
        "B: {host: gw.example, port: 1}\n"
        "C: {host: 10.0.0.1, port: 1}\n"
        "D: {via: B}\n"
    )
    proxies = {}
    for node, route in table.routes.items():
        proxies[node] = default.applied(route).proxy
    assert proxies == {
        "A": "http://other.bank:8080",
        "B": "http://proxy.bank:3128",
        "C": None,
        "D": None,
    }


def test_a_node_shows_and_uses_the_proxy_of_its_settings(world):
    with answering(b"HTTP/1.1 403 Forbidden\r\n\r\n") as port:
        proxy = f"http://127.0.0.1:{port}"
        node = world.node(
            routes={NODE: {"host": "gw.partner.example", "port": 443}},
            settings={"outbound": {"proxy": proxy}},
        )

        (route,) = node.get("/api/v1/routes").json()["routes"]
        steps = node.post(f"/api/v1/routes/{NODE}/test", {}).json()["steps"]

    assert route["proxy"] == proxy
    causes = {step["name"]: step["cause"] for step in steps}
    assert "HTTP 403 Forbidden" in causes["tcp"]


@pytest.mark.parametrize(
    "proxy",
    [
        "proxy.bank:3128",
        "http://ann:secret@proxy.bank:3128",
        "http://proxy.bank:65536",
        "http://proxy.bank:0",
        "http://[:::::]:3128",
    ],
)
def test_a_setting_that_cannot_be_a_proxy_is_refused(tmp_path, proxy):
    with pytest.raises(Invalid) as refused:
        settings(tmp_path, outbound={"proxy": proxy})
    assert "outbound.proxy" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("direct", "host"),
    [
        ("10.0.0.1/8", "10.2.3.4"),
        (".Bank.Example", "gw.bank.example"),
        ("GW.example", "gw.example"),
    ],
)
def test_a_direct_host_counts_in_each_spelling(tmp_path, direct, host):
    outbound = {"proxy": "http://proxy.bank:3128", "direct": [direct]}
    configured = settings(tmp_path, outbound=outbound)
    assert configured.outbound.default.on_way_to(f"https://{host}:7380") is None


@pytest.mark.parametrize(
    "direct",
    [
        "*.bank.example",
        "10.0.0.0/33",
        "10.0.0",
        "10.*",
        "https://gw.bank.example",
        "gw.bank.example:443",
        "[2001:db8::7]",
        "",
    ],
)
def test_a_direct_host_that_no_host_can_be_is_refused(tmp_path, direct):
    outbound = {"proxy": "http://proxy.bank:3128", "direct": ["gw.bank.example", direct]}
    with pytest.raises(Invalid) as refused:
        settings(tmp_path, outbound=outbound)
    assert "outbound.direct" in str(refused.value)


async def call_by_grpc(identity: Identity) -> None:
    """Call a partner by gRPC; raises OSError."""
    connection = GrpcConnection(
        "grpc://gw.partner.example:443",
        identity,
        ssl.create_default_context(),
    )
    try:
        await connection.post(
            "/v1/interconn/chan/invoke",
            GREETING,
            [],
            5.0,
        )
    finally:
        await connection.close()


def test_a_call_by_grpc_goes_through_the_proxy_of_its_route(tmp_path):
    password = tmp_path / "password"
    password.write_text("p@s:s/w%rd\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        identity = Identity(
            proxy=f"http://{USER}@127.0.0.1:{server.getsockname()[1]}",
            proxy_password=str(password),
        )
        with ThreadPoolExecutor() as pool:
            calling = pool.submit(asyncio.run, call_by_grpc(identity))
            connection, _ = server.accept()
            with connection:
                request = connection.recv(65536)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            server.close()
            with pytest.raises(OSError):
                calling.result(SECONDS)
    login = base64.b64encode(f"{USER}:p@s:s/w%rd".encode())
    assert request.startswith(b"CONNECT gw.partner.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + login in request
