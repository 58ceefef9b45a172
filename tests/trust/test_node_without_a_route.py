"""A node without its own route may do its part of a job, by a key of that job, and nothing else."""

import json
from dataclasses import dataclass, replace

import pytest

from adapter.bfia.requests import OF_PARTIES
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from provider_registry.registration import provider_from_request
from tests.builders import a_local_job, a_run, a_spec
from tests.contracts.apis import registration
from tests.inprocess import ME, PEER, STRANGER, Node, ask, routes_of, running
from tests.trust.agreeing import edit_route, set_routes
from tests.trust.peer_requests import CONTROL, PeerRequest, reason_of
from tests.world import UNREACHABLE

THIRD = "JG0100003300000030"
INVENTED = "JG0000000000000405"  # no node has a route to it
REMOVED = "JG0000000000000406"  # had a route at `ME`, with a key
PAIRS = {node: KeyPair(KEY_GENERATORS["ed25519"]()) for node in (STRANGER, THIRD, REMOVED)}
# Paths that serve everybody.
OPEN = {
    f"{CONTROL}/node/hello",
    "/v1/interconn/node/query",
    "/v1/interconn/node/health",
}
# Paths of contracts serve unknown nodes by rules of their own: see test_contracts.py.
OF_CONTRACTS = {
    "/v1/interconn/node/contract/apply",
    "/v1/interconn/node/contract/confirm",
    "/v1/interconn/node/contract/query",
    "/v1/interconn/node/contract/terminate",
}
STATUS_ALL = f"{CONTROL}/job/status_all"
STOP = f"{CONTROL}/job/stop"
REFUSED = {"NOT_AUTHORISED", "SIGNATURE_REFUSED"}


@dataclass
class Site:
    """A node with a default route, and a partner whose jobs name nodes that only it knows."""

    me: Node
    peer: Node

    def send(
        self,
        sender,
        path,
        body,
        pair=None,
    ):
        """Send a request in a node's name; return the reason of its refusal, or ""."""
        request = PeerRequest(
            path=path,
            body=json.dumps(body).encode(),
        )
        request = request.with_header("x-source-node-id", sender)
        if pair is not None:
            request = request.signed(pair)
        return request.refusal_of(self.me)

    def command_paths(self):
        """Return the paths that take commands of partners."""
        paths = set()
        for route in routes_of(self.me.apps["peer"]):
            if "POST" in route.methods and is_for_partners(route.path):
                paths.add(route.path)
        return sorted(paths)

    def reading_paths(self):
        """Return the paths at which partners read."""
        paths = set()
        for route in routes_of(self.me.apps["peer"]):
            if "GET" in route.methods and is_for_partners(route.path):
                paths.add(route.path)
        return sorted(paths)


def is_for_partners(path):
    """Return whether a path of the standard, except the channel's, serves partners only."""
    if path in OPEN or path in OF_CONTRACTS:
        return False
    return path.startswith("/v1/interconn/") and "/chan/" not in path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    home = tmp_path_factory.mktemp("nodes")
    my_key = Keyring(home / ME / "state").make("ed25519").public
    peer_key = Keyring(home / PEER / "state").make("ed25519").public
    options = {"limits": {"partner_requests_per_minute": 100_000}}
    with (
        running(home / ME, **options) as me,
        running(home / PEER, PEER, **options) as peer,
    ):
        partner = {
            "url": peer.addresses()["peer"],
            "keys": peer_key,
            "bundles": "required",
        }
        set_routes(
            me,
            {
                PEER: partner,
                REMOVED: with_key(REMOVED),
            },
        )
        set_routes(
            me,
            {
                PEER: partner,
                "default": {"via": PEER},
            },
        )
        set_routes(
            peer,
            {
                ME: {
                    "url": me.addresses()["peer"],
                    "keys": my_key,
                },
                STRANGER: with_key(STRANGER),
                THIRD: with_key(THIRD),
            },
        )
        for node in (me, peer):
            node.registry.register(provider_from_request(registration()))
        yield Site(me, peer)


def with_key(node):
    """Return a route to a node that signs and cannot be reached."""
    return {**UNREACHABLE, "keys": PAIRS[node].public}


@pytest.fixture(scope="module")
def job(site):
    """A job of the partner between several nodes, created here and without a task that has begun.

    The partner has signed its bundle.
    """
    roles = {
        "guest": (PEER,),
        "host": (ME, STRANGER, INVENTED, REMOVED),
    }
    spec = a_spec(
        "a",
        roles,
        job_id="job-with-others",
    )
    bundles = site.peer.bundles.bundles_for(
        spec,
        [ME],
    )
    site.me.participant.create_job(
        replace(
            spec.for_node(ME),
            bundles=bundles,
        ),
        PEER,
    )
    return spec


def body_about(job):
    """Return a body that any command about a job accepts."""
    return {
        "job_id": job.job_id,
        "new_job_id": "job-new",
        "task_id": "t",
        "task_name": "a",
        "status": "RUNNING",
    }


def store_local_job(node, spec, *runs):
    """Store a job in which a node takes part."""
    local_job = replace(a_local_job(*runs), spec=spec, node=ME)
    node.store.local_jobs.add(local_job, spec.flow_id)


# ---------------------------------------------------------------- a name without a key


@pytest.mark.parametrize(
    "sender",
    [STRANGER, INVENTED, REMOVED],
)
def test_a_name_in_a_job_opens_no_command(site, job, sender):
    """Attack: a stranger sends in the name of a node that a partner's job names."""
    paths = site.command_paths()
    assert len(paths) > 30
    assert set(paths) >= OF_PARTIES

    for path in paths:
        assert site.send(sender, path, body_about(job)) in REFUSED, path

    assert site.me.store.local_jobs.get(job.job_id).ending is None
    assert site.me.store.record("job-new") is None


def test_a_name_in_a_job_opens_nothing_to_read(site, job):
    headers = {
        "x-source-node-id": STRANGER,
        "x-target-node-id": ME,
    }
    paths = site.reading_paths()
    assert len(paths) > 5

    for path in paths:
        query = {"job_id": job.job_id}
        response = ask(
            site.me,
            "peer",
            "GET",
            path,
            params=query,
            headers=headers,
        )
        assert reason_of(response.json()) in REFUSED, (path, response.text)


@pytest.mark.parametrize(
    "headers", [{}, {"x-source-node-id": STRANGER}], ids=["without a name", "with a name"]
)
def test_a_default_route_for_fate_makes_no_site_known(tmp_path, headers):
    """Attack: it is about a job whose scheduling node has no route of its own."""
    roles = {
        "guest": (STRANGER,),
        "host": (ME,),
    }
    spec = a_spec(
        "a",
        roles,
        job_id="job-fate",
        scheduler=STRANGER,
    )
    body = {
        "job_id": spec.job_id,
        "role": "host",
        "party_id": ME,
        "node": ME,
    }
    with running(tmp_path, fate={"enabled": True}) as me:
        set_routes(me, {"default": {**UNREACHABLE, "profile": "fate-partner"}})
        store_local_job(me, spec)

        response = ask(
            me,
            "peer",
            "POST",
            "/v2/partner/job/stop",
            json=body,
            headers=headers,
        )

        refusals = ("no node that may call", "SIGNATURE_REFUSED")
        assert any(refusal in response.text for refusal in refusals), response.text
        assert me.store.local_jobs.get(spec.job_id).ending is None


# ---------------------------------------------------------------- a key of one job


@pytest.mark.parametrize(
    "sender", [STRANGER, REMOVED], ids=["by the default route", "after its removal"]
)
def test_a_key_of_the_job_opens_only_the_part_of_its_node(site, job, sender):
    """Attack: a party begins jobs of its own, reruns this one, or asks about other jobs."""
    pair = PAIRS[sender]
    for path in site.command_paths():
        reason = site.send(
            sender,
            path,
            body_about(job),
            pair,
        )
        if path not in OF_PARTIES:
            assert reason == "NOT_AUTHORISED", path

    about_job = {"job_id": job.job_id}
    assert site.send(sender, STATUS_ALL, about_job, pair) == ""
    assert site.send(sender, STOP, about_job, pair) == "NOT_AUTHORISED"
    assert site.me.store.local_jobs.get(job.job_id).ending is None
    assert site.send(sender, STATUS_ALL, about_job, PAIRS[THIRD]) in REFUSED


def test_a_key_of_one_job_opens_nothing_in_another(site, job):
    """Attack: a node vouches in its own job for a name that takes part in another node's job."""
    another_job = a_spec(
        "a",
        {
            "guest": (THIRD,),
            "host": (ME, STRANGER),
        },
        job_id="job-of-another",
    )
    run = a_run(
        "a",
        party=another_job.parties_at(ME)[0],
        task_id="task-of-another",
    )
    store_local_job(site.me, another_job, run)
    pair = PAIRS[STRANGER]

    assert site.send(STRANGER, STATUS_ALL, {"job_id": job.job_id}, pair) == ""
    about_another = {"job_id": another_job.job_id}
    assert site.send(STRANGER, STATUS_ALL, about_another, pair) == "NOT_AUTHORISED"
    about_its_task = {
        "task_id": "task-of-another",
        "role": "host",
    }
    reason = site.send(STRANGER, f"{CONTROL}/task/poll", about_its_task, pair)
    assert reason == "NOT_AUTHORISED"


@pytest.mark.parametrize(
    ("session", "is_accepted"),
    [
        ("session_job-with-others", True),
        ("session_x", False),
    ],
)
def test_messages_are_accepted_only_for_jobs_of_the_sender(site, job, session, is_accepted):
    headers = {
        "x-ptp-version": "1",
        "x-ptp-source-node-id": STRANGER,
        "x-ptp-target-node-id": ME,
        "x-ptp-session-id": session,
        "x-ptp-topic": "t",
    }
    body = {
        "topic": "t",
        "payload": "aGk=",
    }

    response = ask(
        site.me,
        "peer",
        "POST",
        "/v1/interconn/chan/invoke",
        json=body,
        headers=headers,
    )

    assert (response.json()["code"] == "E0000000000") is is_accepted, response.text


def test_a_bundle_vouches_for_other_nodes_only(site, job):
    bundle = site.peer.bundles.bundles_for(job, [ME])[ME]
    vouched_keys = site.me.bundles.vouched_keys

    assert vouched_keys(bundle, PEER, PEER, STRANGER) == (PAIRS[STRANGER].public,)
    assert vouched_keys(bundle, PEER, PEER, PEER) == ()
    assert vouched_keys(bundle, THIRD, THIRD, STRANGER) == ()
    forged = dict(
        bundle,
        payload=bundle["payload"][:-8] + "AAAAAAA=",
    )
    assert vouched_keys(forged, PEER, PEER, STRANGER) == ()


# ---------------------------------------------------------------- removed partners


@pytest.mark.parametrize(
    "routes",
    [{}, {PEER: {**UNREACHABLE, "enabled": False}}],
    ids=["without the route", "with a disabled route"],
)
def test_a_removed_partner_without_keys_begins_no_jobs(tmp_path, routes):
    """Attack: its running jobs make the partner known, and it begins new ones unsigned."""
    roles = {
        "guest": (PEER,),
        "host": (ME,),
    }
    spec = a_spec(
        "a",
        roles,
        job_id="job-former",
        scheduler=PEER,
    )
    with running(tmp_path) as me:
        set_routes(me, {PEER: UNREACHABLE})
        store_local_job(me, spec)
        set_routes(me, routes)
        site = Site(me, me)

        for path in site.command_paths():
            if path not in OF_PARTIES:
                assert site.send(PEER, path, body_about(spec)) == "NOT_AUTHORISED", path

        assert site.send(PEER, STATUS_ALL, {"job_id": spec.job_id}) == ""


@pytest.fixture
def with_one_component(site):
    """Allow the partner's jobs one component of another provider."""
    edit_route(
        site.me,
        PEER,
        components="other/*",
    )
    yield
    edit_route(
        site.me,
        PEER,
        components="*",
    )


@pytest.mark.usefixtures("with_one_component")
def test_an_invented_initiator_does_not_evade_the_components_of_a_route(site):
    """Attack: a partner that may run one component names an unknown node as the initiator."""
    spec = a_spec(
        "a",
        {
            "guest": (PEER,),
            "host": (ME, INVENTED),
        },
        job_id="job-evading",
        initiator=INVENTED,
        scheduler=PEER,
    )

    verdict, words = site.me.admission.judge(
        spec,
        PEER,
    )

    assert verdict == "reject"
    assert "allows other/*" in words
    for path in ("job/create_all", "job/create", "job/rerun"):
        reason = site.send(
            INVENTED,
            f"{CONTROL}/{path}",
            {"job_id": "job-evading"},
        )
        assert reason in REFUSED


def test_components_bind_a_removed_partner_while_its_job_goes_on(tmp_path):
    roles = {
        "guest": (PEER,),
        "host": (ME,),
    }
    spec = a_spec(
        "a",
        roles,
        job_id="job-former",
        scheduler=PEER,
    )
    with running(tmp_path) as me:
        set_routes(me, {PEER: {**UNREACHABLE, "components": "other/*"}})
        store_local_job(me, spec)
        set_routes(me, {})
        assert "allows other/*" in me.peer_table.why_barred(PEER, "vendor/Thing")
