"""Checks the files of a release without a network."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from tools.release import checksums, provenance, sbom, signatures

# Files that the checksums do not list.
UNLISTED = frozenset({checksums.NAME, *signatures.FILES})
# Files that the provenance does not list.
NO_SUBJECT = frozenset({provenance.NAME, *UNLISTED})


def problems_of(folder: Path, public_key: bytes = b"") -> list[str]:
    """Return a line for each problem, which begins with the file's name; none if all is well.

    ``public_key``: content of the PEM file that the release must be signed with; by default that
    of the release itself, which shows only that its files belong together.
    """
    problems = list(signature_problems(folder, public_key))
    try:
        expected = checksums.read_checksums(folder)
    except (OSError, ValueError) as error:
        return [*problems, f"{checksums.NAME}: {error}"]
    problems += changed_files(folder, expected)
    problems += unlisted_files(folder, expected)
    problems += provenance_problems(folder, expected)
    problems += sbom_problems(folder, expected)
    return problems


def signature_problems(folder: Path, public_key: bytes) -> Iterator[str]:
    """Yield a line for each signature that is missing or wrong."""
    missing = [name for name in signatures.FILES if not (folder / name).is_file()]
    if missing:
        yield f"{', '.join(missing)}: missing; sign the release with python -m tools.release sign"
        return
    content = (folder / signatures.PUBLIC_KEY).read_bytes()
    try:
        key = signatures.parse_public_key(content)
    except ValueError as error:
        yield f"{signatures.PUBLIC_KEY}: {error}"
        return
    if public_key and public_key != content:
        yield f"{signatures.PUBLIC_KEY}: not the public key that you trust"
        return
    sums = f"{checksums.NAME} and {signatures.SIGNATURE}"
    yield from signature_problem(
        sums,
        signatures.check_sums,
        folder,
        key,
    )
    yield from signature_problem(
        signatures.ENVELOPE,
        signatures.check_envelope,
        folder,
        key,
    )


def signature_problem(
    name: str,
    check: Callable[[Path, EllipticCurvePublicKey], None],
    folder: Path,
    key: EllipticCurvePublicKey,
) -> Iterator[str]:
    """Yield the problem that a check of a signature finds, if any."""
    try:
        check(folder, key)
    except (OSError, signatures.WrongSignature) as error:
        yield f"{name}: {error}"


def changed_files(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each listed file that is missing or has another checksum."""
    for name, checksum in expected.items():
        path = folder / name
        if not path.is_file():
            yield f"{name}: missing"
        elif checksums.sha256_of(path) != checksum:
            yield f"{name}: its SHA-256 is not the one in {checksums.NAME}"


def unlisted_files(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each file that the checksums do not list."""
    for path in sorted(folder.iterdir()):
        if path.name not in UNLISTED and path.name not in expected:
            yield f"{path.name}: not listed in {checksums.NAME}"


def provenance_problems(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield a line if the provenance does not name the files that the checksums list."""
    try:
        document = json.loads((folder / provenance.NAME).read_text(encoding="utf-8"))
        subjects = provenance.subjects_of(document)
    except (OSError, LookupError, TypeError, ValueError) as error:
        yield f"{provenance.NAME}: not a statement on files: {error!r}"
        return
    listed = {name: checksum for name, checksum in expected.items() if name not in NO_SUBJECT}
    if subjects != listed:
        yield f"{provenance.NAME}: names other files or checksums than {checksums.NAME}"


def sbom_problems(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each SBOM that describes another file than its name says."""
    for name in expected:
        if not name.endswith(sbom.SUFFIX) or not (folder / name).is_file():
            continue
        artefact = name.removesuffix(sbom.SUFFIX)
        try:
            described = sbom.described_file((folder / name).read_text(encoding="utf-8"))
        except (LookupError, TypeError, ValueError) as error:
            yield f"{name}: not an SBOM: {error!r}"
            continue
        if described != (artefact, expected.get(artefact)):
            yield f"{name}: does not describe {artefact}"
