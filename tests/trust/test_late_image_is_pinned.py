"""An image that comes after its registration is replaced under the same name: the second is not started."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.inprocess import running
from tests.logs.talk import Stage, registration
from tests.logs.test_docker import BASE, docker
from tests.services.own_docker import remove_network

pytestmark = [pytest.mark.docker, pytest.mark.slow]

PROVIDER = "/api/v1/providers/acme:1.0.0@docker"


@pytest.fixture
def network() -> Iterator[str]:
    name = f"bfia-late-{uuid4().hex[:12]}"
    yield name
    remove_network(name)


@pytest.fixture
def image() -> Iterator[str]:
    name = f"bfia-test-late:{uuid4().hex[:12]}"
    yield name
    subprocess.run(["docker", "rmi", "-f", name], capture_output=True, check=False)


def load(name: str, content: str) -> str:
    """Put an image under the name, and return its digest."""
    text = f'FROM {BASE}\nLABEL other={content}\nCMD ["/bin/sh", "-c", "exit 7"]\n'
    docker("build", "-q", "-t", name, "-", input=text)
    shown = subprocess.run(
        ["docker", "inspect", "-f", "{{.Id}}", name], capture_output=True, text=True, check=True
    )
    return shown.stdout.strip()


def test_an_image_that_was_not_there_at_the_registration_is_pinned_by_its_first_start(
    image: str, network: str, tmp_path: Path
):
    with running(tmp_path, engine={"kind": "docker", "docker": {"network": network}}) as gateway:
        stage = Stage(gateway)

        def reason() -> str:
            job = stage.submit("guest")
            stage.end(job)
            failure = gateway.store.local_jobs.get(job).runs[0].failure
            assert failure is not None
            return failure.reason

        assert stage.ask("/v2/provider/register", method="POST", json=registration(image))["code"] == 0
        assert gateway.registry.get("acme:1.0.0@docker").digests == {}
        first = load(image, "a")
        assert reason() == "EXIT_7"
        assert stage.ask(PROVIDER)["images"] == {image: first}
        second = load(image, "b")
        assert second != first
        assert reason() == "DIGEST_CHANGED"
        history = stage.ask(f"{PROVIDER}/history")["history"]
        assert (history[0]["action"], history[0]["author"]) == ("pinned", "gateway")
        approved = stage.ask(f"{PROVIDER}/approve", method="POST", json={"reason": "rebuilt"})
        assert approved["digests"] == {image: second}
        assert reason() == "EXIT_7"
