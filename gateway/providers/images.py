"""The images of providers: their signatures, and their inspection at registration.

The admin configures public keys per provider or registry. Signatures have cosign's form: ECDSA, RSA
or Ed25519 over a text with the digest of the image's manifest.
"""

import json
import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from engines.base import Engine, EngineError, ImageMetadata, SignatureInvalid
from gateway.config.schema.engine import SignatureRule
from gateway.data.reading import MIB, read_bounded
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from provider_registry import image_labels
from provider_registry.model import Provider, bounded

if TYPE_CHECKING:
    from engines.registry.signatures import ImageSignature

PublicKey = ec.EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey

# The end of a warning about an image that has no approved digest yet.
NOT_PINNED = (
    "the first job that starts it pins it, unless `bfia-gateway provider approve` comes first"
)
_IMAGE_ID = re.compile("(sha256:)?[0-9a-f]+")  # an image named by its id
_MAX_DIGEST = 80  # characters of a signed digest that a message repeats


# ------------------------------------------------------------ signatures


@dataclass(frozen=True, eq=False)  # compared by identity: keys have no hash
class Signer:
    """The keys that must sign certain images; ``*`` in a pattern matches anything."""

    provider: str  # pattern
    registry: str  # pattern
    keys: tuple[PublicKey, ...]

    def applies_to(
        self,
        provider: str,
        registries: Iterable[str],
    ) -> bool:
        """Return whether these keys must sign a provider's images from one of these registries."""
        if not fnmatchcase(provider, self.provider):
            return False
        return any(fnmatchcase(registry, self.registry) for registry in registries)


class SignaturePolicy:
    """Checks the signatures of images before they are registered and before they start."""

    def __init__(self, signers: Sequence[Signer] = ()) -> None:
        self._signers = tuple(signers)
        # Pairs of a digest and a signer with a valid signature; a digest's content cannot change.
        self._checked: set[tuple[str, Signer]] = set()

    def check(
        self,
        provider: str,
        image: str,
        engine: Engine,
    ) -> str:
        """Return the digest of an image whose signature is valid; empty if it needs no signature.

        The first signer that applies to the image decides; if there is no such signer, the image
        needs no signature. Raises `EngineError`: SIGNATURE_ABSENT, SIGNATURE_INVALID,
        SIGNATURE_UNCHECKED, IMAGE_NOT_FOUND.
        """
        signer = self._signer_for(provider, image, engine)
        if signer is None:
            return ""
        facts = engine.image_metadata(image)
        if (facts.digest, signer) in self._checked:
            return facts.digest
        # Imported late: only nodes that check signatures need Docker's library for that.
        from engines.registry.signatures import find_signatures  # noqa: PLC0415

        signatures = find_signatures(image, facts.repo_digests)
        flaws = [_flaw(signature, signer.keys) for signature in signatures]
        has_valid_signature = "" in flaws  # a signature without a flaw has ""; one is enough
        if not has_valid_signature:
            causes = "; ".join(dict.fromkeys(flaws))
            raise SignatureInvalid(
                f"no signature of {image} counts for provider {provider}: {causes}"
            )
        self._checked.add((facts.digest, signer))
        return facts.digest

    def _signer_for(
        self,
        provider: str,
        image: str,
        engine: Engine,
    ) -> Signer | None:
        """Return the first signer that applies to an image; None if there is none."""
        if not self._signers:
            return None
        names: Sequence[str] = (image,)
        if _IMAGE_ID.fullmatch(image):  # an id names no registry, but the image's digests do
            names = engine.image_metadata(image).repo_digests or names
        # Imported late, as in `check`.
        from engines.registry.names import registry_of  # noqa: PLC0415

        registries = set(map(registry_of, names))
        for signer in self._signers:
            if signer.applies_to(provider, registries):
                return signer
        return None


def load_signers(rules: Sequence[SignatureRule]) -> tuple[Signer, ...]:
    """Read the keys of a configuration's rules.

    Raises `Invalid` with a problem for each file that cannot be read or contains no public key.
    """
    signers = []
    problems: list[Problem] = []
    for number, rule in enumerate(rules):
        path = f"engine.docker.signatures[{number}].keys"
        keys = _load_keys(rule.keys, path, problems)
        signers.append(Signer(rule.provider, rule.registry, keys))
    if problems:
        raise Invalid(problems)
    return tuple(signers)


def _load_keys(
    files: Sequence[Path],
    path: str,
    problems: list[Problem],
) -> tuple[PublicKey, ...]:
    """Read the public keys of one rule.

    ``path`` is the path of the keys in the configuration. For each unusable file a problem is
    appended to ``problems``.
    """
    keys = []
    for index, file in enumerate(files):
        try:
            keys.append(_load_key(file))
        except ValueError as error:
            rule = f"must be a file with a public key in PEM, ECDSA, RSA or Ed25519 ({error})"
            problems.append(Problem(f"{path}[{index}]", rule, str(file)))
    return tuple(keys)


def _load_key(file: Path) -> PublicKey:
    """Read a public key. Raises `ValueError` with the cause."""
    try:
        key = load_pem_public_key(read_bounded(file, MIB))
    except OSError as error:
        raise ValueError(error.strerror) from error
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, (ec.EllipticCurvePublicKey, RSAPublicKey, Ed25519PublicKey)):
        raise ValueError(f"it is a key of another kind, {type(key).__name__}")
    return key


def _flaw(image_signature: "ImageSignature", keys: Sequence[PublicKey]) -> str:
    """Return why a signature does not count; empty if it counts.

    The texts continue the message "no signature of … counts for provider …: "; "one" means one of
    the image's signatures.
    """
    try:
        signature = b64decode(image_signature.signature, validate=True)
    except ValueError:
        return "one is not valid base64"
    payload = image_signature.payload
    if not any(_is_signed_with(key, signature, payload) for key in keys):
        return "one was made with another key, or over something else"
    signed_digest = _digest_in(payload)
    if signed_digest is None:
        return "one signs a text that names no image"
    if signed_digest != image_signature.digest:
        return f"one is for another image, {str(signed_digest)[:_MAX_DIGEST]}"
    return ""


def _digest_in(payload: bytes) -> object:
    """Return the digest of the image in a signed text; None for a text of another form."""
    try:
        return json.loads(payload)["critical"]["image"]["docker-manifest-digest"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_signed_with(
    key: PublicKey,
    signature: bytes,
    payload: bytes,
) -> bool:
    """Return whether a key has made a signature of a text."""
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


# ------------------------------------------------------------ inspection


class _PullTimeout(Exception):
    """Pulling takes longer than a registration may wait. The engine passes this error on."""


@dataclass(frozen=True)
class InspectedImage:
    """The result of inspecting one image."""

    name: str
    facts: ImageMetadata = field(default_factory=ImageMetadata)
    reason: str = ""  # symbol of the reason why the image cannot be used; empty if it can
    message: str = ""  # the reason in words

    @property
    def is_unsigned(self) -> bool:
        """True if its required signature is missing, invalid or could not be checked."""
        return self.reason.startswith("SIGNATURE_")


# A function like `SignaturePolicy.check`, with the same arguments, result and errors.
SignatureCheck = Callable[[str, str, Engine], str]


def accept_unsigned(provider: str, image: str, engine: Engine) -> str:
    """Return an empty text: no image needs a signature."""
    return ""


class Images:
    """Inspects the images of providers with the engines that will run them."""

    def __init__(
        self,
        engine_at: Callable[[str], Engine | None],
        seconds: float,
        check_signature: SignatureCheck = accept_unsigned,
    ) -> None:
        """Take the engines and the limits of inspections.

        - ``engine_at`` returns the engine for a `Provider.place`; None if the admin has not allowed
          that engine
        - ``seconds`` limits the pulling of all images of one registration together, if the engine's
          settings allow pulling
        """
        self._engine_at = engine_at
        self._check_signature = check_signature
        self._seconds = seconds

    def inspect(
        self,
        images: Iterable[str],
        place: str = "",
        provider: str = "",
    ) -> tuple[InspectedImage, ...]:
        """Inspect each image of a provider, pulling it if the engine's settings allow that.

        ``place``: see `Provider.place`. The result for an image that cannot be inspected has a
        `reason`; this function does not raise the errors of engines.
        """
        deadline = time.monotonic() + self._seconds
        try:
            engine = self._engine_at(place)
        except EngineError as error:
            return _all_failed(images, error.reason, str(error))
        if engine is None:
            return _all_failed(images, "DAEMON_NOT_ALLOWED", f"{place} is not among engines")
        return tuple(self._inspect(engine, image, provider, deadline) for image in images)

    def unsuitable_engine(self, provider: Provider) -> str:
        """Return the kind of a provider's engine if the provider's images do not run there.

        Empty if they do, or if the engine is not known here.
        """
        try:
            engine = self._engine_at(provider.place)
        except EngineError:
            return ""
        if engine is None or provider.runs_on(engine.kind):
            return ""
        return engine.kind

    def _inspect(
        self,
        engine: Engine,
        image: str,
        provider: str,
        deadline: float,
    ) -> InspectedImage:
        """Inspect an image; ``deadline``: the time of `time.monotonic` at which pulling ends."""

        def check_deadline(progress: str) -> None:
            """Raise `_PullTimeout` after the deadline.

            The engine calls this function during the pull, with a text about the progress.
            """
            if time.monotonic() >= deadline:
                raise _PullTimeout(f"{image} was not pulled within {self._seconds:g} s; {progress}")

        try:
            engine.ensure_image(image, check_deadline)
            self._check_signature(provider, image, engine)
            return InspectedImage(image, engine.image_metadata(image))
        except EngineError as error:
            return InspectedImage(
                image,
                reason=error.reason,
                message=str(error),
            )
        except _PullTimeout as error:
            return InspectedImage(
                image,
                reason="PULL_TIMEOUT",
                message=str(error),
            )


def _all_failed(
    images: Iterable[str],
    reason: str,
    message: str,
) -> tuple[InspectedImage, ...]:
    """Return the result for images that cannot be inspected for a common reason."""
    return tuple(InspectedImage(image, reason=reason, message=message) for image in images)


def pin_images(provider: Provider, inspected: Iterable[InspectedImage]) -> Provider:
    """Return the provider with the digests of its images, and warnings about the images.

    There is one warning for each image that could not be inspected, and one for each label that
    contradicts the provider's description. The provider's earlier warnings follow.
    """
    digests: dict[str, str] = {}
    warnings: list[Problem] = []
    for image in inspected:
        if image.reason:
            rule = f"cannot be inspected ({image.reason}: {image.message}); {NOT_PINNED}"
            warnings.append(Problem("metadata.image", rule, image.name))
            continue
        if image.facts.digest:
            digests[image.name] = image.facts.digest
        warnings += image_labels.differences(image.facts.labels, provider, image.name)
    return replace(provider, digests=digests, warnings=bounded([*warnings, *provider.warnings]))
