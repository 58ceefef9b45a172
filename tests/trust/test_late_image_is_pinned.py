"""An image that comes after its registration is replaced under the same name: the second is not started."""

from pathlib import Path

from tests.inprocess import running
from tests.logs.talk import IMAGE, Stage, registration
from tests.memory_engine import MemoryEngine, Script

PROVIDER = "/api/v1/providers/acme:1.0.0@docker"


class Replaced(MemoryEngine):
    """Has another content of its images in each edition."""

    edition = "a"

    def image_digest(self, image: str) -> str:
        return f"{super().image_digest(image)}, {self.edition}"


def test_an_image_absent_at_registration_is_pinned_at_its_first_start(
    tmp_path: Path,
):
    with running(tmp_path, make_engine=Replaced.making({})) as gateway:
        stage, engine = Stage(gateway), gateway.engine
        assert isinstance(engine, Replaced)

        def reason() -> str:
            job = stage.submit("guest")
            stage.end(job)
            failure = gateway.store.local_jobs.get(job).runs[0].failure
            assert failure is not None
            return failure.reason

        assert stage.ask("/v2/provider/register", method="POST", json=registration())["code"] == 0
        assert gateway.registry.get("acme:1.0.0@docker").digests == {}
        engine._images = {IMAGE: Script(7)}
        assert reason() == "EXIT_7"
        assert stage.ask(PROVIDER)["images"] == {IMAGE: f"memory:{IMAGE}, a"}
        engine.edition = "b"
        assert reason() == "DIGEST_CHANGED"
        history = stage.ask(f"{PROVIDER}/history")["history"]
        assert (history[0]["action"], history[0]["author"]) == ("pinned", "gateway")
        approved = stage.ask(f"{PROVIDER}/approve", method="POST", json={"reason": "rebuilt"})
        assert approved["digests"] == {IMAGE: f"memory:{IMAGE}, b"}
        assert reason() == "EXIT_7"
