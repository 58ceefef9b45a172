"""An image that sends no token: Docker tells its address, by which it is recognised; a process has none."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation, process_engine, wait_for
from tests.services.own_docker import BASE

COMPONENT = Path(jobs.__file__).with_name("ping_pong.py")


def docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=["process", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Federation]]:
    image = "example:1.0.0"
    engine: dict[str, Any] = process_engine(image, command=[sys.executable, str(COMPONENT)])
    with ExitStack() as stack:
        if request.param == "docker":
            folder = tmp_path / "image"
            folder.mkdir()
            (folder / "ping_pong.py").write_bytes(COMPONENT.read_bytes())
            start = 'ENTRYPOINT ["python3", "/ping_pong.py"]'
            (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY ping_pong.py /\n{start}\n")
            image, engine = f"bfia-anonymous:{uuid4().hex[:12]}", {"kind": "docker"}
            docker("build", "-q", "-t", image, str(folder))
            stack.callback(docker, "rmi", "-f", image)
        federation = stack.enter_context(Federation(tmp_path, [jobs.GUEST, jobs.HOST], engine))
        for node in federation.nodes.values():
            body = A_PROVIDER
            node.register(body | {"metadata": body["metadata"] | {"image": image}})
        yield request.param, federation


def job(**parameters: Any) -> Any:
    body = copy.deepcopy(A_JOB)
    body["dag"]["components"][0]["output"] = []
    body["config"]["role"] = {"guest": [jobs.GUEST], "host": [jobs.HOST]}
    body["config"]["task_params"] = {"common": {"echo_1": {"rounds": 3, **parameters}}}
    return body


def test_an_image_without_a_token_is_recognised_by_its_address_or_refused(two: tuple[str, Federation]):
    kind, federation = two
    guest, host = federation[jobs.GUEST], federation[jobs.HOST]
    guest.wait_job(guest.submit(job()), 120)
    job_id = guest.submit(job(anonymous=True))
    if kind == "docker":
        guest.wait_job(job_id, 120)
        return
    guest.wait_job(job_id, 120, outcome="FAILED")
    wait_for(lambda: host.job(job_id)["status"] == "FINISHED")
    assert "RUN_TOKEN_REQUIRED" in guest.run_logs() + host.run_logs()
