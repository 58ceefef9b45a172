"""Many jobs at once: all end, none runs twice, and a question is answered meanwhile."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.errors import NotFound
from gateway.ports import JobView
from tests.core.test_shells import submit
from tests.e2e import jobs
from tests.e2e.nodes import Federation, wait_for
from tests.e2e.test_stop import PATIENT_ENGINE, job_of
from tests.inprocess import ask, running
from tools.bench.load import asked_meanwhile, at_once


@pytest.mark.slow
def test_jobs_submitted_at_once_by_32_clients_all_end_and_none_runs_twice(tmp_path: Path):
    (tmp_path / "register").mkdir()
    with Federation(tmp_path / "nodes", [jobs.GUEST, jobs.HOST], PATIENT_ENGINE) as federation:
        guest, host = federation[jobs.GUEST], federation[jobs.HOST]
        for node in (guest, host):
            node.register(A_PROVIDER)
        first = guest.submit(job_of(tmp_path / "register", {"first": 0.0}))
        body = job_of(tmp_path / "register", {"a": 0.0})
        ids, times = asked_meanwhile(guest, first, lambda: at_once(guest, body, 48, 32))
        assert len(set(ids)) == 48 and times
        for job_id in ids:
            guest.wait_job(job_id, 300)
            assert len([e for e in host.timeline(job_id) if e["event"] == "run RUNNING"]) == 1
        counts = Counter(path.name.split(".")[0] for path in (tmp_path / "register").iterdir())
        assert counts == {"first": 2, "a": 96}


def test_a_jobs_state_is_told_while_every_thread_waits_for_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": ["/bin/sleep", "60"]}}}}
    with running(tmp_path, engine=engine) as node:
        job_id = submit(node).json()["data"]["job_id"]
        over, waiting = threading.Event(), threading.Semaphore(0)

        def silent(job_id: str) -> JobView:
            waiting.release()
            assert over.wait(60)
            raise NotFound(job_id)

        monkeypatch.setattr(node.coordinator, "status", silent)
        path = "/v1/platform/schedule/job/status_all"
        threads = [
            threading.Thread(target=ask, args=(node, "operator", "GET", path), kwargs={"params": {"job_id": "x"}})
            for _ in range(64)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert waiting.acquire(timeout=60)
        try:

            def told() -> str:
                answer = ask(node, "operator", "GET", path, params={"job_id": job_id}).json()
                return str(answer["data"]["job_status"])

            wait_for(lambda: told() == "RUNNING")
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        wait_for(lambda: not any(thread.is_alive() for thread in threads), 10)
