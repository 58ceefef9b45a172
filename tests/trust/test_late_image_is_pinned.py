"""Attack: an image that arrives after its registration is replaced under the same name."""

from unittest.mock import Mock

import pytest

from tests.inprocess import running
from tests.logs.talk import IMAGE, Stage, registration
from tests.memory_engine import MemoryEngine, Script

PROVIDER = "/api/v1/providers/acme:1.0.0@docker"
REGISTER = "/v2/provider/register"


class ReplaceableImages(MemoryEngine):
    """Has another content of its images in each edition."""

    edition = "a"

    def image_digest(self, image):
        return f"{super().image_digest(image)}, {self.edition}"


@pytest.fixture
def node(tmp_path):
    """Give a node whose engine has no images yet."""
    with running(tmp_path, make_engine=ReplaceableImages.making({})) as node:
        yield node


@pytest.fixture
def stage(node):
    """Give a stage with a provider that was registered before its image arrived."""
    stage = Stage(node)
    registered = stage.ask(
        REGISTER,
        method="POST",
        json=registration(),
    )
    assert registered["code"] == 0
    assert node.registry.get("acme:1.0.0@docker").digests == {}
    return stage


def run_job(node, stage):
    """Run a job whose container fails; return the reason of the failure."""
    job_id = stage.submit("guest")
    stage.end(job_id)
    return node.store.local_jobs.get(job_id).runs[0].failure.reason


def test_an_image_absent_at_registration_is_pinned_at_its_first_start(node, stage):
    engine = node.engine
    engine.fetchable[IMAGE] = Mock(return_value=Script(7))
    engine.ensure_image(IMAGE, Mock())

    assert run_job(node, stage) == "EXIT_7"
    assert stage.ask(PROVIDER)["images"] == {IMAGE: f"memory:{IMAGE}, a"}

    engine.edition = "b"
    assert run_job(node, stage) == "DIGEST_CHANGED"
    newest = stage.ask(f"{PROVIDER}/history")["history"][0]
    assert newest["action"] == "pinned"
    assert newest["author"] == "gateway"

    approved = stage.ask(
        f"{PROVIDER}/approve",
        method="POST",
        json={"reason": "rebuilt"},
    )
    assert approved["digests"] == {IMAGE: f"memory:{IMAGE}, b"}
    assert run_job(node, stage) == "EXIT_7"
