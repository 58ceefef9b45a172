"""Jobs that would rather be refused than warned of: ``strict: true`` in ``job_params.common``, an extension."""

from collections.abc import Mapping, Sequence

from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec

KEY = "strict"
_WORDS = {True: True, False: False, "true": True, "false": False}


def check(spec: JobSpec, path: str) -> list[Problem]:
    """Find what is wrong with the setting."""
    value = _value(spec)
    known = value is None or (isinstance(value, (bool, str)) and value in _WORDS)
    return [] if known else [Problem(f"{path}.{KEY}", "must be true or false", value)]


def applied(
    spec: JobSpec, problems: Sequence[Problem], warnings: Sequence[Problem]
) -> tuple[list[Problem], list[Problem]]:
    """Return what refuses the job, and what is only warned of: nothing, where the job is strict."""
    value = _value(spec)
    if isinstance(value, (bool, str)) and _WORDS.get(value, False):
        return [*problems, *warnings], []
    return list(problems), list(warnings)


def _value(spec: JobSpec) -> object:
    common = spec.job_params.get("common")
    return common.get(KEY) if isinstance(common, Mapping) else None
