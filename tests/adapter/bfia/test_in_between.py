"""What stands before a peer answers in its place, or another product lives there: each is named."""

from collections.abc import Iterator
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
from tests.adapter.bfia.scripted import Answer, ScriptedPeer, says, scripted
from tests.adapter.bfia.site import CONTROL, SPEC, Site, a_job_with, serving_site
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


def page(
    status: int,
    body: str,
    **headers: str,
) -> Answer:
    """Answer as what stands before a node does."""
    content = body.encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response_only(status)
        for name, value in {
            "server": "nginx/1.24.0",
            "content-type": "text/html; charset=utf-8",
            **headers,
        }.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


LOGIN = page(302, "<html>moved</html>", location="https://portal.example/login")
FILTER = page(200, "<html><script>x()</script><title>访问被拒绝</title>上网行为管理</html>")
BODY_LIMIT = page(
    413, "<html><head><title>413 Request Entity Too Large</title></head><hr>nginx</html>"
)
BAD_GATEWAY = page(502, "<html><head><title>502 Bad Gateway</title></head></html>")

PAGES: dict[str, tuple[Answer, str, str, str]] = {
    "a login page": (
        LOGIN,
        "LOGIN_IN_BETWEEN",
        "HTTP 302 and redirects to https://portal.example/login",
        "login",
    ),
    "a login": (page(401, "", server=""), "LOGIN_IN_BETWEEN", "HTTP 401", "login"),
    "a filter": (FILTER, "FILTER_IN_BETWEEN", "nginx/1.24.0, “访问被拒绝 上网行为管理”", "filter"),
    "a body limit": (
        BODY_LIMIT,
        "BODY_LIMIT_IN_BETWEEN",
        "413 Request Entity Too Large",
        "client_max_body_size",
    ),
    "no backend": (BAD_GATEWAY, "PEER_UNREACHABLE", "“502 Bad Gateway”", "what stands before it"),
}


def route_test(
    home: Path,
    url: str,
    profile: str = "spec",
) -> dict[str, Step]:
    file = home / "routes.yml"
    file.write_text(yaml.safe_dump({PEER: {"url": url, "profile": profile}}))
    routes, connections = LiveRoutes(file), Connections()
    try:
        steps = try_route(Peer(ME, PEER, routes.resolve, connections), routes.table, PEER, ME)
    finally:
        connections.close()
    return {step.name: step for step in steps}


@pytest.mark.parametrize("what", PAGES)
def test_a_route_test_names_what_answers_before_the_peer(tmp_path: Path, what: str):
    answer, reason, seen, remedy = PAGES[what]
    with scripted() as (peer, url):
        peer.will(answer)
        step = route_test(tmp_path, url)["answer"]
    assert step.result is Result.FAILED
    assert seen in step.cause and remedy in step.remedy
    if reason != "PEER_UNREACHABLE":
        assert step.cause.startswith(f"{reason}: ")


@pytest.mark.parametrize("what", [what for what in PAGES if what != "no backend"])
def test_a_creation_names_what_answers_before_the_peer(site: Site, what: str):
    answer, reason, seen, remedy = PAGES[what]
    site.peer.will(answer)
    spec = a_job_with(SPEC)
    with pytest.raises(GatewayError) as refused:
        site.node.coordinator.submit_job(spec, ME)
    assert refused.value.reason == reason and seen in refused.value.message
    next_step = ask(site.node, "operator", "GET", f"/api/v1/reasons/{reason}").json()["next_step"]
    assert remedy in next_step


def test_what_answers_before_the_channel_is_quoted(tmp_path: Path):
    with scripted() as (peer, url):
        peer.will(page(200, "<html><title>not allowed here</title></html>"))
        courier = Courier()

        async def bring() -> str:
            headers = [
                (b"content-type", b"application/json"),
                (b"x-ptp-session-id", b"session_job-1"),
            ]
            try:
                answer = await courier.invoke(Route(PEER, url), [b"{}"], headers, 1.0, INVOKE)
            finally:
                await courier.close()
            return answer.message

        message = anyio.run(bring)
    assert (
        message
        == "the peer answered HTTP 200 without a transport response; it says: not allowed here"
    )


# ---------------------------------------------------------------- FATE-Flow behind a route that does not say so


def fate_flow(*, adapter: bool) -> Answer:
    """Answer as FATE-Flow 2.2.0 does, with or without its adapter for the standard.

    The answers were recorded, or written after its source.
    """
    unknown = says({"code": 6000, "message": "<NotFound '404: Not Found'>"})
    no_task = says(
        {"code": 6000, "message": "RuntimeError('No found task: which-profile node id 9999')"}
    )
    invalid = says(
        {
            "code": 1001,
            "message": "Invalid request.",
            "data": {"json": {"task_id": ["Missing"]}},
        }
    )

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.removeprefix(CONTROL)
        peer: ScriptedPeer = handler.server.peer  # type: ignore[attr-defined]
        if not adapter or path not in ("/task/poll", "/job/create", "/job/stop"):
            unknown(handler)
        elif path == "/task/poll":
            (no_task if peer.asked[-1].body else invalid)(handler)
        else:
            says({"code": 0, "msg": "success"})(handler)

    return answer


FATE_FLOWS = pytest.mark.parametrize(
    ("adapter", "profile"), [(True, "fate"), (False, "fate-partner")]
)


@FATE_FLOWS
def test_a_route_test_recognises_fate_flow(
    tmp_path: Path,
    adapter: bool,
    profile: str,
):
    with scripted() as (peer, url):
        peer.will(fate_flow(adapter=adapter))
        steps = route_test(tmp_path, url)
    assert steps["answer"].result is Result.WARNING
    assert steps["profile"].result is Result.FAILED
    assert f"set profile: {profile}" in f"{steps['profile'].remedy};"


@FATE_FLOWS
def test_a_creation_at_fate_flow_without_its_profile_is_refused(
    site: Site,
    adapter: bool,
    profile: str,
):
    """Nothing is made there before, so that no job stays behind."""
    site.peer.will(fate_flow(adapter=adapter))
    site.peer.asked.clear()
    spec = a_job_with(SPEC)
    with pytest.raises(GatewayError) as refused:
        site.node.coordinator.submit_job(spec, ME)
    assert (
        refused.value.reason == "PROFILE_MISMATCH"
        and f"profile {profile} do" in refused.value.message
    )
    job = site.node.store.jobs.get(spec.job_id)
    wait_for(lambda: site.node.store.jobs.get(spec.job_id).ended_at, 20, 0.02, "it has ended")
    assert job.ending is not None and job.ending.outcome is Outcome.REJECTED
    assert "/job/create" not in {asked.target.removeprefix(CONTROL) for asked in site.peer.asked}


@FATE_FLOWS
def test_a_job_for_fate_flow_to_schedule_is_refused_alike(
    site: Site,
    adapter: bool,
    profile: str,
):
    site.peer.will(fate_flow(adapter=adapter))
    site.peer.asked.clear()
    with pytest.raises(GatewayError) as refused:
        site.node.peers.scheduler(SPEC, "bfia").submit_job(a_job_with(SPEC, scheduler=SPEC), ME)
    assert refused.value.reason == "PROFILE_MISMATCH"
    assert "/job/create_all" not in {
        asked.target.removeprefix(CONTROL) for asked in site.peer.asked
    }


@pytest.mark.parametrize("call", ["start_job", "start_task", "stop_job"])
def test_any_answer_of_fate_flow_gives_its_profile_away(site: Site, call: str):
    site.peer.will(fate_flow(adapter=False))
    participant = site.node.peers.participant(SPEC, "bfia")
    calls: dict[str, tuple[Any, ...]] = {
        "start_job": ("job-1", ME),
        "start_task": ("job-1", "task-1", "a", ME),
        "stop_job": ("job-1", "", None, ME),
    }
    with pytest.raises(GatewayError) as refused:
        getattr(participant, call)(*calls[call])
    assert refused.value.reason == "PROFILE_MISMATCH"
