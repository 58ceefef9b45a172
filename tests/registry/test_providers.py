"""Providers of a node: who may register them, their images, and deletion while jobs use them."""

import pytest

from engines.base import EngineDown, ImageMetadata
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed, NotFound, Refused
from gateway.providers.images import Images
from gateway.providers.registration import Providers, Requester, audit_detail
from provider_registry.image_labels import differences
from provider_registry.registry import Registry
from tests.builders import a_spec, raising, returning
from tests.memory_engine import MemoryEngine, Script
from tests.registry.builders import (
    a_component_request,
    a_description,
    a_parameter,
    a_provider,
    a_request,
)
from tests.registry.memory import MemoryRepository

ADMIN = Requester("operator")
ANN = Requester("ann", admin=False)
BOB = Requester("bob", admin=False)
KEY = "acme:1.0.0@docker"
IMAGE = "acme:1.0.0"
MISSING_IMAGE = a_request(metadata={"image": "else:1"})
FOR_CLUSTERS = a_request(metadata={"image": IMAGE, "engine_kinds": ["swarm", "kubernetes"]})


class LabelledEngine(MemoryEngine):
    """An engine whose image has the digest and labels of the test."""

    facts = ImageMetadata("sha256:1")
    pull_reports = 0  # reports of progress before an image is there

    def image_metadata(self, image):
        self.image_digest(image)
        return self.facts

    def ensure_image(self, image, report):
        for _ in range(self.pull_reports):
            report("1 of 9 layers")
        return self.image_digest(image)


@pytest.fixture
def engine():
    return LabelledEngine(
        node="n",
        installation="i",
        images={IMAGE: Script()},
    )


@pytest.fixture
def active_jobs():
    """The specs of the jobs under way."""
    return []


@pytest.fixture
def providers(engine, active_jobs):
    images = Images({"": engine}.get, 0.0)
    return Providers(Registry(MemoryRepository()), images, lambda: active_jobs)


# ------------------------------------------------------------ images


def test_a_present_image_is_pinned_by_its_digest(providers):
    registration = providers.register(a_request(), ANN, "first")

    assert registration.created is True
    assert registration.revision.author == "ann"
    assert registration.revision.reason == "first"
    provider = providers.registry.get(KEY)
    assert provider.digests == {IMAGE: "sha256:1"}
    assert provider.warnings == ()


def test_a_missing_image_is_a_warning(providers):
    providers.register(MISSING_IMAGE, ADMIN)

    provider = providers.registry.get(KEY)
    [warning] = provider.warnings
    assert warning.path == "metadata.image"
    assert "IMAGE_NOT_FOUND" in warning.rule
    assert "approve" in warning.rule
    assert provider.digests == {}


def test_a_missing_image_is_refused_with_strict(providers):
    with pytest.raises(Invalid) as refusal:
        providers.register(MISSING_IMAGE, ADMIN, strict=True)

    assert refusal.value.reason == "IMAGE_NOT_USABLE"
    assert [problem.path for problem in refusal.value.problems] == ["metadata.image"]
    assert providers.registry.query() == []
    assert providers.registry.repository.owner("acme") is None


def test_a_registration_gives_up_on_a_pull_that_takes_too_long(providers, engine):
    engine.pull_reports = 1

    providers.register(a_request(), ADMIN)

    [warning] = providers.registry.get(KEY).warnings
    assert "PULL_TIMEOUT" in warning.rule
    assert "layers" in warning.rule


@pytest.mark.parametrize(
    ("find_engine", "reason", "message"),
    [
        (raising(EngineDown("no daemon answers")), "ENGINE_DOWN", "no daemon answers"),
        (returning(None), "DAEMON_NOT_ALLOWED", "far is not among engines"),
    ],
    ids=["down", "not configured"],
)
def test_a_failing_or_forbidden_engine_is_the_reason_of_each_image(find_engine, reason, message):
    [problem] = Images(find_engine, 0.0).inspect(["a:1"], "far")

    assert problem.reason == reason
    assert problem.message == message


# ------------------------------------------------------------ kinds of engines


def test_images_for_other_engines_are_a_warning_and_not_inspected(providers):
    providers.register(FOR_CLUSTERS, ADMIN)

    provider = providers.registry.get(KEY)
    [warning] = provider.warnings
    assert warning.path == "metadata.engine_kinds"
    assert warning.got == ["swarm", "kubernetes"]
    assert warning.rule.startswith("does not list memory, the kind of engine")
    assert "ENGINE_UNSUITABLE" in warning.rule
    assert provider.digests == {}


def test_images_for_other_engines_are_refused_with_strict(providers):
    with pytest.raises(Invalid) as refusal:
        providers.register(FOR_CLUSTERS, ADMIN, strict=True)

    assert refusal.value.reason == "ENGINE_UNSUITABLE"
    assert [problem.path for problem in refusal.value.problems] == ["metadata.engine_kinds"]
    assert providers.registry.query() == []


def test_images_for_this_kind_of_engine_are_pinned_as_usual(providers, engine):
    engine.kind = "kubernetes"

    providers.register(FOR_CLUSTERS, ADMIN)

    provider = providers.registry.get(KEY)
    assert provider.warnings == ()
    assert provider.digests == {IMAGE: "sha256:1"}


# ------------------------------------------------------------ attestation reports


def test_reports_that_this_node_cannot_verify_are_a_warning():
    problem = Problem("tee.providers.acme.platform", "cannot be verified", "TDX")
    engine = LabelledEngine(node="n", installation="i", images={IMAGE: Script()})
    providers = Providers(
        Registry(MemoryRepository()),
        Images({"": engine}.get, 0.0),
        list,
        report_problems=returning([problem]),
    )

    providers.register(a_request(), ADMIN)

    [warning] = providers.registry.get(KEY).warnings
    assert warning.path == "tee.providers.acme.platform"
    assert warning.got == "TDX"
    assert warning.rule.startswith("cannot be verified; jobs that need this provider are refused")
    assert "TEE_NOT_VERIFIABLE" in warning.rule


# ------------------------------------------------------------ approvals


def test_a_moved_image_is_approved_by_its_owner(providers, engine):
    providers.register(a_request(), ANN)
    engine.facts = ImageMetadata("sha256:2")

    with pytest.raises(NotAllowed):
        providers.approve(KEY, BOB)
    approval = providers.approve(KEY, ANN, "rebuilt", IMAGE)

    [change] = approval.changes
    assert str(change) == f'~ digests["{IMAGE}"]: sha256:1 → sha256:2'
    assert audit_detail(approval)["changes"] == [
        {
            "path": f'digests["{IMAGE}"]',
            "before": "sha256:1",
            "after": "sha256:2",
        }
    ]


def test_a_missing_or_foreign_image_is_not_approved(providers):
    providers.register(MISSING_IMAGE, ADMIN)

    with pytest.raises(Refused, match="IMAGE_NOT_FOUND") as refusal:
        providers.approve(KEY, ADMIN)
    assert refusal.value.reason == "IMAGE_NOT_USABLE"
    with pytest.raises(NotFound, match="it has else:1"):
        providers.approve(KEY, ADMIN, image="third:1")


def test_an_image_without_digest_is_not_approved(providers, engine):
    providers.register(a_request(), ADMIN)
    engine.facts = ImageMetadata()

    with pytest.raises(Refused, match="NO_DIGEST"):
        providers.approve(KEY, ADMIN)


# ------------------------------------------------------------ deletion


def test_a_provider_in_use_is_retired_instead_of_deleted(providers, active_jobs):
    providers.register(a_request(), ADMIN)
    providers.register(a_request(version="2.0.0"), ADMIN)
    spec = a_spec(Dag((DagNode("a", ComponentRef("acme", "1.0.0", "Algo"), (), ()),)))
    active_jobs.append(spec)

    deletion = providers.delete(ADMIN, name="acme")

    assert deletion.retired == (KEY,)
    assert deletion.deleted == ("acme:2.0.0@docker",)
    [provider] = providers.registry.query()
    assert provider.key == KEY
    assert provider.retired
    assert spec.job_id in providers.registry.history(KEY)[0].reason
    assert providers.jobs_using(provider) == [spec.job_id]

    active_jobs.clear()
    assert providers.delete(ADMIN, provider_name=KEY).deleted == (KEY,)


def test_a_deletion_without_any_filter_is_refused(providers):
    with pytest.raises(Invalid, match="must be given, or device, version or provider_name"):
        providers.delete(ADMIN)


# ------------------------------------------------------------ labels of images


def label_differences(labels, *descriptions):
    """Return (path, rule) of the differences between an image's labels and its provider."""
    problems = differences(labels, a_provider(*descriptions), IMAGE)
    return [(problem.path, problem.rule) for problem in problems]


def test_different_labels_are_warnings_of_a_registration(providers, engine):
    labels = {"component.1.name": "Algo", "component.1.version": "7"}
    engine.facts = ImageMetadata("sha256:1", labels)

    providers.register(a_request(), ADMIN)

    [warning] = providers.registry.get(KEY).warnings
    assert warning.path == "components_description.Algo.version"
    assert warning.got == "1.0.0"
    assert " 7 " in warning.rule


def test_components_of_one_image_can_be_registered_one_by_one(providers, engine):
    labels = {"component.1.name": "A", "component.2.name": "B"}
    engine.facts = ImageMetadata("sha256:1", labels)

    paths = []
    for name in ("A", "B", "A"):
        written = providers.register(a_component_request(name), ADMIN, single=True)
        paths.append([warning.path for warning in written.revision.provider.warnings])

    assert paths == [["components_description.B"], [], []]


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"maintainer": "x", "component.x.name": "y"},
    ],
    ids=["none", "others"],
)
def test_an_image_without_labels_of_components_has_no_differences(labels):
    assert label_differences(labels) == []


def test_equal_labels_have_no_differences():
    description = a_description(inputParam=[a_parameter("n", type="int", optional=True)])
    labels = {
        "component.1.name": "Algo",
        "component.1.roleList": "guest, host",
        "component.1.parameter.1.name": "n",
        "component.1.parameter.1.optional": "true",
        "component.1.input.1.name": "train_data",
        "component.1.input.1.dataFormat": '["csv"]',
    }

    assert label_differences(labels, description) == []


def test_each_difference_names_both_sides():
    description = a_description(inputParam=[a_parameter("n", type="int"), a_parameter("m")])
    labels = {
        "component.1.name": "Algo",
        "component.1.version": "2.0.0",
        "component.1.parameter.1.name": "n",
        "component.1.parameter.1.type": "string",
        "component.1.parameter.2.name": "z",
        "component.2.name": "Other",
    }

    parameters = "components_description.Algo.inputParam"
    assert label_differences(labels, description) == [
        (
            "components_description.Algo.version",
            f"is 1.0.0 as registered and 2.0.0 in the label component.* of {IMAGE}",
        ),
        (
            f"{parameters}[n].type",
            f"is int as registered and string in the label component.* of {IMAGE}",
        ),
        (
            parameters,
            f"has no entry z, which the label component.* of {IMAGE} describes",
        ),
        (
            parameters,
            f"lists what the label component.* of {IMAGE} does not describe",
        ),
        (
            "components_description.Other",
            f"is not registered, though the label component.* of {IMAGE} names it",
        ),
    ]
