"""Recognises jobs that were written for another platform, and says how to rewrite them."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from gateway.domain.problems import Problem

ROOT = "(document)"  # path of a problem with the job as a whole


class ForeignForm(Enum):
    """The form in which another platform writes its jobs."""

    FATE_1 = auto()
    FATE_2 = auto()
    KUSCIA = auto()


# Fields of a job configuration of FATE 1.x
_FATE_1_FIELDS = frozenset(
    {"dsl", "dsl_version", "job_dsl", "job_runtime_conf", "job_parameters", "component_parameters"}
)
_FATE_1_RULE = (
    "is a job configuration of FATE 1.x, which only FATE Flow 1.x takes (/v1/job/submit). Here its "
    "dsl becomes dag.components, role and initiator become config.role and config.initiator with "
    "node ids as text, job_parameters become config.job_params, component_parameters become "
    "config.task_params; bfia-gateway job draft writes a first one"
)
_FATE_2_RULE = (
    "is a DAG of FATE 2.x, which only FATE-Flow takes (/v2/job/submit). Here its tasks become "
    "dag.components, its parties become config.role, the parameters of its tasks become "
    "config.task_params; bfia-gateway job draft writes a first one"
)
_KUSCIA_RULE = (
    "is a job of Kuscia's own API, which only Kuscia takes. Here its tasks become dag.components, "
    "each with the component of a registered provider, and its parties become config.role; "
    "bfia-gateway job draft writes a first one"
)
_RULES: Mapping[ForeignForm, str] = {
    ForeignForm.FATE_1: _FATE_1_RULE,
    ForeignForm.FATE_2: _FATE_2_RULE,
    ForeignForm.KUSCIA: _KUSCIA_RULE,
}


def problem_of_foreign_job(body: Any) -> Problem | None:
    """Return the problem of a job in the form of another platform; None for any other body.

    ``body`` is the JSON value of a request that submits a job. The problem's rule names the
    platform, and says how the job is rewritten.
    """
    form = _form_of(body)
    if form is None:
        return None
    return Problem(ROOT, _RULES[form])


def _form_of(body: Any) -> ForeignForm | None:
    """Return the form of a foreign job, recognised by fields that only its platform has.

    ``body`` is the JSON value of a request that submits a job. Returns None for a job of the
    standard, and for a body in an unknown form.
    """
    match body:
        case {"dag": {"components": _}}:  # a job of the standard
            return None
        case {"dag_schema": _} | {"dag": {"tasks": _}}:
            return ForeignForm.FATE_2
        case Mapping() if _has_fate_1_fields(body):
            return ForeignForm.FATE_1
        case {"kind": "KusciaJob"}:
            return ForeignForm.KUSCIA
        case {"tasks": [*tasks]} if any(map(_has_app_image, tasks)):
            return ForeignForm.KUSCIA
    return None


def _has_fate_1_fields(body: Mapping[str, Any]) -> bool:
    """True for a body with a field of FATE 1.x and without a DAG.

    FATE 1.x describes the tasks in ``dsl``; some of its field names also occur in other jobs.
    """
    return body.get("dag") is None and not _FATE_1_FIELDS.isdisjoint(body)


def _has_app_image(task: Any) -> bool:
    """True for a task with the name of an image, ``app_image``, as in Kuscia's jobs.

    False for a value that is not an object: ``tasks`` may hold anything in an unchecked body.
    """
    return isinstance(task, Mapping) and "app_image" in task
