"""Images of real registries: pulls, refusals, silent registries, and registrations of images."""

import contextlib
import io
import socket
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator

import docker
import pytest

from engines.base import (
    DigestChanged,
    ImageNotFound,
    NoSpace,
    PullDenied,
    PullFailed,
    PullTimeout,
)
from engines.docker import ContainerdEngine
from engines.error_texts import pull_error
from engines.registry.names import PullRules
from gateway.providers.images import Images, SignaturePolicy
from gateway.providers.registration import Providers, Requester
from provider_registry.registry import Registry
from tests.builders import raising
from tests.contracts.engine_acts import a_spec, exits, output_of
from tests.contracts.harnesses import DockerHarness
from tests.registry.builders import a_request
from tests.registry.memory import MemoryRepository
from tests.services.registry import PASSWORD, USER, gate_to, log_in, registry

pytestmark = [pytest.mark.docker, pytest.mark.registry]


@pytest.fixture(scope="module")
def blank() -> Iterator[str]:
    """An image of one small file, for tests that only push and pull it."""
    name = f"bfia-blank:{uuid.uuid4().hex}"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    with contextlib.closing(docker.from_env()) as client:
        client.api.import_image_from_data(content.getvalue(), *name.split(":"))
        yield name
        client.images.remove(
            name,
            force=True,
        )


# Builds an image from a word, a base image and the name of a component, all optional; returns the
# image's name and id.
Build = Callable[..., tuple[str, str]]


@pytest.fixture
def build(
    shop: str,
    blank: str,
    daemon: docker.DockerClient,
) -> Iterator[Build]:
    """Build images under one name, each with another content."""
    name = f"{shop}/algorithms/psi-{uuid.uuid4().hex}:1.0"
    ids: list[str] = []

    def build(
        word: str = "",
        base: str = blank,
        component: str = "Algo",
    ) -> tuple[str, str]:
        lines = (
            f"FROM {base}",
            f"LABEL component.1.name={component} other={uuid.uuid4().hex}",
            f'CMD ["echo", "{word}"]',
        )
        image, _ = daemon.images.build(
            fileobj=io.BytesIO("\n".join(lines).encode()),
            tag=name,
            rm=True,
        )
        ids.append(str(image.id))
        return name, ids[-1]

    yield build
    for image in (name, *ids):
        with contextlib.suppress(docker.errors.ImageNotFound):
            daemon.images.remove(
                image,
                force=True,
            )


@pytest.fixture
def publish(
    build: Build,
    daemon: docker.DockerClient,
) -> Build:
    """Build an image that only the registry has."""

    def publish(*arguments: str) -> tuple[str, str]:
        name, image_id = build(*arguments)
        push(daemon, name)
        daemon.images.remove(
            name,
            force=True,
        )
        return name, image_id

    return publish


def push(
    daemon: docker.DockerClient,
    name: str,
    **login: dict[str, str],
) -> None:
    """Push an image to its registry."""
    progress = daemon.images.push(
        name,
        stream=True,
        decode=True,
        **login,
    )
    for line in progress:
        assert "error" not in line, line


def engine_of(
    harness: DockerHarness,
    *registries: str,
    deadline: float = 120.0,
    stale: float = 120.0,
) -> ContainerdEngine:
    return harness.engine(pull=PullRules(frozenset(registries), deadline, stale))


def ignore_progress(progress: str) -> None:
    pass


def test_an_image_is_pulled_on_request_and_then_runs(harness, shop, publish):
    image, image_id = publish("fetched", harness.image)
    engine = engine_of(harness, shop)
    progress: list[str] = []
    with pytest.raises(ImageNotFound):  # a launch pulls nothing
        engine.launch(a_spec(harness, exits(0), image=image, command=None))

    assert engine.ensure_image(image, progress.append) == image_id

    assert progress
    assert "layers" in progress[-1]
    output = output_of(
        harness,
        engine,
        exits(0),
        image=image,
        command=None,
        digest=image_id,
    )
    assert output == b"fetched\n"
    engine.remove(engine.list()[0].name)


def test_a_registry_that_is_not_named_is_denied(harness, publish):
    image, _ = publish("denied")
    with pytest.raises(PullDenied, match=r"engine\.docker\.registries") as raised:
        engine_of(harness, "registry.example.com").ensure_image(image, ignore_progress)
    assert raised.value.reason == "PULL_DENIED"
    with pytest.raises(PullDenied, match=r"docker\.io"):
        engine_of(harness, "registry.example.com").ensure_image(
            "psi:1.0-is-not-here", ignore_progress
        )


def test_the_password_that_the_gateways_user_has_is_used(
    harness, blank, daemon, tmp_path, monkeypatch
):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with registry(tmp_path / "closed", guarded=True) as closed:
        name = f"{closed}/algorithms/psi:1.0"
        daemon.images.get(blank).tag(name)
        push(
            daemon,
            name,
            auth_config={
                "username": USER,
                "password": PASSWORD,
            },
        )
        daemon.images.remove(name)
        log_in(tmp_path, closed)
        try:
            digest = engine_of(harness, closed).ensure_image(name, ignore_progress)
            assert digest == engine_of(harness).image_digest(blank)
        finally:
            daemon.images.remove(name)


def test_a_registry_reports_the_digest_of_an_image_without_a_pull(harness, shop, publish):
    image, _ = publish("asked")
    engine = engine_of(harness, shop)

    assert engine.registry_digest(image, 30).startswith("sha256:")

    with pytest.raises(ImageNotFound):
        engine.image_digest(image)
    with pytest.raises(ImageNotFound, match="no-such"):
        engine.registry_digest(f"{shop}/no-such:1.0", 30)


def test_a_registry_that_the_admin_does_not_allow_is_not_asked(harness, publish):
    image, _ = publish("asked")

    with pytest.raises(ImageNotFound):
        harness.engine().registry_digest(image, 30)
    with pytest.raises(PullDenied):
        engine_of(harness, "r.example.com").registry_digest(image, 30)


def test_a_silent_registry_is_asked_for_a_digest_for_a_limited_time(harness, silent):
    with pytest.raises(PullTimeout, match=r"within 0\.3 s"):
        engine_of(harness, silent).registry_digest(f"{silent}/psi:1.0", 0.3)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a registry that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_registry_takes_the_deadline(harness, silent):
    engine = engine_of(
        harness,
        silent,
        deadline=1.5,
    )
    start = time.monotonic()

    with pytest.raises(PullTimeout, match=r"within 1\.5 s") as timeout:
        engine.ensure_image(f"{silent}/psi:1.0", ignore_progress)

    assert timeout.value.reason == "PULL_TIMEOUT"
    assert time.monotonic() - start >= 1.5


class Aborted(Exception):
    """Raised by the receiver of a pull's progress."""


def test_a_pull_is_aborted_by_the_receiver_of_its_progress(harness, silent):
    with pytest.raises(Aborted):
        engine_of(harness, silent).ensure_image(f"{silent}/psi:1.0", raising(Aborted()))


def test_a_pull_that_stalls_halfway_is_restarted_as_well(harness, shop, publish):
    """The pull stalls after the daemon's first message."""
    image, _ = publish("halfway")
    progress: list[str] = []
    with gate_to(shop) as gate:
        engine = engine_of(
            harness,
            gate.address,
            stale=1.0,
        )
        with pytest.raises(PullTimeout, match="given up twice"):
            engine.ensure_image(
                image.replace(shop, gate.address),
                progress.append,
            )
        assert gate.asked.is_set()
    assert sum("starting again" in text for text in progress) == 1


@pytest.mark.parametrize("name", ["UPPER:1", "a b", "-x:1", "x" * 300, "a\0b", "../x"])
def test_an_image_with_an_invalid_name_is_not_found(harness, name):
    engine = engine_of(harness, "127.0.0.1:1")

    with pytest.raises(ImageNotFound):
        engine.ensure_image(f"127.0.0.1:1/{name}", ignore_progress)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("write /var/lib/docker/tmp/x: no space left on device", NoSpace),
        (
            "pull access denied for x, repository does not exist or may require 'docker login'",
            PullDenied,
        ),
        ("unauthorized: authentication required", PullDenied),
        ("manifest for x:1 not found: manifest unknown: manifest unknown", ImageNotFound),
        ("Get https://r/v2/: net/http: TLS handshake timeout", PullTimeout),
        ("Get https://r/v2/: dial tcp: lookup r: no such host", PullFailed),
        ("received unexpected HTTP status: 500 Internal Server Error", PullFailed),
    ],
)
def test_the_words_of_a_registry_are_understood(text, error):
    assert type(pull_error("x:1", text)) is error


# The key of the provider that `a_request` registers.
KEY = "acme:1.0.0@docker"


def providers_of(engine: ContainerdEngine) -> Providers:
    """Return the registration of providers at this engine, without signatures."""
    images = Images(lambda _: engine, 60.0, SignaturePolicy().check)
    return Providers(Registry(MemoryRepository()), images, list)


def test_an_image_that_moves_is_not_started_until_it_is_approved(harness, build):
    engine = harness.engine()
    providers = providers_of(engine)
    image, _ = build()
    request = a_request(metadata={"image": image})
    registered = providers.register(request, Requester()).revision.provider
    assert registered.digests == {image: engine.image_digest(image)}
    assert registered.warnings == ()

    _, moved_digest = build(component="Other")

    assert engine.image_digest(image) == moved_digest
    assert registered.digests[image] != moved_digest
    spec = a_spec(
        harness,
        exits(0),
        image=image,
        command=None,
        digest=registered.digests[image],
    )
    with pytest.raises(DigestChanged, match="provider approve"):
        engine.launch(spec)

    approved = providers.approve(KEY, Requester()).revision.provider

    assert approved.digests == {image: moved_digest}
    warnings = providers.register(request, Requester()).revision.provider.warnings
    paths = [warning.path for warning in warnings]
    assert paths == ["components_description.Algo", "components_description.Other"]
