"""The node's defaults for settings that a job submitted here leaves out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.domain.spec import JobSpec


@dataclass(frozen=True)
class CompletedJob:
    """A job with the node's defaults filled in."""

    spec: JobSpec
    filled_in: Mapping[str, Any]  # the settings that the job left out, with the node's values


@dataclass(frozen=True)
class JobDefaults:
    """The node's defaults for settings in ``job_params.common``."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def complete(self, spec: JobSpec) -> CompletedJob:
        """Return a job with the defaults of the settings that it leaves out, or sets to null.

        The settings become part of the job, so that every node enforces the same ones.
        """
        missing = {
            name: value for name, value in self.values.items() if spec.common.get(name) is None
        }
        is_complete = not missing
        has_other_form = not isinstance(spec.job_params.get("common", {}), Mapping)
        if is_complete or has_other_form:  # the checks of the submission refuse another form
            return CompletedJob(spec, {})
        common = {**spec.common, **missing}
        completed = replace(spec, job_params={**spec.job_params, "common": common})
        return CompletedJob(completed, missing)
