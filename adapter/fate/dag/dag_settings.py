"""The settings of a job description: of the job, of its tasks, of single parties."""

from collections.abc import Mapping
from typing import Any

from adapter.fate.dag.dag_data import predicting
from adapter.fate.dag.dag_work import READER, ROOT, Work, named
from gateway.plain_words import near

KEPT: Mapping[str, str] = {
    name: name
    for name in ("sync_type", "priority", "auto_retries", "auto_retry_delay", "task_parallelism", "engine")
}
"""settings of a job that mean the same here; ``engine`` so that a foreign one is refused by its name"""

STAGES = ("train", "predict", "default", "cross_validation")
"""FATE's; only predict means anything here. A slip of the pen would train where somebody wanted to predict"""
UNUSED = ("cores", "computing_partitions", "federated_status_collect_type", "engine_run", "launcher_name")
"""settings of a job or a task that steer FATE's own engines; told as warnings"""


def job_params_of(work: Work) -> dict[str, Any]:
    """Return the settings of the job, for all and for single parties, and take up their parameters of tasks."""
    conf = work.dag.conf
    said = conf.model_extra or {}
    work.common.update({ours: said[theirs] for theirs, ours in KEPT.items() if said.get(theirs) is not None})
    if conf.task.timeout is not None:
        work.common["task_timeout"] = conf.task.timeout
    if conf.inheritance and conf.inheritance.task_list:
        work.common["inherit"] = conf.inheritance.task_list
    if conf.model_warehouse:
        predicting(work, conf.model_warehouse.model_id, conf.model_warehouse.model_version, "conf.model_warehouse")
    else:
        names = {"model_id": conf.model_id, "model_version": conf.model_version}
        for key, value in names.items():
            if value:
                work.common.setdefault(key, value)
    _stage(work, "stage", work.dag.stage)
    if work.dag.stage == "predict":
        work.common.setdefault("job_type", "predict")
    _unused(work, said, "conf")
    _unused(work, conf.task.model_extra or {}, "conf.task")
    params: dict[str, Any] = {"common": work.common}
    for site, own in work.dag.party_tasks.items():
        for party in named(work, own.parties, f"party_tasks.{site}.parties"):
            settings = {key: value for key, value in own.conf.items() if value is not None}
            if settings:
                entry = params.setdefault(party.role, {}).setdefault(str(party.index), {})
                entry.update(settings)
            for task, given in own.tasks.items():
                if task not in work.dag.tasks:
                    work.wrong(f"party_tasks.{site}.tasks.{task}", "must be a task of the job", task)
                elif work.dag.tasks[task].component_ref != READER and given.parameters:
                    work.own(party, task).update(given.parameters)
    return params


def settings_of_task(work: Work, name: str) -> None:
    """Take over a task's timeout (seconds) and retries; note its other settings as unused."""
    conf = work.dag.tasks[name].conf
    own = {k: conf[k] for k in ("timeout", "auto_retries", "auto_retry_delay") if conf.get(k) is not None}
    if own:
        work.common.setdefault("tasks", {})[name] = own
    _unused(work, conf, f"tasks.{name}.conf")
    _stage(work, f"tasks.{name}.stage", work.dag.tasks[name].stage)


def _stage(work: Work, at: str, said: str) -> None:
    if said and said not in STAGES:
        meant = near(said, STAGES)
        hint = f": did you mean {meant}?" if meant else ""
        work.wrong(at, f"must be one of {', '.join(STAGES)}, or absent{hint}", said)


def _unused(work: Work, said: Mapping[str, Any], at: str) -> None:
    for key in UNUSED:
        if said.get(key) not in (None, {}, "", "default"):
            text = (
                "steers FATE's own engines and is not used here; amounts are set by party_tasks.….conf.resources"
            )
            work.warnings.append(f"{ROOT}.{at}.{key}: {text}")
