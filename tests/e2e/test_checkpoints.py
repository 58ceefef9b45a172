"""Tasks that go on where they were killed: by a retry and by a rerun."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for
from tests.e2e.test_reruns import rerun
from tests.e2e.test_stop import job_of

COMPONENT = Path(__file__).with_name("stepping.py")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    engine = process_engine("example:1.0.0", command=[sys.executable, "-I", "-S", str(COMPONENT)])
    with Federation(tmp_path_factory.mktemp("nodes"), [jobs.GUEST, jobs.HOST], engine) as federation:
        for node in federation.nodes.values():
            node.register(A_PROVIDER)
        yield federation


def body(**common: Any) -> Any:
    made = job_of(Path("/"), {"first": 0, "steps": 0}, {"steps": "first"})
    made["config"]["job_params"]["common"] |= common
    return made


def begun(node: Node, job_id: str, party: str) -> str:
    text = node.ask("GET", f"/api/v1/jobs/{job_id}/outputs/steps/{party}/data0/download").text
    return text.splitlines()[-1]


def test_a_task_that_was_killed_goes_on_in_its_next_attempt(two: Federation):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    job_id = guest.submit(body(checkpoints=True, auto_retries=1))
    guest.wait_job(job_id, 120)
    for node in (guest, host):
        runs = [run for run in node.job(job_id)["runs"] if run["task_name"] == "steps"]
        assert [(r["attempt"], r["status"]) for r in runs][-1] == (1, "SUCCESS")
    kills = [
        run["failure"]["reason"]
        for node in (guest, host)
        for run in node.job(job_id)["runs"]
        if run["failure"] is not None
    ]
    assert "EXIT_137" in kills
    assert begun(guest, job_id, "guest.0") == "1,5"


def test_a_job_that_is_run_again_goes_on_from_a_copy(two: Federation):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    old = guest.submit(body(checkpoints=True))
    guest.wait_job(old, 120, outcome="FAILED")
    wait_for(lambda: host.job(old)["status"] == "FINISHED", 60)
    before = kept(guest, old) | kept(host, old)
    assert "5" in {text for steps in before.values() for text in steps}
    code, made = rerun(guest, old)
    assert (code, made["inherits"]) == (200, ["first"])
    guest.wait_job(made["job_id"], 120)
    assert begun(guest, made["job_id"], "guest.0") == "1,5"
    assert kept(guest, old) | kept(host, old) == before, "the old job stays as it ended"


def kept(node: Node, job_id: str) -> dict[str, list[str]]:
    """Return the steps that each party of a job has kept at a node."""
    folders = node.storage.glob(f"{job_id}-*/steps-checkpoint")
    return {f.parent.name: sorted(step.read_text() for step in f.iterdir()) for f in folders}


def test_who_does_not_ask_has_none(two: Federation):
    guest = two[jobs.GUEST]
    job_id = guest.submit(body())
    guest.wait_job(job_id, 120, outcome="FAILED")  # the component needs the variable
    assert kept(guest, job_id) == {}
    wrong = guest.post("/v1/platform/schedule/job/create_all", body(checkpoints="often"))
    assert [p["path"] for p in wrong["data"]["problems"]] == ["config.job_params.common.checkpoints"]
