"""Registrations look at real images: fetched from a registry, denied by one, moved in the daemon and approved."""

import contextlib
import io
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from engines.base import DigestChanged
from engines.docker import ContainerdEngine, PullRules
from gateway.config.engine import SignatureRule
from gateway.errors import Invalid
from gateway.providers.images import Images, Signatures, signers_of
from gateway.providers.registration import By, Providers
from provider_registry.model import Provider
from provider_registry.registry import Registry
from tests.contracts.engine_acts import a_spec, exits
from tests.contracts.harnesses import DockerHarness
from tests.registry.builders import a_request
from tests.registry.memory import MemoryRepository
from tests.services.registry import registry
from tests.services.signing import public, put, signature, text_for

pytestmark = [pytest.mark.docker, pytest.mark.registry]
KEY = "acme:1.0.0@docker"
Registered = Callable[..., Provider]


@pytest.fixture(scope="module")
def harness(network: str) -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(network)) as harness:
        yield harness


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("shop") / "registry") as address:
        yield address


@pytest.fixture
def build(harness: DockerHarness, shop: str) -> Iterator[Callable[[str], str]]:
    """Make an image under one name, each time another one, with a label of the version; return its name."""
    client, name, made = docker.from_env(), f"{shop}/acme:{uuid.uuid4().hex[:8]}", []

    def build(version: str) -> str:
        text = f"FROM {harness.image}\nLABEL bfia.version={version} other={uuid.uuid4().hex}\n"
        image, _ = client.images.build(fileobj=io.BytesIO(text.encode()), tag=name, rm=True)
        made.append(image.id)
        return name

    yield build
    for image in (name, *made):
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.remove(image, force=True)
    client.close()


def providers_of(engine: ContainerdEngine, folder: Path, signed: Signatures = Signatures()) -> Providers:
    images = Images(lambda _: engine, 60.0, signed.check)
    return Providers(Registry(MemoryRepository()), images, list)


def test_an_image_that_moves_is_not_started_until_it_is_approved(
    harness: DockerHarness, build: Callable[[str], str], tmp_path: Path
):
    engine = harness.engine()
    providers = providers_of(engine, tmp_path)
    image = build("1.0.0")
    body = a_request(metadata={"image": image})
    first = providers.register(body, By()).revision.provider
    assert first.digests == {image: engine.image_digest(image)} and first.warnings == ()
    build("1.0.1")
    moved = engine.image_facts(image).digest
    assert moved != first.digests[image]
    spec = a_spec(harness, exits(0), image=image, command=None, digest=first.digests[image])
    with pytest.raises(DigestChanged, match="provider approve"):
        engine.launch(spec)
    assert providers.approve(KEY, By()).revision.provider.digests == {image: moved}
    [warning] = providers.register(body, By()).revision.provider.warnings
    assert warning.path == "version"
    assert warning.rule == f"is 1.0.0 as registered and 1.0.1 in the label bfia.version of {image}"


def test_an_image_is_fetched_from_a_registry_that_is_named_and_from_no_other(
    harness: DockerHarness, shop: str, build: Callable[[str], str], tmp_path: Path
):
    client = docker.from_env()
    image = build("1.0.0")
    for line in client.images.push(image, stream=True, decode=True):
        assert "error" not in line, line
    client.images.remove(image, force=True)
    client.close()
    body = a_request(metadata={"image": image})
    elsewhere = harness.engine(pull=PullRules(frozenset({"registry.example.com"}), 60.0))
    denied = providers_of(elsewhere, tmp_path).register(body, By()).revision.provider
    assert denied.digests == {} and "PULL_DENIED" in denied.warnings[0].rule
    named = harness.engine(pull=PullRules(frozenset({shop}), 60.0))
    fetched = providers_of(named, tmp_path).register(body, By()).revision.provider
    assert fetched.digests == {image: named.image_digest(image)} and fetched.warnings == ()
    key = ec.generate_private_key(ec.SECP256R1())
    signed = Signatures(signers_of([SignatureRule(registry=shop, keys=[public(key, tmp_path, "key.pub")])]))
    wanting = providers_of(named, tmp_path, signed)
    with pytest.raises(Invalid, match="nobody has signed") as refused:
        wanting.register(body, By())
    assert refused.value.reason == "SIGNATURE_ABSENT"
    (known,) = named.image_facts(image).repo_digests
    text = text_for(known.partition("@")[2])
    put(shop, "acme", known.partition("@")[2], (text, signature(key, text)))
    assert wanting.register(body, By()).revision.provider.digests == fetched.digests
