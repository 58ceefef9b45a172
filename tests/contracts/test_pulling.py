"""Images from real registries: fetched, denied, silent, asked about; and registrations that look at them."""

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
from engines.messages import pull_error
from engines.registry.names import PullRules
from gateway.providers.images import Images, SignaturePolicy
from gateway.providers.registration import Providers, Requester
from provider_registry.registry import Registry
from tests.contracts.engine_acts import a_spec, exits, output_of
from tests.contracts.harnesses import DockerHarness
from tests.registry.builders import a_request
from tests.registry.memory import MemoryRepository
from tests.services.registry import PASSWORD, USER, gate_to, log_in, registry

pytestmark = [pytest.mark.docker, pytest.mark.registry]


@pytest.fixture(scope="module")
def blank() -> Iterator[str]:
    """An image of one small file, for what never runs: to push it costs nothing."""
    name = f"bfia-blank:{uuid.uuid4().hex}"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    with contextlib.closing(docker.from_env()) as client:
        client.api.import_image_from_data(content.getvalue(), *name.split(":"))
        yield name
        client.images.remove(name, force=True)


Build = Callable[..., tuple[str, str]]


@pytest.fixture
def build(
    shop: str,
    blank: str,
    daemon: docker.DockerClient,
) -> Iterator[Build]:
    """Make an image under one name, each time another one, from one that runs or not; return name and id."""
    name = f"{shop}/algorithms/psi-{uuid.uuid4().hex}:1.0"
    made: list[str] = []

    def build(
        word: str = "",
        base: str = blank,
        component: str = "Algo",
    ) -> tuple[str, str]:
        labels = f"LABEL component.1.name={component} other={uuid.uuid4().hex}"
        text = f'FROM {base}\n{labels}\nCMD ["echo", "{word}"]\n'
        image, _ = daemon.images.build(
            fileobj=io.BytesIO(text.encode()),
            tag=name,
            rm=True,
        )
        made.append(str(image.id))
        return name, made[-1]

    yield build
    for image in (name, *made):
        with contextlib.suppress(docker.errors.ImageNotFound):
            daemon.images.remove(image, force=True)


@pytest.fixture
def publish(build: Build, daemon: docker.DockerClient) -> Build:
    """Make an image, put it into the registry, and take it away from the daemon."""

    def publish(*about: str) -> tuple[str, str]:
        name, id_ = build(*about)
        push(daemon, name)
        daemon.images.remove(name, force=True)
        return name, id_

    return publish


def push(
    daemon: docker.DockerClient,
    name: str,
    **login: dict[str, str],
) -> None:
    for line in daemon.images.push(
        name,
        stream=True,
        decode=True,
        **login,
    ):
        assert "error" not in line, line


def engine_of(
    harness: DockerHarness,
    *registries: str,
    deadline: float = 120.0,
    stale: float = 120.0,
) -> ContainerdEngine:
    return harness.engine(pull=PullRules(frozenset(registries), deadline, stale))


def quiet(progress: str) -> None:
    pass


def test_an_image_is_fetched_when_asked_and_then_runs(harness, shop, publish):
    image, id_ = publish("fetched", harness.image)
    engine = engine_of(harness, shop)
    told: list[str] = []
    with pytest.raises(ImageNotFound):
        engine.launch(
            a_spec(harness, exits(0), image=image, command=None)
        )  # nothing is fetched on the way
    assert engine.ensure_image(image, told.append) == id_
    assert told
    assert "layers" in told[-1]
    assert (
        output_of(
            harness,
            engine,
            exits(0),
            image=image,
            command=None,
            digest=id_,
        )
        == b"fetched\n"
    )
    engine.remove(engine.list()[0].name)


def test_a_registry_that_is_not_named_is_denied(harness, publish):
    image, _ = publish("denied")
    with pytest.raises(PullDenied, match=r"engine\.docker\.registries") as raised:
        engine_of(harness, "registry.example.com").ensure_image(image, quiet)
    assert raised.value.reason == "PULL_DENIED"
    with pytest.raises(PullDenied, match=r"docker\.io"):
        engine_of(harness, "registry.example.com").ensure_image("psi:1.0-is-not-here", quiet)


def test_the_password_that_the_gateways_user_has_is_used(
    harness, blank, daemon, tmp_path, monkeypatch
):
    with registry(tmp_path / "closed", guarded=True) as closed:
        name = f"{closed}/algorithms/psi:1.0"
        daemon.images.get(blank).tag(name)
        login = {"username": USER, "password": PASSWORD}
        push(daemon, name, auth_config=login)
        daemon.images.remove(name)
        log_in(tmp_path, closed)
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        try:
            assert engine_of(harness, closed).ensure_image(name, quiet) == engine_of(
                harness
            ).image_digest(blank)
        finally:
            daemon.images.remove(name)


def test_a_registry_is_asked_for_an_image_that_is_not_fetched(
    harness, shop, publish, silent, daemon
):
    image, _ = publish("asked")
    assert engine_of(harness, shop).registry_digest(image, 30).startswith("sha256:")
    with pytest.raises(ImageNotFound):
        engine_of(harness, shop).image_digest(image)
    with pytest.raises(ImageNotFound, match="no-such"):
        engine_of(harness, shop).registry_digest(f"{shop}/no-such:1.0", 30)
    for engine, error in (
        (harness.engine(), ImageNotFound),
        (engine_of(harness, "r.example.com"), PullDenied),
    ):
        with pytest.raises(error):
            engine.registry_digest(image, 30)
    with pytest.raises(PullTimeout, match=r"within 0\.3 s"):
        engine_of(harness, silent).registry_digest(f"{silent}/psi:1.0", 0.3)


@pytest.fixture
def silent() -> Iterator[str]:
    """Give the address of a registry that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_registry_takes_the_deadline_unless_aborted_earlier(harness, silent):
    began = time.monotonic()
    with pytest.raises(PullTimeout, match=r"within 1\.5 s") as raised:
        engine_of(harness, silent, deadline=1.5).ensure_image(f"{silent}/psi:1.0", quiet)
    assert raised.value.reason == "PULL_TIMEOUT"
    assert time.monotonic() - began >= 1.5
    with pytest.raises(ZeroDivisionError):
        engine_of(harness, silent).ensure_image(f"{silent}/psi:1.0", lambda progress: 1 // 0)


def test_a_pull_that_stalls_halfway_is_restarted_as_well(harness, shop, publish):
    """The daemon has said its first words, and whoever follows it waits for the next ones."""
    image, _ = publish("halfway")
    told: list[str] = []
    with gate_to(shop) as gate:
        with pytest.raises(PullTimeout, match="given up twice"):
            engine_of(harness, gate.address, stale=1.0).ensure_image(
                image.replace(shop, gate.address), told.append
            )
        assert gate.asked.is_set()
    assert sum("starting again" in word for word in told) == 1


def test_a_name_that_is_none_is_not_found(harness):
    engine = engine_of(harness, "127.0.0.1:1")
    for name in ("UPPER:1", "a b", "-x:1", "x" * 300, "a\0b", "../x"):
        with pytest.raises(ImageNotFound):
            engine.ensure_image(f"127.0.0.1:1/{name}", quiet)


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


KEY = "acme:1.0.0@docker"


def providers_of(
    engine: ContainerdEngine, signed: SignaturePolicy = SignaturePolicy()
) -> Providers:
    images = Images(lambda _: engine, 60.0, signed.check)
    return Providers(Registry(MemoryRepository()), images, list)


def test_an_image_that_moves_is_not_started_until_it_is_approved(harness, build):
    engine = harness.engine()
    providers = providers_of(engine)
    image, _ = build()
    body = a_request(metadata={"image": image})
    first = providers.register(body, Requester()).revision.provider
    assert first.digests == {image: engine.image_digest(image)}
    assert first.warnings == ()
    _, moved = build(component="Other")
    assert engine.image_digest(image) == moved != first.digests[image]
    spec = a_spec(
        harness,
        exits(0),
        image=image,
        command=None,
        digest=first.digests[image],
    )
    with pytest.raises(DigestChanged, match="provider approve"):
        engine.launch(spec)
    assert providers.approve(KEY, Requester()).revision.provider.digests == {image: moved}
    named = [
        warning.path for warning in providers.register(body, Requester()).revision.provider.warnings
    ]
    assert named == [f"components_description.{name}" for name in ("Algo", "Other")]
