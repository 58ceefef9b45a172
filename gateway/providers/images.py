"""Images that have to be signed: which, by whom, and whether they are.

The admin names public keys per provider or registry. A signature is cosign's: ECDSA, RSA or Ed25519 over a text
that names the digest of the image's manifest. An image that was found to be signed is not asked after again while
the gateway runs: its content cannot change.
"""

import json
import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from engines.base import Engine, EngineError, ImageMetadata, SignatureInvalid
from engines.registry.names import registry_of
from engines.registry.signatures import ImageSignature, find_signatures
from gateway.config.engine import SignatureRule
from gateway.data.reading import MIB, read_bounded
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from provider_registry import image_labels
from provider_registry.model import Provider, bounded

_ID = re.compile("(sha256:)?[0-9a-f]+")
PublicKey = ec.EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey


@dataclass(frozen=True)
class Signer:
    """Whose signature counts for which images; patterns in which ``*`` stands for anything."""

    provider: str
    registry: str
    keys: tuple[PublicKey, ...]

    def is_for(self, provider: str, registry: str) -> bool:
        """Tell whether it counts for images of a provider from a registry."""
        return fnmatchcase(provider, self.provider) and fnmatchcase(registry, self.registry)


class Signatures:
    """Checks images before they are registered and before they start."""

    def __init__(self, signers: Sequence[Signer] = ()) -> None:
        self._signers = tuple(signers)
        self._known: set[tuple[str, int]] = set()

    def check(
        self,
        provider: str,
        image: str,
        engine: Engine,
    ) -> str:
        """Return the digest of an image that is signed as it has to be; empty where no rule is about it.

        The first rule that is about it decides. Raises `EngineError`: SIGNATURE_ABSENT, SIGNATURE_INVALID,
        SIGNATURE_UNCHECKED, IMAGE_NOT_FOUND.
        """
        names: Sequence[str] = (image,)
        if self._signers and _ID.fullmatch(image):  # an id does not say where it came from
            names = engine.image_facts(image).repo_digests or names
        registries = {registry_of(name) for name in names}
        number = next(
            (
                n
                for n, s in enumerate(self._signers)
                if any(s.is_for(provider, one) for one in registries)
            ),
            None,
        )
        if number is None:
            return ""
        facts = engine.image_facts(image)
        if (facts.digest, number) in self._known:
            return facts.digest
        wrong = [
            _wrong(one, self._signers[number].keys)
            for one in find_signatures(image, facts.repo_digests)
        ]
        if all(wrong):
            causes = "; ".join(dict.fromkeys(wrong))
            raise SignatureInvalid(
                f"no signature of {image} counts for provider {provider}: {causes}"
            )
        self._known.add((facts.digest, number))
        return facts.digest


def signers_of(rules: Sequence[SignatureRule]) -> tuple[Signer, ...]:
    """Read the keys that a configuration names. Raises `Invalid` with every file that holds no public key."""
    found, problems = [], []
    for number, rule in enumerate(rules):
        keys = []
        for index, path in enumerate(rule.keys):
            try:
                keys.append(_key(path))
            except (OSError, ValueError, UnsupportedAlgorithm) as error:
                words = error.strerror if isinstance(error, OSError) else str(error)
                text = f"must be a file with a public key in PEM, ECDSA, RSA or Ed25519 ({words})"
                problems.append(
                    Problem(f"engine.docker.signatures[{number}].keys[{index}]", text, str(path))
                )
        found.append(Signer(rule.provider, rule.registry, tuple(keys)))
    if problems:
        raise Invalid(problems)
    return tuple(found)


def _key(path: Path) -> PublicKey:
    key = load_pem_public_key(read_bounded(path, MIB))
    if not isinstance(key, (ec.EllipticCurvePublicKey, RSAPublicKey, Ed25519PublicKey)):
        raise ValueError(f"it is a key of another kind, {type(key).__name__}")
    return key


def _wrong(one: ImageSignature, keys: Sequence[PublicKey]) -> str:
    """Say why a signature does not count; empty where it does."""
    try:
        signature = b64decode(one.signature, validate=True)
    except ValueError:
        return "one is not valid base64"
    if not any(_made_by(key, signature, one.payload) for key in keys):
        return "one was made with another key, or over something else"
    try:
        critical = json.loads(one.payload)["critical"]
        named = critical["image"]["docker-manifest-digest"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "one signs a text that names no image"
    return "" if named == one.digest else f"one is for another image, {str(named)[:80]}"


def _made_by(
    key: PublicKey,
    signature: bytes,
    payload: bytes,
) -> bool:
    try:
        match key:
            case RSAPublicKey():
                key.verify(signature, payload, padding.PKCS1v15(), SHA256())
            case Ed25519PublicKey():
                key.verify(signature, payload)
            case _:
                key.verify(signature, payload, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


NOT_PINNED = (
    "the first job that starts it pins it, unless `bfia-gateway provider approve` comes first"
)


class _TooLong(Exception):
    """Fetching takes longer than a registration may wait."""


@dataclass(frozen=True)
class Looked:
    """What was found of one image. ``reason`` is empty if it is here."""

    image: str
    facts: ImageMetadata = field(default_factory=ImageMetadata)
    reason: str = ""
    message: str = ""

    @property
    def unsigned(self) -> bool:
        """It is here, and its required signature is missing, invalid or could not be checked."""
        return self.reason.startswith("SIGNATURE_")


class Images:
    """Looks at images where they will run."""

    def __init__(
        self,
        engine_at: Callable[[str], Engine | None],
        seconds: float,
        signed: Callable[[str, str, Engine], str] = lambda provider, image, engine: "",
    ) -> None:
        """``engine_at`` returns the engine for a provider's place, None for one that the admin has not allowed.

        ``seconds`` bound the fetching of all images of one registration, where fetching is allowed at all.
        ``signed`` raises `EngineError` for an image that is not signed as it has to be.
        """
        self._engine_at = engine_at
        self._signed = signed
        self._seconds = seconds

    def look(
        self,
        images: Iterable[str],
        place: str = "",
        provider: str = "",
    ) -> tuple[Looked, ...]:
        """Look at each image of a provider, and fetch it if the engine's settings allow that. Raises nothing."""
        until = time.monotonic() + self._seconds
        try:
            engine = self._engine_at(place)
        except EngineError as error:
            return tuple(Looked(image, reason=error.reason, message=str(error)) for image in images)
        if engine is None:
            text = f"{place} is not among engines"
            return tuple(
                Looked(image, reason="DAEMON_NOT_ALLOWED", message=text) for image in images
            )
        return tuple(self._one(engine, image, provider, until) for image in images)

    def _one(
        self,
        engine: Engine,
        image: str,
        provider: str,
        until: float,
    ) -> Looked:
        def report(progress: str) -> None:
            if time.monotonic() >= until:
                raise _TooLong(f"{image} was not pulled within {self._seconds:g} s; {progress}")

        try:
            engine.ensure_image(image, report)
            self._signed(provider, image, engine)
            return Looked(image, engine.image_facts(image))
        except EngineError as error:
            return Looked(image, reason=error.reason, message=str(error))
        except _TooLong as error:
            return Looked(image, reason="PULL_TIMEOUT", message=str(error))


def pinned(provider: Provider, looked: Iterable[Looked]) -> Provider:
    """Return the provider with the digests of what was found, and a warning for each image that is odd."""
    digests: dict[str, str] = {}
    warnings: list[Problem] = []
    for one in looked:
        if one.reason:
            rule = f"cannot be inspected ({one.reason}: {one.message}); {NOT_PINNED}"
            warnings.append(Problem("metadata.image", rule, one.image))
            continue
        if one.facts.digest:
            digests[one.image] = one.facts.digest
        warnings += image_labels.differences(one.facts.labels, provider, one.image)
    return replace(provider, digests=digests, warnings=bounded([*warnings, *provider.warnings]))
