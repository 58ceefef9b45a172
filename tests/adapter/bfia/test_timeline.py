"""A job's timeline tells every request to another node: where it went, what came back, how long it took."""

from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gateway.errors import GatewayError
from tests.adapter.bfia.scripted import raw, says
from tests.adapter.bfia.site import CONTROL, FATE, SPEC, Site, a_job_with, by_path
from tests.contracts.apis import THIRD
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask


def timeline(site: Site, job_id: str) -> list[dict[str, Any]]:
    answer = ask(site.node, "operator", "GET", f"/api/v1/jobs/{job_id}/timeline")
    assert answer.status_code == 200
    return list(answer.json()["timeline"])


def calls(site: Site, job_id: str) -> list[dict[str, Any]]:
    return [e | e["detail"] for e in timeline(site, job_id) if e["event"] == "request sent"]


def test_the_timeline_has_every_request_of_a_job_and_counts_quiet_polls(site: Site):
    states = iter(["PENDING"] * 3 + ["READY", "RUNNING", "RUNNING"])

    def poll(handler: BaseHTTPRequestHandler) -> None:
        says(data={"status": next(states, "SUCCESS")})(handler)

    site.peer.will(
        by_path(
            task_poll=poll,
            other=says(
                {
                    "code": 0,
                    "msg": "success, 好",
                    "data": {},
                }
            ),
        )
    )
    spec = a_job_with(SPEC)
    site.node.coordinator.submit_job(spec, ME)
    site.succeed(spec.job_id)
    wait_for(lambda: site.node.store.jobs.get(spec.job_id).ended_at, 30, 0.02, "the job has ended")
    told = calls(site, spec.job_id)
    asked = site.asked(spec.job_id)
    others = Counter(a.target for a in asked if not a.target.endswith("/task/poll"))
    assert Counter(c["path"] for c in told if not c["path"].endswith("/task/poll")) == others
    polls = [c for c in told if c["path"].endswith("/task/poll")]
    assert len(polls) + sum(c.get("quiet_before", 0) for c in polls) == len(asked) - sum(
        others.values()
    )
    assert len(polls) == 3  # it became READY, RUNNING, SUCCESS
    for call in told:
        assert (call["node"], call["by"], call["method"], call["http"]) == (SPEC, SPEC, "POST", 200)
        assert call["code"] == 0 and 0 <= call["seconds"] < 30
        assert call["trace_id"] == asked[0].headers["x-trace-id"] == spec.trace_id
    assert {c["message"] for c in told if c not in polls} == {"success, 好"}
    events = [e["event"] for e in timeline(site, spec.job_id) if e["side"] == "scheduler"]
    for one, other in (
        ("create accepted", "job READY"),
        ("job READY", "job RUNNING"),
        ("job RUNNING", "task SUCCESS"),
    ):
        assert events.index(one) < events.index(other) < events.index("job FINISHED")
    assert events[events.index("request sent") + 1] == "create accepted"


def test_each_partys_code_and_message_are_kept_verbatim(site: Site):
    site.peer.will(
        says(
            {
                "code": 6000,
                "message": "no such dataset\n  'x'",
                "data": None,
            },
            400,
        )
    )
    spec = a_job_with(FATE)
    with pytest.raises(GatewayError) as caught:
        site.node.coordinator.submit_job(spec, ME)
    (call,) = calls(site, spec.job_id)
    assert (call["path"], call["http"], call["code"]) == (f"{CONTROL}/job/create", 400, 6000)
    assert call["message"] == "no such dataset\n  'x'" and call["message"] in caught.value.message
    assert FATE in caught.value.message


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (says({"code": ["odd"], "msg": {"a": 1}}), "['odd']", "{'a': 1}"),
        (says({"code": 10**400, "msg": "x" * 100_000}), "1" + "0" * 99 + "…", "x" * 2000 + "…"),
        (says({"code": 1, "msg": "half \ud800 pair"}), 1, "half ? pair"),
        (says([]), None, ""),
    ],
    ids=["no words", "endless", "half a pair", "no envelope"],
)
def test_whatever_a_peer_says_can_be_kept(
    site: Site,
    answer: Any,
    code: Any,
    said: str,
):
    site.peer.will(answer)
    spec = a_job_with(SPEC)
    with pytest.raises(GatewayError):
        site.node.coordinator.submit_job(spec, ME)
    (call, *stops) = calls(site, spec.job_id)
    assert (call["code"], call["message"]) == (code, said)
    assert {stop["path"] for stop in stops} <= {
        f"{CONTROL}/job/stop"
    }  # an answer that is none leaves it open


def test_the_retry_that_was_answered_is_always_in_the_timeline(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    """A stop that arrives with the seventh try was not lost, as those before it say."""
    quick = replace(site.node.scheduler._timing, retry_first=0.02, retry_max=0.02)
    monkeypatch.setattr(site.node.scheduler, "_timing", quick)
    spec = a_job_with(SPEC)

    def stopping(handler: BaseHTTPRequestHandler) -> None:
        stops = [a for a in site.asked(spec.job_id) if a.target.endswith("/job/stop")]
        (raw(b"", reset=True) if len(stops) < 7 else says())(handler)

    site.peer.will(by_path(job_stop=stopping))
    site.node.coordinator.submit_job(spec, ME)
    site.node.coordinator.stop_job(spec.job_id, "", ME)
    stop = wait_for(
        lambda: site.node.store.jobs.get(spec.job_id).nodes[SPEC].stop.completed, 60, 0.02
    )
    told = [c for c in calls(site, spec.job_id) if c["path"] == f"{CONTROL}/job/stop"]
    assert stop and [(c.get("tries", 1), c["http"]) for c in told][-2:] == [(4, None), (7, 200)]


def test_requests_on_behalf_of_a_platform_are_in_the_timeline(site: Site):
    spec = a_job_with(SPEC, scheduler=SPEC)
    spec = type(spec)(
        **{
            **vars(spec),
            "initiator": ME,
            "initiator_role": "guest",
        }
    )
    site.node.coordinator.submit(spec)
    site.peer.will(says({"code": 1, "msg": "not now"}))
    with pytest.raises(GatewayError):
        site.node.coordinator.stop(spec.job_id)
    told = calls(site, spec.job_id)
    assert [
        (c["side"], c["path"].removeprefix(CONTROL), c["code"], c["message"]) for c in told
    ] == [
        ("initiator", "/job/create_all", 0, "success"),
        ("initiator", "/job/stop_all", 1, "not now"),
    ]
    assert THIRD not in {c["node"] for c in told}
