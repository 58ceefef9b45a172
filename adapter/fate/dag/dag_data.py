"""The datasets and models that a job description names, as this gateway's settings and parameters say them."""

from typing import Any

from adapter.fate.dag import wire
from adapter.fate.dag.dag_work import Work, named
from gateway.domain.spec import Party


def from_reader(work: Work, name: str, channel: wire.Channel, at: str) -> None:
    """Give a task the datasets that a reader names, each party its own."""
    reader = work.dag.tasks[channel.producer_task]
    for party in named(work, channel.parties or reader.parties, f"{at}.parties"):
        params = {**reader.parameters, **party_parameters(work, party, channel.producer_task)}
        if params.get("namespace") and params.get("name"):
            _give(work, name, party, f"{params['namespace']}#{params['name']}", at)
        elif party.role != "arbiter":
            rule = f"must have namespace and name for {party.label}: the dataset that it reads"
            work.wrong(f"tasks.{channel.producer_task}.parameters", rule, params)


def from_warehouse(work: Work, name: str, channel: wire.Channel, at: str) -> None:
    """Give each party of a task the dataset that an input names; all of them where it names no party."""
    dataset = channel.dataset_id or (
        f"{channel.namespace}#{channel.name}" if channel.namespace and channel.name else ""
    )
    if not dataset:
        work.wrong(at, "must have dataset_id, or namespace and name")
        return
    for party in named(work, channel.parties or work.dag.tasks[name].parties, f"{at}.parties"):
        _give(work, name, party, dataset, at)


def _give(work: Work, name: str, party: Party, dataset: str, at: str) -> None:
    entry = work.own(party, name)
    if entry.setdefault("dataset_id", dataset) != dataset:
        rule = f"must be the only dataset of {party.label}: a task takes one of each party"
        work.wrong(at, rule, [entry["dataset_id"], dataset])


def from_model_warehouse(work: Work, channel: wire.Channel, at: str) -> None:
    """Have the job predict with the model that an input names, or else the job's settings."""
    warehouse = work.dag.conf.model_warehouse
    model_id = channel.model_id or (warehouse.model_id if warehouse else "")
    version = channel.model_version or (warehouse.model_version if warehouse else "")
    if not model_id or not version:
        work.wrong(at, "must have model_id and model_version, here or in conf.model_warehouse")
        return
    predicting(work, model_id, version, at)


def predicting(work: Work, model_id: str, version: str, at: str) -> None:
    """Have the job predict with a model; a job uses one, so another one named elsewhere is a problem."""
    wanted = {"job_type": "predict", "model_id": model_id, "model_version": version}
    known = {key: work.common.setdefault(key, value) for key, value in wanted.items()}
    if known != wanted:
        work.wrong(at, "must be the model that the rest of the job uses", f"{model_id} {version}")


def party_parameters(work: Work, party: Party, task: str) -> dict[str, Any]:
    """Return what the description says of a task for one party alone; the last to name a parameter wins."""
    found: dict[str, Any] = {}
    for site, own in work.dag.party_tasks.items():
        if task in own.tasks and party in named(work, own.parties, f"party_tasks.{site}.parties"):
            found |= own.tasks[task].parameters
    return found
