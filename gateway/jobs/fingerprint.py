"""The fingerprint of a submitted job, by which a repeated submission is recognised."""

import dataclasses
import hashlib
import json
from typing import Any

from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid, TooLarge

# Largest size of a job in characters; 1000 tasks of 20 parameters each have about a million.
MAX_JOB_SIZE = 8_000_000


def digest(spec: JobSpec) -> str:
    """Return the fingerprint of a job as submitted. Raises `Invalid` if the job is too large.

    It leaves out fields that may differ between two submissions of the same job, ``trace_id`` and
    ``bundles``, and ``unknown_fields``, which no other node receives. It also leaves out an empty
    ``old_job_id``, so that digests of earlier releases stay valid.
    """
    fields = {**_public_fields(spec), "trace_id": ""}
    del fields["unknown_fields"]
    del fields["bundles"]
    if not spec.old_job_id:
        del fields["old_job_id"]
    text = json.dumps(
        fields,
        default=_public_fields,
        sort_keys=True,
        ensure_ascii=False,
    )
    size = len(text) + len(json.dumps(spec.bundles))
    if size > MAX_JOB_SIZE:
        rule = f"must not have more than {MAX_JOB_SIZE} characters with its signed bundles"
        raise Invalid(
            [Problem("(document)", rule, size)],
            reason=TooLarge.reason,
        )
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _public_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass for JSON, without its caches.

    Those are cached properties, and fields whose names begin with an underscore.
    """
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if not name.startswith("_")}
