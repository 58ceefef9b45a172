"""Images have to be signed where the admin says so: real keys, a real registry."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519

from engines.base import EngineError, ImageMetadata, PullFailed
from engines.registry import client as registries
from engines.registry.logins import Login
from gateway.config.engine import SignatureRule
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


class Known(MemoryEngine):
    """Knows each image by the digest under which its registry has it."""

    def __init__(self, image: str, *digests: str) -> None:
        super().__init__(
            node="n",
            installation="i",
            images={image: Script(0)},
        )
        self._digests = digests
        self.name = ""
        """its repository, where an image is asked for by id"""
        self.asked = 0

    def image_facts(self, image: str) -> ImageMetadata:
        self.asked += 1
        name = self.name or image.rpartition(":")[0]
        return ImageMetadata(
            "sha256:" + "1" * 64, {}, tuple(f"{name}@{digest}" for digest in self._digests)
        )


def a_digest() -> str:
    return f"sha256:{next(_numbers):064x}"


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def signed_by(tmp_path: Path) -> Callable[..., SignaturePolicy]:
    def make(*keys: Any, **rule: str) -> SignaturePolicy:
        files = [public(key, tmp_path, f"{n}.pub") for n, key in enumerate(keys)]
        return SignaturePolicy(load_signers([SignatureRule(keys=files, **rule)]))

    return make


def reason(
    signatures: SignaturePolicy,
    image: str,
    engine: Known,
    provider: str = "acme",
) -> str:
    try:
        signatures.check(provider, image, engine)
    except EngineError as error:
        assert image in str(error) or "127.0.0.1" in str(error)
        return f"{error.reason}: {error}"
    return ""


@pytest.mark.registry
def test_an_image_counts_as_signed_only_by_the_right_key_and_digest(shop, key, signed_by):
    other, digest, image = (
        ec.generate_private_key(ec.SECP384R1()),
        a_digest(),
        f"{shop}/acme/psi:1.0",
    )
    engine, text = Known(image, digest), text_for(digest)
    one = signed_by(key)
    assert reason(one, image, engine).startswith(f"SIGNATURE_ABSENT: {image} has no signature")
    wrong = {
        "another key": (text, signature(other, text)),
        "something else": (text_for(digest) + b" ", signature(key, text)),
        "for another image": (text_for(a_digest()), ""),
        "not valid base64": (text, "ö"),
        "names no image": (b"[]", signature(key, b"[]")),
    }
    wrong["for another image"] = (
        wrong["for another image"][0],
        signature(key, wrong["for another image"][0]),
    )
    for said, made in wrong.items():
        put(shop, "acme/psi", digest, made)
        assert reason(one, image, engine).startswith("SIGNATURE_INVALID")
        assert said in reason(one, image, engine)
    put(shop, "acme/psi", digest, *wrong.values(), (text, signature(key, text)))
    assert one.check("acme", image, engine) == "sha256:" + "1" * 64
    put(shop, "acme/psi", digest, wrong["another key"])
    assert (
        reason(one, image, engine) == ""
    )  # known by now, and the content of that id cannot change
    assert reason(signed_by(key), image, engine).startswith("SIGNATURE_INVALID")


@pytest.mark.registry
@pytest.mark.parametrize(
    "make",
    [
        lambda: rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate,
        lambda: ec.generate_private_key(ec.SECP384R1()),
    ],
)
def test_keys_of_three_kinds_count(shop, make, signed_by):
    key, digest, image = make(), a_digest(), f"{shop}/acme:1.0"
    put(shop, "acme", digest, (text_for(digest), signature(key, text_for(digest))))
    assert reason(signed_by(make(), key), image, Known(image, a_digest(), digest)) == ""
    assert reason(signed_by(make()), image, Known(image, digest)).startswith("SIGNATURE_INVALID")


@pytest.mark.registry
def test_the_credentials_of_docker_are_used(tmp_path, key, signed_by, monkeypatch):
    digest = a_digest()
    with registry(tmp_path / "closed", guarded=True) as closed:
        put(
            closed,
            "a",
            digest,
            (text_for(digest), signature(key, text_for(digest))),
            auth=(USER, PASSWORD),
        )
        image = f"{closed}/a:1"
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        refused = reason(signed_by(key), image, Known(image, digest))
        assert refused.startswith("SIGNATURE_UNCHECKED")
        assert "docker login" in refused
        log_in(tmp_path, closed)
        assert reason(signed_by(key), image, Known(image, digest)) == ""


def test_what_no_rule_is_about_is_not_asked_after(key, signed_by):
    engine = Known("registry.example.com/a:1")
    assert reason(signed_by(key, provider="other"), "registry.example.com/a:1", engine) == ""
    assert (
        reason(signed_by(key, registry="*.example.org"), "registry.example.com/a:1", engine) == ""
    )
    assert engine.asked == 0
    mine = signed_by(key, provider="ac*", registry="registry.example.com")
    assert "was never pulled from its registry" in reason(mine, "registry.example.com/a:1", engine)


def test_the_id_of_an_image_leads_past_no_rule(key, signed_by):
    """Attack: an image stays at the daemon when its signature is refused; it is registered by its id instead."""
    rule = signed_by(key, registry="registry.example.com")
    engine = Known("registry.example.com/a:1", a_digest())
    engine.name = "registry.example.com/a"
    assert reason(signed_by(key, registry="*.example.org"), "sha256:" + "1" * 64, engine) == ""
    for id_ in ("sha256:" + "1" * 64, "1" * 64, "1" * 12):
        assert reason(rule, id_, engine).startswith("SIGNATURE_ABSENT")


def test_keys_that_are_none_are_refused_with_their_paths(tmp_path):
    (tmp_path / "text").write_text("no key")
    other = public(x25519.X25519PrivateKey.generate(), tmp_path, "x.pub")
    with pytest.raises(Invalid) as caught:
        load_signers([SignatureRule(keys=[tmp_path / "text", tmp_path / "none", other])])
    at = "engine.docker.signatures[0].keys"
    assert [p.path for p in caught.value.problems] == [f"{at}[0]", f"{at}[1]", f"{at}[2]"]
    assert all("public key in PEM" in p.rule for p in caught.value.problems)


def test_a_registration_and_an_approval_are_refused(tmp_path, key, signed_by):
    image = "registry.example.com/a:1"
    images = Images(lambda _: Known(image), 5.0, signed_by(key, provider="acme").check)
    providers = Providers(Registry(MemoryRepository()), images, list)
    with pytest.raises(Invalid, match="SIGNATURE_ABSENT") as refused:
        providers.register(a_request(metadata={"image": image}), Requester())
    assert refused.value.reason == "SIGNATURE_ABSENT"
    assert refused.value.problems[0].path == "metadata.image"
    assert providers.registry.query() == []
    free = a_request(metadata={"image": image}, name="free")
    key_ = providers.register(free, Requester()).revision.key
    assert providers.approve(key_, Requester()).revision.provider.digests
    closed = Providers(
        providers.registry, Images(lambda _: Known(image), 5.0, signed_by(key).check), list
    )
    with pytest.raises(Refused, match="was never pulled from its registry") as unsigned:
        closed.approve(key_, Requester())
    assert unsigned.value.reason == "SIGNATURE_ABSENT"


def test_nothing_starts_that_is_not_signed(tmp_path, key, signed_by):
    with running(tmp_path, make_engine=MemoryEngine.making({"example:1.0.0": Script(0)})) as node:
        node.image_signatures.check = signed_by(key).check  # type: ignore[method-assign]
        failure = run_to_end(node).ending.failure
        assert failure.reason == "SIGNATURE_ABSENT"
        assert "cosign" not in failure.message
        assert list(node.engine.list()) == []


def test_a_registry_reached_by_https_cannot_ask_for_the_password_by_http(monkeypatch):
    monkeypatch.setattr(registries, "login_for", lambda _: Login())
    monkeypatch.setattr(
        registries.httpx.Client, "stream", lambda *_, **__: pytest.fail("it was asked by http")
    )
    with registries.Registry("registry.invalid", "acme/algo") as there:
        assert not there._log_in('Bearer realm="http://127.0.0.1:9/token",service="x"')


@pytest.mark.parametrize(
    ("said", "why"),
    [(b'{"token": "t"}'.ljust(2 << 20), "has more than"), (b"[" * 200_000, "RecursionError")],
    ids=["long", "deep"],
)
def test_an_answer_to_the_question_for_a_token_is_bounded_too(said, why, monkeypatch):
    monkeypatch.setattr(registries, "login_for", lambda _: Login())
    with (
        serving({"/token": (200, said), "/x": (401, b"")}) as address,
        registries.Registry(address, "acme/algo") as there,
        pytest.raises(PullFailed, match=why),
    ):
        there.get("manifests/x", "*/*")


def test_all_that_a_registry_is_asked_about_an_image_has_an_end(monkeypatch):
    monkeypatch.setattr(registries, "MAX_SECONDS", 0.0)
    with (
        serving({"/x": (200, b"{}")}) as address,
        registries.Registry(address, "acme/algo") as there,
        pytest.raises(PullFailed, match="too slowly"),
    ):
        there.get("manifests/x", "*/*")
