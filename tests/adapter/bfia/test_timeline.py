"""A job's timeline has every request to another node, with its target, response and duration."""

from collections import Counter
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gateway.bootstrap.parts import Pace
from gateway.errors import GatewayError
from tests.adapter.bfia.scripted import raw, says, states
from tests.adapter.bfia.site import CONTROL, FATE, SPEC, Site, a_job_with, by_path, serving_site
from tests.contracts.apis import THIRD
from tests.e2e.nodes import wait_for
from tests.inprocess import ME

POLL = f"{CONTROL}/task/poll"


def timeline(
    site: Site,
    job_id: str,
) -> list[dict[str, Any]]:
    """Return the entries of a job's timeline."""
    response = site.node.get(f"/api/v1/jobs/{job_id}/timeline")
    assert response.status_code == 200
    return list(response.json()["timeline"])


def sent_requests(
    site: Site,
    job_id: str,
) -> list[dict[str, Any]]:
    """Return the entries of sent requests, each with its details."""
    entries = timeline(site, job_id)
    return [entry | entry["detail"] for entry in entries if entry["event"] == "request sent"]


def stop_is_recorded(site, job_id):
    """Return whether the last request of a job, which follows its end, is in the timeline."""
    return any(entry["path"].endswith("/job/stop") for entry in sent_requests(site, job_id))


def test_the_timeline_has_every_request_of_a_job_and_counts_quiet_polls(site):
    site.peer.will(
        by_path(
            task_poll=states(
                "PENDING",
                "PENDING",
                "PENDING",
                "READY",
                "RUNNING",
                "RUNNING",
            ),
            other=says(msg="success, 好"),
        )
    )
    spec = a_job_with(SPEC)

    site.submit(spec)
    site.succeed(spec.job_id)
    site.wait_for_end(spec.job_id)
    wait_for(partial(stop_is_recorded, site, spec.job_id))

    received = site.requests_about(spec.job_id)
    sent = sent_requests(site, spec.job_id)
    for entry in sent:
        assert entry["node"] == SPEC
        assert entry["by"] == SPEC
        assert entry["method"] == "POST"
        assert entry["http"] == 200
        assert entry["code"] == 0
        assert 0 <= entry["seconds"] < 30
        assert entry["trace_id"] == spec.trace_id
    assert received[0].headers["x-trace-id"] == spec.trace_id

    commands = [entry for entry in sent if entry["path"] != POLL]
    received_commands = [request for request in received if request.target != POLL]
    assert {entry["message"] for entry in commands} == {"success, 好"}
    assert Counter(entry["path"] for entry in commands) == Counter(
        request.target for request in received_commands
    )

    polls = [entry for entry in sent if entry["path"] == POLL]
    # the polls with news: READY, RUNNING, SUCCESS
    assert len(polls) == 3
    quiet_polls = sum(entry.get("quiet_before", 0) for entry in polls)
    assert len(polls) + quiet_polls == len(received) - len(received_commands)


def test_the_timeline_has_requests_and_states_in_their_order(site):
    site.peer.will(by_path(task_poll=states("PENDING", "READY", "RUNNING")))
    spec = a_job_with(SPEC)

    site.submit(spec)
    site.succeed(spec.job_id)
    site.wait_for_end(spec.job_id)

    entries = timeline(site, spec.job_id)
    events = [entry["event"] for entry in entries if entry["side"] == "scheduler"]
    assert events[events.index("request sent") + 1] == "create accepted"
    milestones = (
        "create accepted",
        "job READY",
        "job RUNNING",
        "task SUCCESS",
        "job FINISHED",
    )
    first_places = [events.index(milestone) for milestone in milestones]
    assert first_places == sorted(first_places)


def test_each_partys_code_and_message_are_kept_verbatim(site):
    refusal = {
        "code": 6000,
        "message": "no such dataset\n  'x'",
        "data": None,
    }
    site.peer.will(says(refusal, 400))
    spec = a_job_with(FATE)

    with pytest.raises(GatewayError) as caught:
        site.submit(spec)

    [entry] = sent_requests(site, spec.job_id)
    assert entry["path"] == f"{CONTROL}/job/create"
    assert entry["http"] == 400
    assert entry["code"] == 6000
    assert entry["message"] == refusal["message"]
    assert refusal["message"] in caught.value.message
    assert FATE in caught.value.message


# A peer's refusal, and its code and message in the timeline.
ODD_REFUSALS = {
    "no words": (
        {
            "code": ["odd"],
            "msg": {"a": 1},
        },
        "['odd']",
        "{'a': 1}",
    ),
    "endless": (
        {"code": 10**400, "msg": "x" * 100_000},
        "1" + "0" * 99 + "…",
        "x" * 2000 + "…",
    ),
    "half a pair": (
        {"code": 1, "msg": "half \ud800 pair"},
        1,
        "half ? pair",
    ),
    "no envelope": ([], None, ""),
}


@pytest.mark.parametrize(
    ("refusal", "code", "message"),
    ODD_REFUSALS.values(),
    ids=ODD_REFUSALS,
)
def test_any_refusal_of_a_peer_can_be_stored(site, refusal, code, message):
    site.peer.will(says(refusal))
    spec = a_job_with(SPEC)

    with pytest.raises(GatewayError):
        site.submit(spec)

    create, *stops = sent_requests(site, spec.job_id)
    assert create["code"] == code
    assert create["message"] == message
    # An answer without an envelope leaves open whether the job was created: it is stopped.
    assert {stop["path"] for stop in stops} <= {f"{CONTROL}/job/stop"}


def test_the_retry_that_was_answered_is_always_in_the_timeline(tmp_path):
    """The timeline has only some failed tries, but always the successful last one."""
    pace = Pace(
        first_retry=0.02,
        longest_retry=0.02,
    )
    with serving_site(tmp_path, pace) as site:
        spec = a_job_with(SPEC)

        def answer_seventh_stop(handler: BaseHTTPRequestHandler) -> None:
            requests = site.requests_about(spec.job_id)
            stops = [request for request in requests if request.target == f"{CONTROL}/job/stop"]
            respond = says()
            if len(stops) < 7:
                respond = raw(b"", reset=True)
            respond(handler)

        def is_stopped() -> bool:
            return site.job(spec.job_id).nodes[SPEC].stop.completed

        site.peer.will(by_path(job_stop=answer_seventh_stop))
        site.submit(spec)
        site.stop(spec.job_id)
        wait_for(is_stopped, 60, 0.02)

        entries = sent_requests(site, spec.job_id)
        stops = [entry for entry in entries if entry["path"] == f"{CONTROL}/job/stop"]
        last_failure, success = stops[-2:]
        assert last_failure["tries"] == 4
        assert last_failure["http"] is None
        assert success["tries"] == 7
        assert success["http"] == 200


def test_requests_on_behalf_of_a_platform_are_in_the_timeline(site):
    spec = replace(
        a_job_with(SPEC, scheduler=SPEC),
        initiator=ME,
        initiator_role="guest",
    )
    site.node.job_requests.submit(spec)
    site.peer.will(says({"code": 1, "msg": "not now"}))
    with pytest.raises(GatewayError):
        site.node.job_requests.stop(spec.job_id)

    submission, stop = sent_requests(site, spec.job_id)
    assert submission["side"] == "initiator"
    assert submission["path"] == f"{CONTROL}/job/create_all"
    assert submission["code"] == 0
    assert submission["message"] == "success"
    assert stop["side"] == "initiator"
    assert stop["path"] == f"{CONTROL}/job/stop_all"
    assert stop["code"] == 1
    assert stop["message"] == "not now"
    assert THIRD not in {submission["node"], stop["node"]}
