"""A node without an entry of its own does what its part of a job needs, by a key of that job, and nothing else."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.requests import OF_PARTIES
from gateway.bootstrap.node import Gateway
from gateway.domain.spec import JobSpec
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from tests.builders import a_local_job, a_run, a_spec
from tests.contracts.apis import registration
from tests.inprocess import ME, PEER, STRANGER, ask, routes_of, running
from tests.trust.agreeing import route
from tests.trust.test_signed_requests import CONTROL, Sent, reason

THIRD = "JG0100003300000030"
INVENTED, REMOVED = "JG0000000000000405", "JG0000000000000406"
NOWHERE = {"url": "http://127.0.0.1:9"}
PAIRS = {node: KeyPair(KEY_GENERATORS["ed25519"]()) for node in (STRANGER, THIRD, REMOVED)}
OPEN = {f"{CONTROL}/node/hello", *(f"/v1/interconn/node/{name}" for name in ("query", "health"))}
OF_CONTRACTS = {
    f"/v1/interconn/node/contract/{name}" for name in ("apply", "confirm", "query", "terminate")
}
REFUSED = {"NOT_AUTHORISED", "SIGNATURE_REFUSED"}


@dataclass
class Site:
    """A node with a default route, and its partner, whose jobs name nodes that only the partner knows."""

    me: Gateway
    peer: Gateway

    def sent(
        self,
        sender: str,
        path: str,
        body: dict[str, Any],
        pair: KeyPair | None = None,
    ) -> str:
        """Send a request in a node's name; return the reason of its refusal, empty where it was taken."""
        headers = (("x-source-node-id", sender), ("x-target-node-id", ME))
        request = Sent(
            path=path,
            body=json.dumps(body).encode(),
            headers=headers,
        )
        return reason((request.signed(pair) if pair else request).to(self.me))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("nodes")
    keys = {node: Keyring(home / node / "state").make("ed25519").public for node in (ME, PEER)}
    limits = {"limits": {"partner_requests_per_minute": 100_000}}
    with running(home / ME, **limits) as me, running(home / PEER, PEER, **limits) as peer:
        partner = {
            "url": peer.addresses()["peer"],
            "keys": keys[PEER],
            "bundles": "required",
        }
        everybody_else = {"via": PEER}
        route(me, {PEER: partner, REMOVED: {**NOWHERE, "keys": PAIRS[REMOVED].public}})
        route(me, {PEER: partner, "default": everybody_else})
        known = {node: {**NOWHERE, "keys": PAIRS[node].public} for node in (STRANGER, THIRD)}
        route(peer, {ME: {"url": me.addresses()["peer"], "keys": keys[ME]}, **known})
        for node in (me, peer):
            assert (
                ask(node, "operator", "POST", "/v2/provider/register", json=registration()).json()[
                    "code"
                ]
                == 0
            )
        yield Site(me, peer)


def created(
    site: Site,
    job_id: str,
    *others: str,
) -> JobSpec:
    """Have the partner create a job with these nodes here, signed as it signs; none of its tasks has begun."""
    spec = a_spec("a", {"guest": (PEER,), "host": (ME, *others)}, job_id=job_id)
    bundles = site.peer.bundles.of(spec, [ME])
    site.me.participant.create_job(replace(spec.for_node(ME), bundles=bundles), PEER)
    return spec


@pytest.fixture(scope="module")
def job(site: Site) -> JobSpec:
    return created(site, "job-with-others", STRANGER, INVENTED, REMOVED)


def body_of(path: str, job: JobSpec) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "new_job_id": "job-new",
        "task_id": "t",
        "task_name": "a",
        "status": "RUNNING",
    }


def paths_of(site: Site) -> set[str]:
    paths = {found.path for found in routes_of(site.me.apps["peer"]) if "POST" in found.methods}
    control = {path for path in paths if path.startswith("/v1/interconn/") and "/chan/" not in path}
    return control - OPEN - OF_CONTRACTS


def test_a_name_that_a_job_names_opens_nothing(site: Site, job: JobSpec):
    """Attack: a partner names a node that is nobody's in its job, and whoever likes sends in that name."""
    paths = paths_of(site)
    assert len(paths) > 30 and paths >= OF_PARTIES
    for sender in (STRANGER, INVENTED, REMOVED):
        for path in sorted(paths):
            assert site.sent(sender, path, body_of(path, job)) in REFUSED, (sender, path)
    local = site.me.store.local_jobs.get(job.job_id)
    assert local.ending is None and site.me.store.record("job-new") is None


def test_nor_does_it_open_what_is_read(site: Site, job: JobSpec):
    headers = {"x-source-node-id": STRANGER, "x-target-node-id": ME}
    found = [one for one in routes_of(site.me.apps["peer"]) if "GET" in one.methods]
    paths = (
        {one.path for one in found if one.path.startswith("/v1/interconn/")} - OPEN - OF_CONTRACTS
    )
    assert len(paths) > 5
    for path in paths:
        answer = ask(site.me, "peer", "GET", path, params={"job_id": job.job_id}, headers=headers)
        assert reason(answer.json()) in REFUSED, (path, answer.text)


@pytest.mark.parametrize("headers", [{}, {"x-source-node-id": STRANGER}], ids=["unnamed", "named"])
def test_a_default_route_for_fate_makes_no_site_known(tmp_path: Path, headers: dict[str, str]):
    """Attack: a request that names no sender, about a job whose scheduling node has no route of its own."""
    spec = a_spec("a", {"guest": (STRANGER,), "host": (ME,)}, job_id="job-fate", scheduler=STRANGER)
    with running(tmp_path, fate={"enabled": True}) as me:
        route(me, {"default": {**NOWHERE, "profile": "fate-partner"}})
        me.store.local_jobs.add(replace(a_local_job(), spec=spec, node=ME), spec.flow_id)
        body = {
            "job_id": spec.job_id,
            "role": "host",
            "party_id": ME,
            "node": ME,
        }
        answer = ask(me, "peer", "POST", "/v2/partner/job/stop", json=body, headers=headers)
        assert "no node that may call" in answer.text or "SIGNATURE_REFUSED" in answer.text, (
            answer.text
        )
        assert me.store.local_jobs.get(spec.job_id).ending is None


@pytest.mark.parametrize(
    "sender", [STRANGER, REMOVED], ids=["by the default route", "after its removal"]
)
def test_a_key_of_the_job_opens_what_the_part_needs_and_nothing_else(
    site: Site,
    job: JobSpec,
    sender: str,
):
    """Attack: the node that takes part begins jobs of its own, has this one run again, asks after others."""
    for path in sorted(paths_of(site)):
        said = site.sent(sender, path, body_of(path, job), PAIRS[sender])
        if path not in OF_PARTIES:
            assert said == "NOT_AUTHORISED", path
    assert (
        site.sent(sender, f"{CONTROL}/job/status_all", {"job_id": job.job_id}, PAIRS[sender]) == ""
    )
    assert (
        site.sent(sender, f"{CONTROL}/job/stop", {"job_id": job.job_id}, PAIRS[sender])
        == "NOT_AUTHORISED"
    )
    assert site.me.store.local_jobs.get(job.job_id).ending is None
    assert (
        site.sent(sender, f"{CONTROL}/job/status_all", {"job_id": job.job_id}, PAIRS[THIRD])
        in REFUSED
    )


def test_a_key_of_one_job_says_nothing_in_another(site: Site, job: JobSpec):
    """Attack: who vouches for a node in its own job takes that node's name in the job of somebody else."""
    other = a_spec("a", {"guest": (THIRD,), "host": (ME, STRANGER)}, job_id="job-of-another")
    run = a_run("a", party=other.parties_at(ME)[0], task_id="task-of-another")
    site.me.store.local_jobs.add(replace(a_local_job(run), spec=other, node=ME), other.flow_id)
    asked = f"{CONTROL}/job/status_all"
    assert site.sent(STRANGER, asked, {"job_id": job.job_id}, PAIRS[STRANGER]) == ""
    assert site.sent(STRANGER, asked, {"job_id": other.job_id}, PAIRS[STRANGER]) == "NOT_AUTHORISED"
    poll = {"task_id": "task-of-another", "role": "host"}
    assert site.sent(STRANGER, f"{CONTROL}/task/poll", poll, PAIRS[STRANGER]) == "NOT_AUTHORISED"


@pytest.mark.parametrize(
    ("session", "code"), [("session_job-with-others", "E0000000000"), ("session_x", "")]
)
def test_messages_are_taken_for_jobs_of_the_node_only(
    site: Site,
    job: JobSpec,
    session: str,
    code: str,
):
    headers = {
        "x-ptp-version": "1",
        "x-ptp-source-node-id": STRANGER,
        "x-ptp-session-id": session,
    }
    headers |= {"x-ptp-target-node-id": ME, "x-ptp-topic": "t"}
    body = {"topic": "t", "payload": "aGk="}
    answer = ask(site.me, "peer", "POST", "/v1/interconn/chan/invoke", json=body, headers=headers)
    assert (answer.json()["code"] == "E0000000000") is bool(code), answer.text


def test_nobody_vouches_for_itself(site: Site, job: JobSpec):
    bundle = site.peer.bundles.of(job, [ME])[ME]
    assert site.me.bundles.vouched_keys(bundle, PEER, PEER, STRANGER) == (PAIRS[STRANGER].public,)
    assert site.me.bundles.vouched_keys(bundle, PEER, PEER, PEER) == ()
    assert site.me.bundles.vouched_keys(bundle, THIRD, THIRD, STRANGER) == ()
    forged = dict(bundle, payload=bundle["payload"][:-8] + "AAAAAAA=")
    assert site.me.bundles.vouched_keys(forged, PEER, PEER, STRANGER) == ()


def test_a_removed_partner_without_keys_begins_no_jobs(tmp_path: Path):
    """Attack: its jobs under way make it known, so it begins new ones, where nothing is signed, too."""
    spec = a_spec("a", {"guest": (PEER,), "host": (ME,)}, job_id="job-former", scheduler=PEER)
    with running(tmp_path) as me:
        route(me, {PEER: NOWHERE})
        me.store.local_jobs.add(replace(a_local_job(), spec=spec, node=ME), spec.flow_id)
        for routes in ({}, {PEER: {**NOWHERE, "enabled": False}}):
            route(me, routes)
            known = Site(me, me)
            for path in sorted(paths_of(known) - OF_PARTIES):
                assert known.sent(PEER, path, body_of(path, spec)) == "NOT_AUTHORISED", path
            assert known.sent(PEER, f"{CONTROL}/job/status_all", {"job_id": spec.job_id}) == ""


def test_an_invented_initiator_does_not_evade_the_components_of_a_route(site: Site):
    """Attack: a partner that may run one component names a node that nobody has a route to as the initiator."""
    roles = {"guest": (PEER,), "host": (ME, INVENTED)}
    spec = a_spec(
        "a",
        roles,
        job_id="job-evading",
        initiator=INVENTED,
        scheduler=PEER,
    )
    listed = {"components": "other/*"}
    ask(site.me, "operator", "PATCH", f"/api/v1/routes/{PEER}", json={"route": listed})
    try:
        verdict, words = site.me.admission.judge(spec, PEER)
        assert verdict == "reject" and "allows other/*" in words
        for path in ("job/create_all", "job/create", "job/rerun"):
            assert site.sent(INVENTED, f"{CONTROL}/{path}", {"job_id": "job-evading"}) in REFUSED
    finally:
        ask(
            site.me,
            "operator",
            "PATCH",
            f"/api/v1/routes/{PEER}",
            json={"route": {"components": "*"}},
        )


def test_components_bind_a_partner_that_was_removed_while_its_job_goes_on(tmp_path: Path):
    spec = a_spec("a", {"guest": (PEER,), "host": (ME,)}, job_id="job-former", scheduler=PEER)
    with running(tmp_path) as me:
        route(me, {PEER: {**NOWHERE, "components": "other/*"}})
        me.store.local_jobs.add(replace(a_local_job(), spec=spec, node=ME), spec.flow_id)
        route(me, {})
        assert "allows other/*" in me.peer_table.barred(PEER, "vendor/Thing")
