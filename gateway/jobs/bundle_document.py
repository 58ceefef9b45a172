"""The document about a job's bundle: with it the bundle can be verified years later.

That needs no gateway and no node.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm

from gateway.domain.run import LocalJob, Run
from gateway.identity.statements import canonical
from gateway.jobs.bundle_statement import (
    Statement,
    accepted_statement,
    different_parts,
    open_statement,
    parts,
)
from gateway.jobs.secret_masking import MASK

FILE = "bundle.json"  # name of the file with the `document` in an archive


@dataclass(frozen=True)
class Finding:
    """The result of one comparison."""

    check: str  # what was compared with the statement: the signature, a part of the job, or a run
    good: bool | None  # whether it agrees; None if undecidable, or only informative
    text: str


def document(local: LocalJob) -> dict[str, Any]:
    """Return the agreed bundle, the job's parts and the images that ran here, for `verify`."""
    content: dict[str, Any] = {
        "job_id": local.id,
        "node": local.node,
        "bundle": None,
        "public_key": "",
        "images": {},
    }
    open_tasks: Sequence[str] = ()
    agreement = local.agreement
    if agreement is not None:
        open_tasks = accepted_statement(agreement.bundle).open_tasks
        content["bundle"] = agreement.bundle
        content["public_key"] = agreement.key
        content["images"] = dict(agreement.images)
    content["parts"] = parts(local.spec, local.node, open_tasks)
    content["runs"] = [_run_entry(run) for run in local.runs if run.software.digest]
    return content


def _run_entry(run: Run) -> dict[str, str]:
    """Return the digest of the image that a run was started from, with the run's component."""
    return {
        "run": f"{run.party.label} of {run.task_name}, attempt {run.attempt + 1}",
        "component": str(run.software.component),
        "digest": run.software.digest,
    }


def verify(record: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the parts of a `document`, which may come from an archive, with its statement.

    Yields a finding for the signature, each part of the job and each run. If the signature is
    missing or not valid, its finding is the only one.
    """
    if not record.get("bundle"):
        yield Finding("signature", False, "the job came without a signed bundle")
        return
    try:
        statement, _ = open_statement(record["bundle"], [record["public_key"]])
    except (ValueError, UnsupportedAlgorithm) as error:
        yield Finding("signature", False, str(error))
        return
    at = datetime.fromtimestamp(statement.created, UTC)
    key = record["bundle"]["signatures"][0]["keyid"]
    yield Finding(
        "signature",
        True,
        f"{statement.signer} signed it on {at:%Y-%m-%d %H:%M} UTC with the key {key}",
    )
    for name, stated in (("job_id", statement.job_id), ("node", statement.node)):
        yield Finding(name, stated == record[name], f"{stated} was signed")
    yield from _part_findings(statement, record["parts"])
    for run in record["runs"]:
        yield _run_finding(run, statement, record["images"])


def _part_findings(
    statement: Statement,
    job_parts: Mapping[str, Any],
) -> Iterator[Finding]:
    """Yield whether each part of the job is as signed; masked values cannot be compared."""
    different = different_parts(statement, job_parts)
    for name in dict.fromkeys((*statement.parts, *job_parts)):
        if name not in different:
            yield Finding(name, True, "as signed")
        elif MASK in canonical(job_parts.get(name)).decode():
            yield Finding(name, None, "has masked values, and cannot be compared")
        else:
            yield Finding(name, False, "differs from what was signed")


def _run_finding(
    run: Mapping[str, str],
    statement: Statement,
    approved_here: Mapping[str, str],
) -> Finding:
    """Compare the image of a run with those approved by the signer and by the document's node.

    ``approved_here`` are the images that the document's node approved. The finding is only
    informative if the document's node alone approved the image, or if neither has approved any.
    """
    component = run["component"]
    digest = run["digest"]
    signed = statement.images.get(component, "")
    approved = approved_here.get(component, "")
    text = (
        f"{component}: ran {digest}, signed {signed or 'none'}, approved here {approved or 'none'}"
    )
    good: bool | None = False
    nothing_to_compare = not (signed or approved)
    if digest == signed:
        good = True
    elif digest == approved or nothing_to_compare:
        good = None
    return Finding(run["run"], good, text)
