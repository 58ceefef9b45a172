"""An image that sends no token: Docker tells its address, by which it is recognised."""

import copy
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation
from tests.services.own_docker import BASE

COMPONENT = Path(jobs.__file__).with_name("ping_pong.py")


def docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Federation]:
    image, folder = f"bfia-anonymous:{uuid4().hex[:12]}", tmp_path / "image"
    folder.mkdir()
    (folder / "ping_pong.py").write_bytes(COMPONENT.read_bytes())
    start = 'ENTRYPOINT ["python3", "/ping_pong.py"]'
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY ping_pong.py /\n{start}\n")
    docker("build", "-q", "-t", image, str(folder))
    with ExitStack() as stack:
        stack.callback(docker, "rmi", "-f", image)
        federation = stack.enter_context(Federation(tmp_path, [jobs.GUEST, jobs.HOST], {"kind": "docker"}))
        for node in federation.nodes.values():
            node.register(A_PROVIDER | {"metadata": A_PROVIDER["metadata"] | {"image": image}})
        yield federation


def job(**parameters: Any) -> Any:
    body = copy.deepcopy(A_JOB)
    body["dag"]["components"][0]["output"] = []
    body["config"]["role"] = {"guest": [jobs.GUEST], "host": [jobs.HOST]}
    body["config"]["task_params"] = {"common": {"echo_1": {"rounds": 3, **parameters}}}
    return body


@pytest.mark.docker
@pytest.mark.slow
def test_an_image_without_a_token_is_recognised_by_its_address(two: Federation):
    for parameters in ({}, {"anonymous": True}):
        two[jobs.GUEST].wait_job(two[jobs.GUEST].submit(job(**parameters)), 120)
