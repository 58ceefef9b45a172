"""Submitted jobs, right and wrong, and the paths of their fields."""

from dataclasses import replace
from typing import Any

from gateway.domain.dag import Dag, DagInput, DagNode
from gateway.domain.spec import JobSpec, UnknownField
from tests.builders import a_node, a_spec

GUEST_AND_THREE_HOSTS = {
    "guest": ("n1",),
    "host": ("n2", "n3", "n4"),
}

# Paths.
COMMON = "config.job_params.common."
TASK_PARAMETERS = "config.task_params."
FLOW = "dag.components"

PREDICTION = {
    "job_type": "predict",
    "model_id": "m",
    "model_version": "v",
}
UNKNOWN_FIELD = UnknownField("config.job_parms", "is not read", "an object", "job_params")


def spec_of_nodes(*nodes: DagNode) -> JobSpec:
    """Return a job whose flow has these components."""
    return a_spec(Dag(nodes))


def spec_needing_output(needed: DagInput, *outputs: str) -> JobSpec:
    """Return a job in which b needs an output of a, which has these outputs or else ``out``."""
    first = a_node("a", outputs=outputs or ("out",))
    second = replace(
        a_node("b"),
        inputs=(needed,),
    )
    return spec_of_nodes(first, second)


def spec_with_common(**common: Any) -> JobSpec:
    """Return a job ``a; b; c`` with these common settings."""
    return a_spec(
        "a; b; c",
        GUEST_AND_THREE_HOSTS,
        job_params={"common": common},
    )


def spec_with_role_params(**params: Any) -> JobSpec:
    """Return a job with settings for the first party of these roles."""
    return a_spec(job_params={role: {"0": entry} for role, entry in params.items()})


def spec_with_old_job(old_job_id: str = "job-old", **common: Any) -> JobSpec:
    """Return a job ``a -> b`` that may inherit from an old one."""
    return a_spec(
        "a -> b",
        old_job_id=old_job_id,
        job_params={"common": common},
    )


def roles_of_every_task(_task: DagNode) -> tuple[str, ...]:
    """Return the roles that every component has."""
    return ("guest", "host", "arbiter")
