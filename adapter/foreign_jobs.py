"""Recognises jobs that were written for another platform, and says how to rewrite them."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from gateway.domain.problems import Problem

ROOT = "(document)"  # path of a problem with the job as a whole


class Form(Enum):
    """The form of another platform's jobs."""

    FATE_1 = auto()
    FATE_2 = auto()
    KUSCIA = auto()


_FATE_1_FIELDS = frozenset(
    {"dsl", "dsl_version", "job_dsl", "job_runtime_conf", "job_parameters", "component_parameters"}
)
_FATE_1 = (
    "is a job configuration of FATE 1.x, which only FATE Flow 1.x takes (/v1/job/submit). Here its "
    "dsl becomes dag.components, role and initiator become config.role and config.initiator with "
    "node ids as text, job_parameters become config.job_params, component_parameters become "
    "config.task_params; bfia-gateway job draft writes a first one"
)
_FATE_2 = (
    "is a DAG of FATE 2.x, which only FATE-Flow takes (/v2/job/submit). Here its tasks become "
    "dag.components, its parties become config.role, the parameters of its tasks become "
    "config.task_params; bfia-gateway job draft writes a first one"
)
_KUSCIA = (
    "is a job of Kuscia's own API, which only Kuscia takes. Here its tasks become dag.components, "
    "each with the component of a registered provider, and its parties become config.role; "
    "bfia-gateway job draft writes a first one"
)
_RULES: Mapping[Form, str] = {
    Form.FATE_1: _FATE_1,
    Form.FATE_2: _FATE_2,
    Form.KUSCIA: _KUSCIA,
}


def problem_of_foreign_job(body: Any) -> Problem | None:
    """Return a problem that names the platform of a foreign job; None for any other body."""
    form = form_of(body)
    if form is None:
        return None
    return Problem(ROOT, _RULES[form])


def form_of(body: Any) -> Form | None:
    """Recognise a foreign job by fields that only its platform has; None for any other body."""
    if not isinstance(body, Mapping):
        return None
    dag = body.get("dag")
    if _has(dag, "components"):  # a job of the standard
        return None
    if "dag_schema" in body or _has(dag, "tasks"):
        return Form.FATE_2
    has_fate_1_fields = not _FATE_1_FIELDS.isdisjoint(body)
    if has_fate_1_fields and dag is None:
        return Form.FATE_1
    if body.get("kind") == "KusciaJob" or _has_app_images(body.get("tasks")):
        return Form.KUSCIA
    return None


def _has(value: Any, field: str) -> bool:
    """True for an object with this field."""
    return isinstance(value, Mapping) and field in value


def _has_app_images(tasks: Any) -> bool:
    """True for a list of tasks of which at least one has an image as in Kuscia's jobs."""
    if not isinstance(tasks, list):
        return False
    return any(_has(task, "app_image") for task in tasks)
