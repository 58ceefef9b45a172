"""A FATE site that must sign cannot be impersonated by another path, or by the ids in a body."""

import pytest

from adapter.bfia.environment import session_id
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from adapter.fate.signing import Signatures
from gateway.config.schema.partners import FateApp, FateSite
from gateway.domain.states import JobStatus
from gateway.runtime.trials import Result
from route_table.editing import Change
from tests.adapter.fate.flowing import FATE, SIGNS, Flow, dag, fate_world, party
from tests.builders import a_spec
from tests.inprocess import ME, PEER, ask
from tests.trust.peer_requests import CONTROL, reason_of

CHANNEL = "/v1/interconn/chan"


def site_signatures(token):
    """Return the signatures of a FATE site with a token."""
    app = FateApp(
        app_id="1",
        app_token=token,
    )
    return Signatures({ME: FateSite(sends=app)})


RIGHT = site_signatures("secret")
WRONG = site_signatures("guessed")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two nodes: at `ME`, the site `SIGNS` and `PEER` must sign in FATE's way."""
    site_app = {
        "app_id": "1",
        "app_token": "secret",
    }
    peer_app = {
        "app_id": "2",
        "app_token": "between us",
    }
    mine = {
        "enabled": True,
        "sites": {
            SIGNS: {"expects": site_app},
            PEER: {"expects": peer_app},
        },
    }
    theirs = {
        "enabled": True,
        "sites": {ME: {"sends": peer_app}},
    }
    with fate_world(tmp_path_factory.mktemp("nodes"), fate=mine, peer={"fate": theirs}) as world:
        yield world


@pytest.fixture
def flow(world):
    return Flow(world)


def send_as_site(
    world,
    path,
    body,
    method="POST",
    **headers,
):
    """Send `ME` a request in the name of the site; return the body of the response."""
    headers = {"x-source-node-id": SIGNS} | headers
    return ask(world.me, "peer", method, path, json=body, headers=headers).json()


def a_job_of_site(job_id):
    """Return the body of a job of the site, in the standard's words."""
    spec = a_spec(
        "a",
        {
            "guest": (SIGNS,),
            "host": (ME,),
        },
        job_id=job_id,
    )
    return create_body(spec, PROFILES["spec"])


def create_job(flow, site, job_id):
    """Create a job of a site in FATE's protocol, signed by the site `SIGNS`."""
    body = {**dag(site), **party(job_id)}
    assert flow.code("/partner/job/create", body, **RIGHT.sign(ME, SIGNS)) == 0


# ---------------------------------------------------------------- paths of the standard


@pytest.mark.parametrize(
    "spelling", ["x-source-node-id", "x_source_node_id", "x-node-id", "x_node_id"]
)
@pytest.mark.parametrize(
    "path",
    ["/job/create", "/job/create_all", "/job/plan"],
)
def test_a_job_in_the_sites_name_is_refused_on_the_standards_paths(world, spelling, path):
    body = a_job_of_site("job-unsigned")

    response = ask(
        world.me,
        "peer",
        "POST",
        CONTROL + path,
        json=body,
        headers={spelling: SIGNS},
    )

    assert response.json()["code"] == 403
    assert reason_of(response.json()) == "SIGNATURE_MISSING"
    assert world.me.store.local_jobs.find("job-unsigned") is None
    assert world.me.store.jobs.find("job-unsigned") is None


# Fields that one or another path of the standard requires.
REQUIRED_FIELDS = {
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


def operations_of_the_standard(node):
    """Return path and method of the standard's operations, except the channel's."""
    paths = ask(node, "peer", "GET", "/openapi.json").json()["paths"]
    operations = []
    for path, methods in paths.items():
        if not path.startswith(("/v2/", CHANNEL)):
            operations += [(path, method.upper()) for method in methods]
    return operations


def test_each_path_of_the_standard_requires_the_signature(world):
    body = a_job_of_site("job-path") | REQUIRED_FIELDS
    reasons = []
    for path, method in operations_of_the_standard(world.me):
        response = send_as_site(world, path, body, method, **{"x-node-id": SIGNS})
        reasons.append(reason_of(response))
        assert reasons[-1] in ("SIGNATURE_MISSING", "INVALID"), path
    assert reasons.count("SIGNATURE_MISSING") > 15


def test_a_job_of_the_site_needs_its_signature_on_the_standards_paths(world, flow):
    job_id = "202411220101020000901"
    about_job = {"job_id": job_id}
    create_job(flow, SIGNS, job_id)
    for path in ("/job/start", "/job/stop", "/job/delete", "/job/resource/apply"):
        response = send_as_site(world, CONTROL + path, about_job)
        assert reason_of(response) == "SIGNATURE_MISSING"
    wrong = send_as_site(world, f"{CONTROL}/job/stop", about_job, **WRONG.sign(ME, SIGNS))
    assert reason_of(wrong) == "SIGNATURE_WRONG"
    assert world.local(job_id).status is JobStatus.READY

    signature = RIGHT.sign(ME, "")
    assert send_as_site(world, f"{CONTROL}/job/start", about_job, **signature)["code"] == 0
    repeated = send_as_site(world, f"{CONTROL}/job/stop", about_job, **signature)
    assert reason_of(repeated) == "SIGNATURE_USED"
    assert world.local(job_id).status is JobStatus.RUNNING


# ---------------------------------------------------------------- ids of other nodes


def a_flow_of_this_node():
    """Return a flow whose only party and initiator is this node."""
    body = dag(ME, initiator_party_id=ME)
    body["dag"]["parties"] = [{"role": "guest", "party_id": [ME]}]
    return body


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "NOT_AUTHORISED"),
        ({"x-source-node-id": ME}, "OWN_NODE_ID"),
        ({"x_source_node_id": ME}, "OWN_NODE_ID"),
    ],
    ids=["unnamed", "named", "named with underscores"],
)
def test_this_nodes_own_id_opens_nothing(world, flow, headers, reason):
    job_id = "202411220101020000902"
    body = a_flow_of_this_node()

    initiated = flow.post("/scheduler/job/create", body, **{"initiator-party-id": ME}, **headers)
    assert reason_of(initiated) == reason

    body |= party(job_id, role="guest")
    created = flow.post("/partner/job/create", body, **headers)
    assert reason_of(created) == reason
    assert world.me.store.local_jobs.find(job_id) is None


@pytest.fixture
def route_to_itself(world):
    """Give `ME` a route to itself, as gateways have that share a database."""
    entry = {
        "host": "127.0.0.1",
        "port": 9,
        "profile": "fate-partner",
    }
    world.me.routes.edit(
        Change(ME, entry),
        "ann",
    )
    yield
    world.me.routes.edit(
        Change(ME, None),
        "ann",
    )


@pytest.mark.usefixtures("route_to_itself")
def test_a_route_to_this_node_itself_does_not_authorise_its_own_id(flow):
    body = a_flow_of_this_node()
    response = flow.post("/scheduler/job/create", body, **{"initiator-party-id": ME})
    assert reason_of(response) == "NOT_AUTHORISED"


def test_only_the_scheduling_node_named_in_a_job_may_create_it(world, flow):
    job_id = "202411220101020000903"
    body = {**dag(SIGNS), **party(job_id)}

    response = flow.post("/partner/job/create", body, **{"x-source-node-id": FATE})

    assert reason_of(response) == "NOT_AUTHORISED"
    assert world.me.store.local_jobs.find(job_id) is None


# ---------------------------------------------------------------- messages


def send_by_headers(world, metadata):
    """Send a message with its metadata in headers."""
    headers = metadata | {
        "x-ptp-version": "1",
        "x-ptp-topic": "t",
    }
    body = {"payload": "aGk="}
    return ask(
        world.me,
        "peer",
        "POST",
        f"{CHANNEL}/invoke",
        json=body,
        headers=headers,
    )


def send_in_envelope(world, metadata):
    """Send a message with its metadata in the body."""
    envelope = {
        "metadata": metadata,
        "payload": "eyJwYXlsb2FkIjogImFHaz0ifQ==",
    }
    return ask(
        world.me,
        "peer",
        "POST",
        f"{CHANNEL}/invoke",
        json=envelope,
    )


@pytest.mark.parametrize(
    ("send", "series"), [(send_by_headers, "0"), (send_in_envelope, "1")], ids=["headers", "body"]
)
def test_the_site_brings_messages_to_its_own_jobs_only(world, flow, send, series):
    """FATE's transport signs nothing."""
    job_of_site = f"20241122010102000091{series}"
    job_of_another = f"20241122010102000092{series}"
    create_job(flow, SIGNS, job_of_site)
    create_job(flow, FATE, job_of_another)

    for job_id, code in (
        (job_of_site, "E0000000000"),
        (job_of_another, "E0000000614"),
        ("unknown", "E0000000614"),
    ):
        metadata = {
            "x-ptp-source-node-id": SIGNS,
            "x-ptp-session-id": session_id(job_id),
            "x-ptp-target-node-id": ME,
        }
        assert send(world, metadata).json()["code"] == code, job_id


def test_between_two_gateways_the_standards_requests_are_signed_as_well(world):
    """`PEER` must sign at `ME`; it asks for a job's status in the standard's words."""
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        job_id="job-signed",
    )
    world.me.job_requests.submit(spec)
    scheduler = world.peer.protocol.scheduler(ME)

    assert scheduler.job_status(spec.job_id, PEER).job_id == spec.job_id
    scheduler.suspend_job(spec.job_id, True, PEER)

    results = {step.name: step.result for step in world.peer.protocol.try_route(ME)}
    assert results["answer"] is Result.OK
    scheduler.stop_job(spec.job_id, "", PEER)
