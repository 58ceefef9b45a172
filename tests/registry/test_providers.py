"""Who may register what, what images are needed and say, and what becomes of a provider that jobs use."""

from typing import Any

import pytest

from engines.base import EngineDown, ImageMetadata
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.errors import Invalid, NotAllowed, NotFound, Refused
from gateway.providers.images import Images
from gateway.providers.registration import Providers, Requester, audit_detail
from provider_registry.image_labels import differences
from provider_registry.registry import Registry
from tests.builders import a_spec, raising
from tests.memory_engine import MemoryEngine, Script
from tests.registry.builders import a_description, a_parameter, a_provider, a_request
from tests.registry.memory import MemoryRepository

ADMIN, ANN, BOB = (
    Requester("operator"),
    Requester("ann", admin=False),
    Requester("bob", admin=False),
)
KEY, IMAGE = "acme:1.0.0@docker", "acme:1.0.0"


class Labelled(MemoryEngine):
    """An engine whose image's content and labels the test chooses."""

    facts = ImageMetadata("sha256:1")
    progress = 0

    def image_facts(self, image: str) -> ImageMetadata:
        self.image_digest(image)
        return self.facts

    def ensure_image(self, image: str, report: Any) -> str:
        for _ in range(self.progress):
            report("1 of 9 layers")
        return self.image_digest(image)


@pytest.fixture
def engine():
    return Labelled(
        node="n",
        installation="i",
        images={IMAGE: Script()},
    )


@pytest.fixture
def jobs():
    return []


@pytest.fixture
def providers(
    engine,
    jobs,
    tmp_path,
):
    return Providers(Registry(MemoryRepository()), Images({"": engine}.get, 0.0), lambda: jobs)


def test_an_image_that_is_here_is_pinned_by_its_digest(providers):
    done = providers.register(a_request(), ANN, "first")
    assert (done.created, done.revision.author, done.revision.reason) == (True, "ann", "first")
    assert providers.registry.get(KEY).digests == {IMAGE: "sha256:1"}
    assert providers.registry.get(KEY).warnings == ()


def test_an_image_that_is_not_here_is_a_warning_or_with_strict_a_refusal(providers):
    body = a_request(metadata={"image": "else:1"})
    with pytest.raises(Invalid) as refused:
        providers.register(body, ADMIN, strict=True)
    assert refused.value.reason == "IMAGE_NOT_USABLE"
    assert [p.path for p in refused.value.problems] == ["metadata.image"]
    assert providers.registry.query() == [] and providers.registry.repository.owner("acme") is None
    providers.register(body, ADMIN)
    [warning] = providers.registry.get(KEY).warnings
    assert (
        warning.path == "metadata.image"
        and "IMAGE_NOT_FOUND" in warning.rule
        and "approve" in warning.rule
    )
    assert providers.registry.get(KEY).digests == {}


def test_a_registration_gives_up_on_a_pull_that_takes_too_long(providers, engine):
    engine.progress = 1
    providers.register(a_request(), ADMIN)
    [warning] = providers.registry.get(KEY).warnings
    assert "PULL_TIMEOUT" in warning.rule and "layers" in warning.rule


def test_labels_that_say_otherwise_are_warnings(providers, engine):
    engine.facts = ImageMetadata(
        "sha256:1", {"component.1.name": "Algo", "component.1.version": "7"}
    )
    providers.register(a_request(), ADMIN)
    [warning] = providers.registry.get(KEY).warnings
    assert warning.path == "components_description.Algo.version"
    assert warning.got == "1.0.0" and " 7 " in warning.rule


def test_a_moved_image_is_approved_by_its_owner(providers, engine):
    providers.register(a_request(), ANN)
    engine.facts = ImageMetadata("sha256:2")
    with pytest.raises(NotAllowed):
        providers.approve(KEY, BOB)
    done = providers.approve(KEY, ANN, "rebuilt", IMAGE)
    assert [str(c) for c in done.changes] == [f'~ digests["{IMAGE}"]: sha256:1 → sha256:2']
    assert audit_detail(done)["changes"] == [
        {
            "path": f'digests["{IMAGE}"]',
            "before": "sha256:1",
            "after": "sha256:2",
        }
    ]


def test_what_cannot_be_pinned_is_not_approved(providers, engine):
    providers.register(a_request(metadata={"image": "else:1"}), ADMIN)
    with pytest.raises(Refused, match="IMAGE_NOT_FOUND") as refused:
        providers.approve(KEY, ADMIN)
    assert refused.value.reason == "IMAGE_NOT_USABLE"
    with pytest.raises(NotFound, match="it has else:1"):
        providers.approve(KEY, ADMIN, image="third:1")
    providers.register(a_request(), ADMIN)
    engine.facts = ImageMetadata()
    with pytest.raises(Refused, match="NO_DIGEST"):
        providers.approve(KEY, ADMIN)


def test_what_a_job_uses_is_retired_instead_of_deleted(providers, jobs):
    providers.register(a_request(), ADMIN)
    providers.register(a_request(version="2.0.0"), ADMIN)
    spec = a_spec(Dag((DagNode("a", ComponentRef("acme", "1.0.0", "Algo"), (), ()),)))
    jobs.append(spec)
    gone = providers.delete(ADMIN, name="acme")
    assert (gone.retired, gone.deleted) == ((KEY,), ("acme:2.0.0@docker",))
    [retired] = providers.registry.query()
    assert retired.key == KEY and retired.retired
    assert spec.job_id in providers.registry.history(KEY)[0].reason
    assert providers.users(retired) == [spec.job_id]
    jobs.clear()
    assert providers.delete(ADMIN, provider_name=KEY).deleted == (KEY,)
    with pytest.raises(Invalid, match="must be given, or device, version or provider_name"):
        providers.delete(ADMIN)


def test_a_failing_or_forbidden_engine_is_the_reason_of_each_image():
    (down,) = Images(raising(EngineDown("no daemon answers")), 0.0).inspect(["a:1"], "far")
    assert (down.reason, down.message) == ("ENGINE_DOWN", "no daemon answers")
    (closed,) = Images(lambda place: None, 0.0).inspect(["a:1"], "far")
    assert (closed.reason, closed.message) == ("DAEMON_NOT_ALLOWED", "far is not among engines")


def compared(labels, *descriptions):
    return [(p.path, p.rule) for p in differences(labels, a_provider(*descriptions), IMAGE)]


def test_an_image_without_labels_says_nothing():
    assert compared({}) == compared({"maintainer": "x", "component.x.name": "y"}) == []


def test_labels_that_say_the_same_are_silent():
    description = a_description(inputParam=[a_parameter("n", type="int", optional=True)])
    numbered = {
        "component.1.name": "Algo",
        "component.1.roleList": "guest, host",
        "component.1.parameter.1.name": "n",
        "component.1.parameter.1.optional": "true",
        "component.1.input.1.name": "train_data",
        "component.1.input.1.dataFormat": '["csv"]',
    }
    assert compared(numbered, description) == []


def test_each_difference_names_both_sides():
    description = a_description(inputParam=[a_parameter("n", type="int"), a_parameter("m")])
    numbered = {
        "component.1.name": "Algo",
        "component.1.version": "2.0.0",
        "component.1.parameter.1.name": "n",
        "component.1.parameter.1.type": "string",
        "component.1.parameter.2.name": "z",
        "component.2.name": "Other",
    }
    found = compared(numbered, description)
    at = "components_description.Algo.inputParam"
    assert found == [
        (
            "components_description.Algo.version",
            f"is 1.0.0 as registered and 2.0.0 in the label component.* of {IMAGE}",
        ),
        (f"{at}[n].type", f"is int as registered and string in the label component.* of {IMAGE}"),
        (at, f"has no entry z, which the label component.* of {IMAGE} describes"),
        (at, f"lists what the label component.* of {IMAGE} does not describe"),
        (
            "components_description.Other",
            f"is not registered, though the label component.* of {IMAGE} names it",
        ),
    ]
