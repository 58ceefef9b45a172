"""Answers of a proxy in front of a peer, or of another product at its address, are recognised."""

from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from adapter.bfia.channel.codec import INVOKE
from adapter.bfia.channel.courier import Courier
from adapter.bfia.connections import Connections
from adapter.bfia.peer import Peer
from adapter.bfia.route_check import try_route
from gateway.domain.states import Outcome
from gateway.errors import GatewayError
from gateway.runtime.trials import Result, Step
from route_table.live import LiveRoutes
from route_table.model import Route
from route_table.proof import ListenerProof
from tests.adapter.bfia.scripted import Answer, peer_of, says
from tests.adapter.bfia.site import CONTROL, SPEC, Site, a_job_with
from tests.inprocess import ME, PEER


def page(
    status: int,
    body: str,
    **headers: str,
) -> Answer:
    """Return a response as a proxy sends it: a web page with the proxy's name."""
    content = body.encode()
    all_headers = {
        "server": "nginx/1.24.0",
        "content-type": "text/html; charset=utf-8",
        **headers,
        "content-length": str(len(content)),
    }

    def answer(handler: BaseHTTPRequestHandler) -> None:
        # `send_response_only`, as `send_response` adds a server header of its own
        handler.send_response_only(status)
        for name, value in all_headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


# By kind of proxy: its response, the reason of the refusal, a quotation in the cause, and a word
# of the remedy.
PROXIES: dict[str, tuple[Answer, str, str, str]] = {
    "a login page": (
        page(302, "<html>moved</html>", location="https://portal.example/login"),
        "LOGIN_IN_BETWEEN",
        "HTTP 302 and redirects to https://portal.example/login",
        "login",
    ),
    "a login": (
        page(401, "", server=""),
        "LOGIN_IN_BETWEEN",
        "HTTP 401",
        "login",
    ),
    "a filter": (
        page(200, "<html><script>x()</script><title>访问被拒绝</title>上网行为管理</html>"),
        "FILTER_IN_BETWEEN",
        "nginx/1.24.0, “访问被拒绝 上网行为管理”",
        "filter",
    ),
    "a body limit": (
        page(
            413,
            "<html><head><title>413 Request Entity Too Large</title></head><hr>nginx</html>",
        ),
        "BODY_LIMIT_IN_BETWEEN",
        "413 Request Entity Too Large",
        "client_max_body_size",
    ),
}
NO_BACKEND = page(502, "<html><head><title>502 Bad Gateway</title></head></html>")


@pytest.mark.parametrize(
    ("response", "reason", "quotation", "remedy"),
    PROXIES.values(),
    ids=PROXIES,
)
def test_a_route_test_names_a_proxy(
    peer,
    served,
    tmp_path,
    response,
    reason,
    quotation,
    remedy,
):
    _, url = served
    peer.will(response)

    step = route_test(tmp_path, url)["answer"]

    assert step.result is Result.FAILED
    assert step.cause.startswith(f"{reason}: ")
    assert quotation in step.cause
    assert remedy in step.remedy


def test_a_route_test_names_a_proxy_without_a_backend(peer, served, tmp_path):
    _, url = served
    peer.will(NO_BACKEND)

    step = route_test(tmp_path, url)["answer"]

    assert step.result is Result.FAILED
    assert "“502 Bad Gateway”" in step.cause
    assert "what stands before it" in step.remedy


@pytest.mark.parametrize(
    ("response", "reason", "quotation", "remedy"),
    PROXIES.values(),
    ids=PROXIES,
)
def test_the_creation_of_a_job_names_a_proxy(site, response, reason, quotation, remedy):
    site.peer.will(response)

    with pytest.raises(GatewayError) as refused:
        site.submit(a_job_with(SPEC))

    assert refused.value.reason == reason
    assert quotation in refused.value.message
    advice = site.node.get(f"/api/v1/reasons/{reason}").json()
    assert remedy in advice["next_step"]


def test_a_page_in_place_of_a_channel_response_is_quoted(peer, served):
    _, url = served
    peer.will(page(200, "<html><title>not allowed here</title></html>"))

    message = anyio.run(invoke_channel, url)

    assert (
        message
        == "the peer answered HTTP 200 without a transport response; it says: not allowed here"
    )


async def invoke_channel(url: str) -> str:
    """Send a message to a peer's channel; return the text of the response."""
    headers = [
        (b"content-type", b"application/json"),
        (b"x-ptp-session-id", b"session_job-1"),
    ]
    courier = Courier()
    try:
        response = await courier.invoke(
            Route(PEER, url),
            [b"{}"],
            headers,
            1.0,
            INVOKE,
        )
    finally:
        await courier.close()
    return response.message


# ------------------------------------------------- FATE-Flow behind a route without its profile

# The paths that FATE-Flow's adapter for the standard has.
ADAPTER_PATHS = ("/task/poll", "/job/create", "/job/stop")

# FATE-Flow with and without its adapter, and the profile that its route needs.
FATE_FLOWS = pytest.mark.parametrize(
    ("has_adapter", "profile"),
    [
        (True, "fate"),
        (False, "fate-partner"),
    ],
    ids=["adapter", "no adapter"],
)


def fate_flow(*, has_adapter: bool) -> Answer:
    """Return responses as FATE-Flow 2.2.0 sends them, with or without its adapter.

    The bodies were recorded, or written after its source.
    """
    unknown_path = says({"code": 6000, "message": "<NotFound '404: Not Found'>"})
    unknown_task = says(
        {"code": 6000, "message": "RuntimeError('No found task: which-profile node id 9999')"}
    )
    missing_task = says(
        {
            "code": 1001,
            "message": "Invalid request.",
            "data": {"json": {"task_id": ["Missing"]}},
        }
    )

    def response_to(handler: BaseHTTPRequestHandler) -> Answer:
        path = handler.path.removeprefix(CONTROL)
        if not has_adapter or path not in ADAPTER_PATHS:
            return unknown_path
        if path != "/task/poll":
            return says({"code": 0, "msg": "success"})
        if peer_of(handler).requests[-1].body:
            return unknown_task
        return missing_task

    def answer(handler: BaseHTTPRequestHandler) -> None:
        respond = response_to(handler)
        respond(handler)

    return answer


@FATE_FLOWS
def test_a_route_test_recognises_fate_flow(peer, served, tmp_path, has_adapter, profile):
    _, url = served
    peer.will(fate_flow(has_adapter=has_adapter))

    steps = route_test(tmp_path, url)

    assert steps["answer"].result is Result.WARNING
    assert steps["profile"].result is Result.FAILED
    assert f"set profile: {profile}" in f"{steps['profile'].remedy};"


@FATE_FLOWS
def test_a_creation_at_fate_flow_without_its_profile_is_refused(site, has_adapter, profile):
    """The refusal precedes the creation, so that FATE-Flow is left without a job."""
    site.peer.will(fate_flow(has_adapter=has_adapter))
    spec = a_job_with(SPEC)

    with pytest.raises(GatewayError) as refused:
        site.submit(spec)

    assert refused.value.reason == "PROFILE_MISMATCH"
    assert f"profile {profile} do" in refused.value.message
    assert site.wait_for_end(spec.job_id).ending.outcome is Outcome.REJECTED
    assert "/job/create" not in requested_paths(site)


@FATE_FLOWS
def test_a_job_for_fate_flow_to_schedule_is_refused_too(site, has_adapter, profile):
    site.peer.will(fate_flow(has_adapter=has_adapter))
    scheduler = site.node.peers.scheduler(SPEC, "bfia")

    with pytest.raises(GatewayError) as refused:
        scheduler.submit_job(a_job_with(SPEC, scheduler=SPEC), ME)

    assert refused.value.reason == "PROFILE_MISMATCH"
    assert "/job/create_all" not in requested_paths(site)


CALLS: dict[str, tuple[Any, ...]] = {
    "start_job": ("job-1", ME),
    "start_task": ("job-1", "task-1", "a", ME),
    "stop_job": ("job-1", "", None, ME),
}


@pytest.mark.parametrize(
    ("call", "arguments"),
    CALLS.items(),
    ids=CALLS,
)
def test_any_answer_of_fate_flow_reveals_its_profile(site, call, arguments):
    site.peer.will(fate_flow(has_adapter=False))
    participant = site.node.peers.participant(SPEC, "bfia")

    with pytest.raises(GatewayError) as refused:
        getattr(participant, call)(*arguments)

    assert refused.value.reason == "PROFILE_MISMATCH"


def route_test(
    home: Path,
    url: str,
) -> dict[str, Step]:
    """Test a route of profile ``spec`` to an address; return its steps by name."""
    file = home / "routes.yml"
    file.write_text(yaml.safe_dump({PEER: {"url": url, "profile": "spec"}}))
    routes = LiveRoutes(file)
    connections = Connections()
    try:
        peer = Peer(ME, PEER, routes.resolve, connections)
        steps = try_route(peer, routes.table, PEER, ME, ListenerProof())
    finally:
        connections.close()
    return {step.name: step for step in steps}


def requested_paths(site: Site) -> set[str]:
    """Return the control paths that the peer has received."""
    return {request.target.removeprefix(CONTROL) for request in site.peer.requests}
