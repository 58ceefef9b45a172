"""Jobs written for another platform: whose form they have, and what to do with them."""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any

from gateway.domain.problems import Problem

ROOT = "(document)"


class Form(Enum):
    """A form of jobs that users of this field know."""

    STANDARD = auto()
    FATE_1 = auto()
    FATE_2 = auto()
    KUSCIA = auto()


_FATE_1_FIELDS = frozenset(
    {"dsl", "dsl_version", "job_dsl", "job_runtime_conf", "job_parameters", "component_parameters"}
)
_FATE_1 = (
    "is a job configuration of FATE 1.x, which only FATE Flow 1.x takes (/v1/job/submit). Here its dsl becomes "
    "dag.components, role and initiator become config.role and config.initiator with node ids as text, "
    "job_parameters become config.job_params, component_parameters become config.task_params; "
    "bfia-gateway job draft writes a first one"
)
_KUSCIA = (
    "is a job of Kuscia's own API, which only Kuscia takes. Here its tasks become dag.components, each with the "
    "component of a registered provider, and its parties become config.role; "
    "bfia-gateway job draft writes a first one"
)
_FOR_CREATE_ALL: Mapping[Form, str] = {
    Form.FATE_1: _FATE_1,
    Form.FATE_2: "is a DAG of FATE 2.x: post it to /v2/job/submit, as dag_schema (setting fate.enabled)",
    Form.KUSCIA: _KUSCIA,
}
_FOR_FATES_TOOLS: Mapping[Form, str] = {
    Form.STANDARD: "is a job in the form of BFIA: post it to /v1/platform/schedule/job/create_all",
    Form.FATE_1: _FATE_1,
    Form.FATE_2: "is a DAG without dag_schema around it",
    Form.KUSCIA: _KUSCIA,
}


def not_for_create_all(body: Any) -> Problem | None:
    """Say whose form a job has that is not the standard's; None for any other body."""
    return _problem(body, _FOR_CREATE_ALL)


def not_for_fates_tools(body: Any) -> Problem | None:
    """Say whose form a job has that is no ``{"dag_schema": …}``; None for any other body."""
    if isinstance(body, Mapping) and "dag_schema" in body:
        return None
    return _problem(body, _FOR_FATES_TOOLS)


def _problem(body: Any, rules: Mapping[Form, str]) -> Problem | None:
    form = form_of(body)
    rule = rules.get(form) if form else None
    return Problem(ROOT, rule) if rule else None


def form_of(body: Any) -> Form | None:
    """Recognise a job by the fields that only one platform's jobs have; None where there are none."""
    if not isinstance(body, Mapping):
        return None
    dag = body.get("dag")
    if isinstance(dag, Mapping) and "components" in dag:
        return Form.STANDARD
    if "dag_schema" in body or (isinstance(dag, Mapping) and "tasks" in dag):
        return Form.FATE_2
    if dag is None and not _FATE_1_FIELDS.isdisjoint(body):
        return Form.FATE_1
    if body.get("kind") == "KusciaJob" or _has_app_images(body.get("tasks")):
        return Form.KUSCIA
    return None


def _has_app_images(tasks: Any) -> bool:
    entries: Iterable[Any] = tasks if isinstance(tasks, list) else ()
    return any(isinstance(entry, Mapping) and "app_image" in entry for entry in entries)
