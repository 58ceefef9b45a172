"""A FATE site that has to sign cannot be impersonated by any other path, nor by the ids in a body."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapter.bfia.environment import session_id
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from adapter.fate.signing import Signatures
from gateway.config.schema import FateApp, FateSite
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus
from gateway.runtime.trials import Result
from route_table.editing import Change
from tests.adapter.fate.flowing import FATE, SIGNS, Flow, dag, fate_world, party
from tests.builders import a_spec
from tests.contracts.apis import World
from tests.inprocess import ME, PEER, ask

CONTROL = "/v1/interconn/schedule"
SIGNATURES = Signatures({ME: FateSite(sends=FateApp(app_id="1", app_token="secret"))})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    app = {"app_id": "2", "app_token": "between us"}
    sites = {SIGNS: {"expects": {"app_id": "1", "app_token": "secret"}}, PEER: {"expects": app}}
    mine, theirs = (
        {"enabled": True, "sites": sites},
        {"enabled": True, "sites": {ME: {"sends": app}}},
    )
    with fate_world(tmp_path_factory.mktemp("nodes"), fate=mine, peer={"fate": theirs}) as world:
        yield world


@pytest.fixture
def flow(world: World) -> Flow:
    return Flow(world)


def sent(
    world: World,
    path: str,
    body: Any,
    method: str = "POST",
    **headers: str,
) -> dict[str, Any]:
    found = ask(
        world.me, "peer", method, path, json=body, headers={"x-source-node-id": SIGNS} | headers
    )
    said: dict[str, Any] = found.json()
    return said


def a_job_of(site: str, job_id: str) -> JobSpec:
    return a_spec("a", {"guest": (site,), "host": (ME,)}, job_id=job_id)


def test_a_job_in_the_sites_name_is_refused_on_the_standards_paths(world: World):
    body = create_body(a_job_of(SIGNS, "job-unsigned"), PROFILES["spec"])
    for spelling in ("x-source-node-id", "x_source_node_id", "x-node-id", "x_node_id"):
        for path in ("/job/create", "/job/create_all", "/job/plan"):
            found = ask(
                world.me, "peer", "POST", CONTROL + path, json=body, headers={spelling: SIGNS}
            ).json()
            assert (found["code"], found["data"]["reason"]) == (403, "SIGNATURE_MISSING"), (
                spelling,
                path,
            )
    assert world.me.store.local_jobs.find("job-unsigned") is None
    assert world.me.store.jobs.find("job-unsigned") is None


def test_each_path_of_the_standard_wants_the_signature(world: World):
    described = ask(world.me, "peer", "GET", "/openapi.json").json()["paths"]
    asked = 0
    for path, methods in described.items():
        if path.startswith(("/v2/", "/v1/interconn/chan/")):
            continue
        for method in methods:
            body = create_body(a_job_of(SIGNS, "job-path"), PROFILES["spec"]) | {
                "task_id": "t",
                "task_name": "a",
                "role": "guest",
                "status": "SUCCESS",
                "audit_id": "a",
                "name": "n",
                "project_id": "p",
                "audit_status": "READY",
                "new_job_id": "j",
                "from": "a",
                "outputs": [],
            }
            found = sent(world, path, body, method.upper(), **{"x-node-id": SIGNS})
            assert found["data"]["reason"] in ("SIGNATURE_MISSING", "INVALID"), path
            asked += found["data"]["reason"] == "SIGNATURE_MISSING"
    assert asked > 15


def test_a_job_of_the_site_is_not_commanded_by_the_standards_paths(world: World, flow: Flow):
    body = {**dag(SIGNS), **party("202411220101020000901")}
    job = body["job_id"]
    assert flow.code("/partner/job/create", body, **SIGNATURES.sign(ME, SIGNS)) == 0
    for path in ("/job/start", "/job/stop", "/job/delete", "/job/resource/apply"):
        assert sent(world, CONTROL + path, {"job_id": job})["data"]["reason"] == "SIGNATURE_MISSING"
    wrong = Signatures({ME: FateSite(sends=FateApp(app_id="1", app_token="guessed"))}).sign(
        ME, SIGNS
    )
    assert (
        sent(world, f"{CONTROL}/job/stop", {"job_id": job}, **wrong)["data"]["reason"]
        == "SIGNATURE_WRONG"
    )
    assert world.local(job).status is JobStatus.READY
    right = SIGNATURES.sign(ME, "")
    assert sent(world, f"{CONTROL}/job/start", {"job_id": job}, **right)["code"] == 0
    again = sent(world, f"{CONTROL}/job/stop", {"job_id": job}, **right)
    assert again["data"]["reason"] == "SIGNATURE_USED"
    assert world.local(job).status is JobStatus.RUNNING


@pytest.mark.parametrize("named", [{}, {"x-source-node-id": ME}, {"x_source_node_id": ME}])
def test_this_nodes_own_id_opens_nothing(
    world: World,
    flow: Flow,
    named: dict[str, str],
):
    body = dag(ME, initiator_party_id=ME)
    body["dag"]["parties"] = [{"role": "guest", "party_id": [ME]}]
    said = flow.post("/scheduler/job/create", body, **{"initiator-party-id": ME} | named)
    denied = "OWN_NODE_ID" if named else "NOT_AUTHORISED"
    assert said["data"]["reason"] == denied
    said = flow.post(
        "/partner/job/create", {**body, **party("202411220101020000902", role="guest")}, **named
    )
    assert said["data"]["reason"] == denied
    assert world.me.store.local_jobs.find("202411220101020000902") is None


def test_a_route_to_this_node_itself_does_not_let_its_own_id_speak(world: World, flow: Flow):
    """Gateways that share a database have one, for the files of the connections between them."""
    world.me.routes.edit(
        Change(
            ME,
            {
                "host": "127.0.0.1",
                "port": 9,
                "profile": "fate-partner",
            },
        ),
        "ann",
    )
    body = dag(ME, initiator_party_id=ME)
    body["dag"]["parties"] = [{"role": "guest", "party_id": [ME]}]
    said = flow.post("/scheduler/job/create", body, **{"initiator-party-id": ME})
    world.me.routes.edit(Change(ME, None), "ann")
    assert said["data"]["reason"] == "NOT_AUTHORISED"


def test_only_the_scheduling_node_named_in_a_job_may_create_it(world: World, flow: Flow):
    job = "202411220101020000903"
    body = {**dag(SIGNS), **party(job)}
    said = flow.post("/partner/job/create", body, **{"x-source-node-id": FATE})
    assert said["data"]["reason"] == "NOT_AUTHORISED"
    assert world.me.store.local_jobs.find(job) is None


@pytest.mark.parametrize("inside", [False, True])
def test_the_site_brings_messages_to_its_own_jobs_only(
    world: World,
    flow: Flow,
    inside: bool,
):
    """Its transport signs nothing."""
    own, other = f"20241122010102000091{inside:d}", f"20241122010102000092{inside:d}"
    for site, job in ((SIGNS, own), (FATE, other)):
        body = {**dag(site), **party(job)}
        assert flow.code("/partner/job/create", body, **SIGNATURES.sign(ME, SIGNS)) == 0
    codes = {}
    for job in (own, other, "unknown"):
        said = {
            "x-ptp-source-node-id": SIGNS,
            "x-ptp-session-id": session_id(job),
            "x-ptp-target-node-id": ME,
        }
        if inside:
            message = {"metadata": said, "payload": "eyJwYXlsb2FkIjogImFHaz0ifQ=="}
            found = ask(world.me, "peer", "POST", "/v1/interconn/chan/invoke", json=message)
        else:
            headers = said | {"x-ptp-version": "1", "x-ptp-topic": "t"}
            body = {"payload": "aGk="}
            found = ask(
                world.me, "peer", "POST", "/v1/interconn/chan/invoke", json=body, headers=headers
            )
        codes[job] = found.json()["code"]
    assert codes == {
        own: "E0000000000",
        other: "E0000000614",
        "unknown": "E0000000614",
    }


def test_between_two_gateways_the_standards_requests_are_signed_as_well(world: World):
    """`PEER` has to sign here; a job's state is asked for in the standard's words."""
    me = world.peer.protocol.scheduler(ME)
    spec = a_spec("a", {"guest": (ME,), "host": (PEER,)}, job_id="job-signed")
    world.me.coordinator.submit(spec)
    assert me.job_status(spec.job_id, PEER).job_id == spec.job_id
    me.suspend_job(spec.job_id, True, PEER)
    steps = {step.name: step.result for step in world.peer.protocol.try_route(ME)}
    assert steps["answer"] is Result.OK
    me.stop_job(spec.job_id, "", PEER)
