"""Signatures of images, required by rules of the admin: real keys, a real registry."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519

from engines.base import EngineError, ImageMetadata, PullFailed
from engines.registry import client as registries
from engines.registry.logins import Login
from engines.registry.names import ImageName, PullRules
from gateway.config.schema.engine import SignatureRule
from gateway.errors import Invalid, Refused
from gateway.providers.images import Images, SignaturePolicy, load_signers
from gateway.providers.registration import Providers, Requester
from provider_registry.registry import Registry
from tests.contracts.test_cluster_refusals import serving
from tests.core.example_jobs import run_to_end
from tests.inprocess import running
from tests.memory_engine import MemoryEngine, Script
from tests.registry.builders import a_request
from tests.registry.memory import MemoryRepository
from tests.services.registry import PASSWORD, USER, log_in, registry
from tests.services.signing import public, put, signature, text_for

_numbers = itertools.count(1)


IMAGE_ID = "sha256:" + "1" * 64


class DigestEngine(MemoryEngine):
    """An engine that knows the digests of its only image at the image's registry."""

    def __init__(
        self,
        image: str,
        *digests: str,
    ) -> None:
        super().__init__(
            node="n",
            installation="i",
            images={image: Script(0)},
        )
        self.digests = digests
        self.repository = ""  # "": that of the image's name, which an id does not have
        self.requests = 0

    def image_metadata(self, image: str) -> ImageMetadata:
        self.requests += 1
        repository = self.repository or image.rpartition(":")[0]
        repo_digests = tuple(f"{repository}@{digest}" for digest in self.digests)
        return ImageMetadata(IMAGE_ID, {}, repo_digests)


def a_digest() -> str:
    """Return a digest that no other test uses."""
    return f"sha256:{next(_numbers):064x}"


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def signed_by(tmp_path: Path) -> Callable[..., SignaturePolicy]:
    """Return a policy that requires a signature by one of these keys."""

    def make(*keys: Any, **rule: str) -> SignaturePolicy:
        files = [public(key, tmp_path, f"{n}.pub") for n, key in enumerate(keys)]
        return SignaturePolicy(load_signers([SignatureRule(keys=files, **rule)]))

    return make


def refusal(
    policy: SignaturePolicy, image: str, engine: DigestEngine, provider: str = "acme"
) -> str:
    """Return the reason and the text with which an image is refused; "" if it is accepted."""
    try:
        policy.check(provider, image, engine)
    except EngineError as error:
        assert image in str(error) or "127.0.0.1" in str(error)
        return f"{error.reason}: {error}"
    return ""


def signed_text(
    digest: str,
    key: Any,
) -> tuple[bytes, str]:
    """Return the text of a signature for this digest, and the signature."""
    text = text_for(digest)
    return text, signature(key, text)


@dataclass(frozen=True)
class SignedImage:
    """An image at a registry, with signatures that a test chooses."""

    shop: str
    digest: str
    key: Any

    @property
    def name(self) -> str:
        return f"{self.shop}/acme/psi:1.0"

    @property
    def engine(self) -> DigestEngine:
        return DigestEngine(self.name, self.digest)

    def sign(self, *signatures: tuple[bytes, str]) -> None:
        put(self.shop, "acme/psi", self.digest, *signatures)

    def bad_signatures(self) -> dict[str, tuple[bytes, str]]:
        """Return signatures that do not count, by the words of the refusal."""
        text = text_for(self.digest)
        stranger = ec.generate_private_key(ec.SECP384R1())
        return {
            "another key": (
                text,
                signature(stranger, text),
            ),
            "something else": (
                text + b" ",
                signature(self.key, text),
            ),
            "for another image": signed_text(a_digest(), self.key),
            "not valid base64": (text, "ö"),
            "names no image": (
                b"[]",
                signature(self.key, b"[]"),
            ),
        }


@pytest.fixture
def image(shop: str, key: Any) -> SignedImage:
    return SignedImage(shop, a_digest(), key)


@pytest.mark.registry
def test_an_image_without_signature_is_refused(image, key, signed_by):
    text = refusal(
        signed_by(key),
        image.name,
        image.engine,
    )

    assert text.startswith(f"SIGNATURE_ABSENT: {image.name} has no signature")


@pytest.mark.registry
@pytest.mark.parametrize(
    "fault",
    ["another key", "something else", "for another image", "not valid base64", "names no image"],
)
def test_a_signature_counts_only_by_the_right_key_and_digest(image, key, signed_by, fault):
    image.sign(image.bad_signatures()[fault])

    text = refusal(
        signed_by(key),
        image.name,
        image.engine,
    )

    assert text.startswith("SIGNATURE_INVALID")
    assert fault in text


@pytest.mark.registry
def test_one_good_signature_is_enough_and_is_remembered(image, key, signed_by):
    bad_signatures = image.bad_signatures()
    policy = signed_by(key)
    engine = image.engine
    image.sign(*bad_signatures.values(), signed_text(image.digest, key))

    assert policy.check("acme", image.name, engine) == IMAGE_ID

    image.sign(bad_signatures["another key"])
    # The content of that id cannot change, so the policy does not ask again.
    assert refusal(policy, image.name, engine) == ""
    assert refusal(signed_by(key), image.name, engine).startswith("SIGNATURE_INVALID")


@pytest.mark.registry
def test_a_tag_beside_a_digest_is_ignored(image, key, signed_by):
    image.sign(signed_text(image.digest, key))
    name = f"{image.name}@{image.digest}"
    engine = DigestEngine(name, image.digest)
    engine.repository = f"{image.shop}/acme/psi"

    assert refusal(signed_by(key), name, engine) == ""


@pytest.mark.parametrize("tag", ["", ":1.0"])
def test_an_image_with_a_digest_is_in_the_repository_of_its_name(tag):
    digest = a_digest()
    rules = PullRules(registries=frozenset({"shop.example:5000"}))

    name = rules.allowed_name(f"shop.example:5000/acme/psi{tag}@{digest}")

    assert name == ImageName("shop.example:5000", "acme/psi", digest)


def _rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def _p384_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


@pytest.mark.registry
@pytest.mark.parametrize(
    "make_key",
    [_rsa_key, ed25519.Ed25519PrivateKey.generate, _p384_key],
)
def test_keys_of_three_kinds_count(shop, make_key, signed_by):
    key = make_key()
    stranger = make_key()
    digest = a_digest()
    image = f"{shop}/acme:1.0"
    put(shop, "acme", digest, signed_text(digest, key))

    accepted = refusal(
        signed_by(stranger, key),
        image,
        DigestEngine(image, a_digest(), digest),
    )
    refused = refusal(
        signed_by(stranger),
        image,
        DigestEngine(image, digest),
    )

    assert accepted == ""
    assert refused.startswith("SIGNATURE_INVALID")


@pytest.mark.registry
def test_the_credentials_of_docker_are_used(tmp_path, key, signed_by, monkeypatch):
    digest = a_digest()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with registry(tmp_path / "closed", guarded=True) as closed:
        put(
            closed,
            "a",
            digest,
            signed_text(digest, key),
            auth=(USER, PASSWORD),
        )
        image = f"{closed}/a:1"
        engine = DigestEngine(image, digest)

        without_login = refusal(signed_by(key), image, engine)
        log_in(tmp_path, closed)
        with_login = refusal(signed_by(key), image, engine)

    assert without_login.startswith("SIGNATURE_UNCHECKED")
    assert "docker login" in without_login
    assert with_login == ""


IMAGE = "registry.example.com/a:1"


@pytest.mark.parametrize(
    "rule",
    [
        {"provider": "other"},
        {"registry": "*.example.org"},
    ],
)
def test_an_image_without_a_rule_is_not_checked(key, signed_by, rule):
    engine = DigestEngine(IMAGE)

    assert refusal(signed_by(key, **rule), IMAGE, engine) == ""
    assert engine.requests == 0


def test_a_rule_may_name_provider_and_registry(key, signed_by):
    policy = signed_by(
        key,
        provider="ac*",
        registry="registry.example.com",
    )

    text = refusal(policy, IMAGE, DigestEngine(IMAGE))

    assert "was never pulled from its registry" in text


@pytest.mark.parametrize("image_id", [IMAGE_ID, "1" * 64, "1" * 12])
def test_the_id_of_an_image_does_not_evade_a_rule(key, signed_by, image_id):
    """Attack: an image stays at the daemon when its signature is refused.

    It is then registered by its id.
    """
    engine = DigestEngine(IMAGE, a_digest())
    engine.repository = "registry.example.com/a"
    policy = signed_by(key, registry="registry.example.com")

    assert refusal(policy, image_id, engine).startswith("SIGNATURE_ABSENT")


def test_an_id_of_a_registry_without_rule_is_accepted(key, signed_by):
    engine = DigestEngine(IMAGE, a_digest())
    engine.repository = "registry.example.com/a"

    assert refusal(signed_by(key, registry="*.example.org"), IMAGE_ID, engine) == ""


def test_invalid_keys_are_refused_with_their_paths(tmp_path):
    text = tmp_path / "text"
    text.write_text("no key")
    missing = tmp_path / "none"
    exchange_key = public(
        x25519.X25519PrivateKey.generate(),
        tmp_path,
        "x.pub",
    )

    with pytest.raises(Invalid) as refused:
        load_signers([SignatureRule(keys=[text, missing, exchange_key])])

    problems = refused.value.problems
    keys = "engine.docker.signatures[0].keys"
    assert [problem.path for problem in problems] == [f"{keys}[0]", f"{keys}[1]", f"{keys}[2]"]
    assert all("public key in PEM" in problem.rule for problem in problems)


def test_a_registration_and_an_approval_are_refused(tmp_path, key, signed_by):
    def images(policy: SignaturePolicy) -> Images:
        return Images(lambda _: DigestEngine(IMAGE), 5.0, policy.check)

    providers = Providers(
        Registry(MemoryRepository()), images(signed_by(key, provider="acme")), list
    )
    with pytest.raises(Invalid, match="SIGNATURE_ABSENT") as registration:
        providers.register(
            a_request(metadata={"image": IMAGE}),
            Requester(),
        )
    assert registration.value.reason == "SIGNATURE_ABSENT"
    assert registration.value.problems[0].path == "metadata.image"
    assert providers.registry.query() == []

    # The rule does not concern this provider.
    request = a_request(
        metadata={"image": IMAGE},
        name="free",
    )
    provider_key = providers.register(request, Requester()).revision.key
    assert providers.approve(provider_key, Requester()).revision.provider.digests

    strict = Providers(
        providers.registry,
        images(signed_by(key)),
        list,
    )
    with pytest.raises(Refused, match="was never pulled from its registry") as approval:
        strict.approve(provider_key, Requester())
    assert approval.value.reason == "SIGNATURE_ABSENT"


def test_nothing_starts_without_its_signature(tmp_path, key, signed_by):
    make_engine = MemoryEngine.making({"example:1.0.0": Script(0)})
    with running(tmp_path, make_engine=make_engine) as node:
        node.image_signatures.check = signed_by(key).check  # type: ignore[method-assign]

        failure = run_to_end(node).ending.failure

        assert failure.reason == "SIGNATURE_ABSENT"
        assert "cosign" not in failure.message
        assert list(node.engine.list()) == []


@pytest.fixture
def without_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the logins of the user who runs the tests."""
    monkeypatch.setattr(registries, "login_for", lambda _: Login())


@pytest.mark.usefixtures("without_login")
def test_a_registry_with_https_cannot_ask_for_the_password_over_http(monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("the password was requested over http")

    monkeypatch.setattr(registries.httpx.Client, "stream", fail)
    with registries.Registry("registry.invalid", "acme/algo") as closed:
        assert not closed._log_in('Bearer realm="http://127.0.0.1:9/token",service="x"')


@pytest.mark.usefixtures("without_login")
@pytest.mark.parametrize(
    ("body", "cause"),
    [(b'{"token": "t"}'.ljust(2 << 20), "has more than"), (b"[" * 200_000, "RecursionError")],
    ids=["long", "deep"],
)
def test_the_response_with_a_token_is_bounded(body, cause):
    with (
        serving({"/token": (200, body), "/x": (401, b"")}) as address,
        registries.Registry(address, "acme/algo") as repository,
        pytest.raises(
            PullFailed,
            match=cause,
        ),
    ):
        repository.get("manifests/x", "*/*")


def test_the_requests_about_an_image_have_a_time_limit(monkeypatch):
    monkeypatch.setattr(registries, "MAX_SECONDS", 0.0)
    with (
        serving({"/x": (200, b"{}")}) as address,
        registries.Registry(address, "acme/algo") as repository,
        pytest.raises(
            PullFailed,
            match="too slowly",
        ),
    ):
        repository.get("manifests/x", "*/*")
