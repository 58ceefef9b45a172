"""The table of what nodes ask of each other: it is whole, the documents show it, and no peer needs all of it."""

import json
import re
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from adapter.bfia.interconn import SCHEDULE
from adapter.bfia.peer import JOB_AUDIT, OPTIONAL
from gateway.domain.rerun import RerunResult
from gateway.domain.states import Outcome
from gateway.errors import NotServed, Refused
from tests.adapter.bfia.conftest import As
from tests.adapter.bfia.scripted import Answer, ScriptedPeer, says, text
from tests.adapter.bfia.site import SPEC, Site, a_job_with
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask

ROOT = Path(__file__).resolve().parents[3]
OURS = "/job/delete"


def rows() -> list[tuple[str, str, str]]:
    """Return path, source and what happens at a peer without it, of each command in the document."""
    shown = (ROOT / "docs" / "between-nodes.md").read_text(encoding="utf-8")
    table = shown.split("<!-- commands -->\n")[1].split("\n<!-- end -->")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [(path.strip("`"), source, without) for _, path, source, without in cells]


ROWS = rows()
STANDARD = {path for path, source, _ in ROWS if re.match(r"standard, [0-9]", source)}


def test_the_chinese_page_has_the_same_rows_and_what_needs_no_translation():
    def facts(page: str, of: str) -> list[list[str]]:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        lines = text.split(f"<!-- {of} -->\n")[1].split("\n<!-- end -->")[0].splitlines()[2:]
        return [
            re.findall(r"`[^`]+`|\b[0-9]+(?:\.[0-9]+)*\b", line) + re.findall(r"[A-Z_]{5,}", line)
            for line in lines
        ]

    for of in ("commands", "profiles"):
        english, chinese = (
            facts(page, of) for page in ("between-nodes.md", "between-nodes.zh-CN.md")
        )
        assert len(english) == len(chinese)
        for ours, theirs in zip(english, chinese, strict=True):
            assert sorted(ours) == sorted(theirs)


def test_every_path_between_nodes_has_its_row_and_every_row_its_path(site: Site):
    described = ask(site.node, "peer", "GET", "/openapi.json").json()["paths"]
    served = {p.removeprefix(SCHEDULE) for p in described if p.startswith((SCHEDULE, JOB_AUDIT))}
    assert served - {f"{JOB_AUDIT}/query"} == {path for path, _, _ in ROWS}
    assert {path for path, source, _ in ROWS if source == "extension"} == set(OPTIONAL) - {
        f"{JOB_AUDIT}/terminate"
    }
    for path, without in OPTIONAL.items():
        assert any(at == path and told.startswith(without) for at, _, told in ROWS), path


@pytest.mark.parametrize(
    ("profile", "answer"),
    [
        (
            "spec",
            says(
                {
                    "code": 404,
                    "msg": "PATH_UNKNOWN: x",
                    "data": {"reason": "PATH_UNKNOWN"},
                },
                404,
            ),
        ),
        (
            "spec",
            says(
                {
                    "code": 405,
                    "msg": "x",
                    "data": {"reason": "METHOD_NOT_ALLOWED"},
                },
                405,
            ),
        ),
        ("spec", says({"detail": "Not Found"}, 404)),
        ("spec", text(b"<html>404</html>", 404)),
        ("spec", text(b"", 501)),
        ("kuscia", text(b"404 page not found", 404, "text/plain")),
        ("fate", says({"code": 6000, "message": "404 Not Found"})),
    ],
    ids=["envelope", "method", "framework", "page", "not implemented", "kuscia", "fate"],
)
def test_a_peer_that_has_only_the_standard(
    peer: ScriptedPeer,
    calling: As,
    profile: str,
    answer: Answer,
):
    peer.will(answer)
    with calling(profile) as found, pytest.raises(NotServed) as caught:
        found.peer.ask(OURS, {"job_id": "j"})
    assert caught.value.reason == "NOT_SERVED_THERE"
    assert all(word in caught.value.message for word in (PEER, OURS, OPTIONAL[OURS]))
    (asked,) = peer.asked
    assert (asked.method, asked.target, json.loads(asked.raw)) == (
        "POST",
        SCHEDULE + OURS,
        {"job_id": "j"},
    )


@pytest.mark.parametrize("scheduled", [True, False], ids=["we schedule", "they schedule"])
def test_a_whole_job_with_a_peer_that_has_only_the_standard(site: Site, scheduled: bool):
    """It answers 404 to every other path, tells only the standard's fields, and reads over all of ours."""
    states = iter(["READY", "RUNNING"])

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0].removeprefix(SCHEDULE)
        if path not in STANDARD:
            text(b"<html>not found</html>", 404)(handler)
        elif path == "/task/poll":
            says(data={"status": next(states, "SUCCESS")})(handler)
        else:
            says()(handler)

    site.peer.will(answer)
    spec = a_job_with(SPEC, scheduler=ME if scheduled else SPEC)
    if scheduled:
        site.node.coordinator.submit_job(spec, ME)
    else:
        site.node.participant.create_job(spec, SPEC)
        site.node.participant.start_task(spec.job_id, f"t-{spec.job_id}", "a", SPEC)
    site.succeed(spec.job_id)
    wait_for(lambda: site.node.store.local_jobs.get(spec.job_id).runs[0].over, 20, 0.02)
    if not scheduled:
        assert site.asks(SPEC, "/job/stop", {"job_id": spec.job_id})["code"] == 0
    local = site.node.store.local_jobs
    wait_for(lambda: local.get(spec.job_id).ending is not None, 30, 0.02, "the job has ended here")
    ending = local.get(spec.job_id).ending
    assert ending is not None and ending.outcome is Outcome.SUCCEEDED
    assert {a.target.partition("?")[0].removeprefix(SCHEDULE) for a in site.peer.asked} <= STANDARD


def test_a_rerun_is_answered_with_the_task_from_which_it_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    made = RerunResult("job-2", "b", ("b",), ("a",))
    monkeypatch.setattr(site.node.coordinator, "rerun_job", lambda wanted, sender: made)
    said = site.asks(SPEC, "/job/rerun", {"job_id": "job-1", "new_job_id": "job-2"})
    assert said["data"] == {
        "job_id": "job-2",
        "from": "b",
        "runs": ["b"],
        "inherits": ["a"],
    }


def test_nothing_of_one_party_goes_to_another(site: Site):
    """What a party alone is told, its data and its own settings, is in no body that goes to another node."""
    own = {
        "guest": {"0": {"a": {"secret": "guests-own", "limit": 5}}},
        "host": {"0": {"a": {"secret": "hosts-own", "dataset_id": ""}}},
        "common": {"a": {"shared": "for-all"}},
    }
    spec = replace(
        a_job_with(SPEC),
        task_params=own,
        job_params={"common": {"sync_type": "poll"}, "guest": {"0": {"note": "guests-note"}}},
    )
    site.node.coordinator.submit_job(spec, ME)
    site.run(spec.job_id, "guest.0")
    site.node.coordinator.stop_job(spec.job_id, "", ME)
    wait_for(lambda: site.node.store.jobs.get(spec.job_id).ended_at, 30, 0.02, "the job has ended")
    data = {"a": {"dataset_id": "guests-data#table", "limit": 5}}
    refused = replace(a_job_with(SPEC), task_params=own | {"guest": {"0": data}})
    with pytest.raises(Refused, match="guests-data#table"):  # the submitter sees which dataset
        site.node.coordinator.submit_job(refused, ME)
    wait_for(
        lambda: site.node.store.jobs.get(refused.job_id).ended_at,
        30,
        0.02,
        "the other job has ended",
    )
    sent = b"".join(a.raw for a in site.peer.asked)
    assert b"for-all" in sent and b"hosts-own" in sent and b"is not in this node's storage" in sent
    assert b"guests-" not in sent
