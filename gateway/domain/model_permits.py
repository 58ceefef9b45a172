"""The digest of a model, and the decision whether the permits of a partner cover its use."""

import hashlib
from collections.abc import Iterable, Sequence
from enum import Enum

from gateway.domain.applications import Application
from gateway.domain.models import PartyModel
from gateway.domain.permit_scope import UNLIMITED, Use, missing_scope

_DIGEST_PREFIX = "sha256:"  # may precede the hexadecimal digits


class ModelFinding(Enum):
    """The result of a decision on the use of a model."""

    ALLOWED = "allowed"
    OTHER_DIGEST = "other digest"  # each permit is for a model with another digest
    OUT_OF_SCOPE = "out of scope"  # each permit is for another project


def model_digest(models: Iterable[PartyModel]) -> str:
    """Return the digest of a version of a model: SHA-256 in hexadecimal digits.

    ``models`` are those of all parties at this node. The digest is that of the model's file or, of
    several files, that of the lines ``<sha256 of the file>  <party>/<task>/<output>/<file>``,
    sorted and each with a line feed. Empty for a model without files.
    """
    lines = []
    sums = []
    for model in models:
        for part in model.parts:
            for file in part.files:
                name = f"{model.party.label}/{part.task}/{part.output}/{file.name}"
                lines.append(f"{file.sha256}  {name}\n")
                sums.append(file.sha256)
    if len(sums) <= 1:
        return "".join(sums)
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def requested_digest(application: Application) -> str:
    """Return the digest of the model that an application is for; empty for any version."""
    text = str(application.request.get("digest") or "").strip().lower()
    return text.removeprefix(_DIGEST_PREFIX)


def covers_digest(application: Application, digest: str) -> bool:
    """Return whether an application is for the model with a digest, or for any version."""
    return requested_digest(application) in ("", digest)


def decide_model(
    permits: Sequence[Application],
    use: Use,
    digest: str,
) -> ModelFinding:
    """Decide whether a partner may use a model with a digest.

    ``permits``: those of the partner for the model that are in force; at least one.
    """
    for_digest = [permit for permit in permits if covers_digest(permit, digest)]
    if not for_digest:
        return ModelFinding.OTHER_DIGEST
    if any(missing_scope(permit.scope, use) == UNLIMITED for permit in for_digest):
        return ModelFinding.ALLOWED
    return ModelFinding.OUT_OF_SCOPE
