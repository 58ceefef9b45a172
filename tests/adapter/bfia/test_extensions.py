"""The table of paths between nodes is complete and documented, and no peer needs all of them."""

import json
import re
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.commands import OPTIONAL
from adapter.bfia.interconn import SCHEDULE
from adapter.bfia.paths import JOB_AUDIT
from gateway.domain.rerun import RerunResult
from gateway.domain.states import Outcome
from gateway.errors import NotServed, Refused
from tests.adapter.bfia.scripted import Answer, says, states, text
from tests.adapter.bfia.site import SPEC, Site, a_job_with
from tests.cleaning.ended import are_stored, left_behind
from tests.e2e.nodes import wait_for
from tests.inprocess import PEER

DOCS = Path(__file__).resolve().parents[3] / "docs"

# A path that only this gateway has.
EXTENSION = "/job/delete"


@dataclass(frozen=True)
class Row:
    """A path between nodes as the document describes it."""

    path: str
    # the section of the standard, or "extension"
    source: str
    # the effect of a peer that does not have the path
    without: str


def table_lines(
    page: str,
    name: str,
) -> list[str]:
    """Return the lines of a page's marked table, without the two lines of its head."""
    content = (DOCS / page).read_text(encoding="utf-8")
    table = content.split(f"<!-- {name} -->\n")[1].split("\n<!-- end -->")[0]
    return table.splitlines()[2:]


def command_rows() -> list[Row]:
    """Return the paths that the document describes."""
    rows = []
    for line in table_lines("between-nodes.md", "commands"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        _, path, source, without = cells
        rows.append(Row(path.strip("`"), source, without))
    return rows


ROWS = command_rows()
STANDARD_PATHS = {row.path for row in ROWS if re.match(r"standard, [0-9]", row.source)}


@pytest.mark.parametrize("name", ["commands", "profiles"])
def test_the_chinese_page_has_the_same_rows_and_untranslated_facts(name):
    english = table_lines("between-nodes.md", name)
    chinese = table_lines("between-nodes.zh-CN.md", name)
    assert len(english) == len(chinese)
    for english_line, chinese_line in zip(english, chinese, strict=True):
        assert untranslated(english_line) == untranslated(chinese_line)


def untranslated(line: str) -> list[str]:
    """Return the parts of a line that no translation changes: code, numbers, words in capitals."""
    code_and_numbers = re.findall(r"`[^`]+`|\b[0-9]+(?:\.[0-9]+)*\b", line)
    capitals = re.findall(r"[A-Z_]{5,}", line)
    return sorted(code_and_numbers + capitals)


def test_every_path_between_nodes_has_its_row_and_every_row_its_path(site):
    described = site.node.get("/openapi.json", listener="peer").json()["paths"]
    served = {p.removeprefix(SCHEDULE) for p in described if p.startswith((SCHEDULE, JOB_AUDIT))}

    assert served - {f"{JOB_AUDIT}/query"} == {row.path for row in ROWS}
    extensions = {row.path for row in ROWS if row.source == "extension"}
    assert extensions == set(OPTIONAL) - {f"{JOB_AUDIT}/terminate"}


@pytest.mark.parametrize(
    ("path", "without"),
    OPTIONAL.items(),
    ids=OPTIONAL,
)
def test_the_document_has_the_effect_of_a_missing_path(path, without):
    effects = [row.without for row in ROWS if row.path == path]
    assert any(effect.startswith(without) for effect in effects)


# The profile of a peer without an extension's path, and its response.
MISSING_PATHS: dict[str, tuple[str, Answer]] = {
    "envelope": (
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
    "method": (
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
    "framework": (
        "spec",
        says({"detail": "Not Found"}, 404),
    ),
    "page": (
        "spec",
        text(b"<html>404</html>", 404),
    ),
    "not implemented": (
        "spec",
        text(b"", 501),
    ),
    "kuscia": (
        "kuscia",
        text(b"404 page not found", 404, "text/plain"),
    ),
    "fate": (
        "fate",
        says({"code": 6000, "message": "404 Not Found"}),
    ),
}


@pytest.mark.parametrize(
    ("profile", "response"),
    MISSING_PATHS.values(),
    ids=MISSING_PATHS,
)
def test_a_peer_that_has_only_the_standard(peer, calling, profile, response):
    peer.will(response)

    with calling(profile) as standard_peer, pytest.raises(NotServed) as caught:
        standard_peer.peer.ask(EXTENSION, {"job_id": "j"})

    assert caught.value.reason == "NOT_SERVED_THERE"
    for text_part in (PEER, EXTENSION, OPTIONAL[EXTENSION]):
        assert text_part in caught.value.message
    [request] = peer.requests
    assert request.method == "POST"
    assert request.target == SCHEDULE + EXTENSION
    assert json.loads(request.raw) == {"job_id": "j"}


@pytest.mark.parametrize(
    "we_schedule",
    [True, False],
    ids=["we schedule", "they schedule"],
)
def test_a_whole_job_with_a_peer_that_has_only_the_standard(site, we_schedule):
    """The peer answers 404 to extensions, and neither sends nor reads the gateway's own fields."""
    site.peer.will(standard_only())
    if we_schedule:
        spec = a_job_with(SPEC)
        site.submit(spec)
    else:
        spec = a_job_with(SPEC, scheduler=SPEC)
        site.node.participant.create_job(spec, SPEC)
        site.node.participant.start_task(
            spec.job_id,
            f"t-{spec.job_id}",
            "a",
            SPEC,
        )

    site.succeed(spec.job_id)
    site.wait_for_run_end(spec.job_id)
    if not we_schedule:
        assert site.send_as(SPEC, "/job/stop", {"job_id": spec.job_id})["code"] == 0

    assert wait_for_ending(site, spec.job_id).outcome is Outcome.SUCCEEDED
    paths = {r.target.partition("?")[0].removeprefix(SCHEDULE) for r in site.peer.requests}
    assert paths <= STANDARD_PATHS


def test_a_task_is_cleaned_here_if_the_peer_has_only_the_standard(site):
    site.peer.will(standard_only())
    (run,) = left_behind(site.node, "job-cleaned", 5, host=SPEC).runs

    response = site.node.request(
        "DELETE",
        "/api/v1/jobs/job-cleaned/tasks/a/outputs",
        params={"everywhere": True},
    ).json()

    result = response["nodes"][SPEC]
    assert not result["deleted"]
    assert result["reason"] == "NOT_SERVED_THERE"
    assert OPTIONAL["/task/clean"] in result["message"]
    assert len(response["items"]) == 2
    assert are_stored(site.node, run).count(True) == 1  # only the report


def standard_only() -> Answer:
    """Return the responses of a peer that has exactly the paths of the standard."""
    not_found = text(b"<html>not found</html>", 404)
    task_states = states("READY", "RUNNING")

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0].removeprefix(SCHEDULE)
        if path not in STANDARD_PATHS:
            not_found(handler)
        elif path == "/task/poll":
            task_states(handler)
        else:
            says()(handler)

    return answer


def wait_for_ending(site: Site, job_id: str) -> Any:
    """Wait until a job has ended for the node as a participant; return its ending."""

    def ending() -> Any:
        return site.local_job(job_id).ending

    return wait_for(ending, 30, 0.02, f"{job_id} has ended")


def test_a_rerun_is_answered_with_its_first_task(site, monkeypatch):
    def rerun_job(request: Any, sender: str) -> RerunResult:
        return RerunResult(
            "job-2",
            "b",
            ("b",),
            ("a",),
        )

    monkeypatch.setattr(site.node.coordinator, "rerun_job", rerun_job)

    response = site.send_as(
        SPEC,
        "/job/rerun",
        {"job_id": "job-1", "new_job_id": "job-2"},
    )

    assert response["data"] == {
        "job_id": "job-2",
        "from": "b",
        "runs": ["b"],
        "inherits": ["a"],
    }


# Parameters of each party, and of all.
TASK_PARAMS = {
    "guest": {"0": {"a": {"secret": "guests-own", "limit": 5}}},
    "host": {"0": {"a": {"secret": "hosts-own", "dataset_id": ""}}},
    "common": {"a": {"shared": "for-all"}},
}
JOB_PARAMS = {
    "common": {"sync_type": "poll"},
    "guest": {"0": {"note": "guests-note"}},
}


def test_nothing_of_one_party_goes_to_another(site):
    """A party's own parameters, data and settings are in no body for another node."""
    spec = replace(
        a_job_with(SPEC),
        task_params=TASK_PARAMS,
        job_params=JOB_PARAMS,
    )
    site.submit(spec)
    site.run(spec.job_id, "guest.0")
    site.stop(spec.job_id)
    site.wait_for_end(spec.job_id)

    missing_data = {"guest": {"0": {"a": {"dataset_id": "guests-data#table", "limit": 5}}}}
    refused = replace(
        a_job_with(SPEC),
        task_params=TASK_PARAMS | missing_data,
    )
    # The submitter learns which dataset is missing; other nodes do not.
    with pytest.raises(Refused, match="guests-data#table"):
        site.submit(refused)
    site.wait_for_end(refused.job_id)

    sent = b"".join(request.raw for request in site.peer.requests)
    assert b"for-all" in sent
    assert b"hosts-own" in sent
    assert b"is not in this node's storage" in sent
    assert b"guests-" not in sent
