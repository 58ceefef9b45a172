"""The older job configuration of FATE 1.x, ``dsl`` and ``runtime_conf`` of version 2 -> FATE 2's description.

Only its form is translated. What it names of FATE 1's own components and engines has to be registered here under
the same name, as for any job.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.domain.problems import Problem
from gateway.errors import Invalid

WARNING = (
    "dsl and runtime_conf are the form of FATE 1: the job was translated; FATE 2's own form (parties, tasks, "
    "party_tasks) says the same"
)
_DSL, _CONF = ("dsl", "job_dsl"), ("runtime_conf", "job_runtime_conf")
_GROUP = {"data": "data", "model": "model", "isometric_model": "model", "cache": "data"}
"""kinds of inputs there -> groups here"""
_COMMON = ("auto_retries", "auto_retry_delay", "priority", "task_parallelism", "sync_type")
_READERS = ("Reader", "reader")


def is_old(document: Mapping[str, Any]) -> bool:
    """Tell whether a document has the older form."""
    return any(key in document for key in (*_DSL, *_CONF))


def modern(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same job in FATE 2's form. Raises `Invalid` with every problem."""
    problems: list[Problem] = []

    def part(names: tuple[str, ...], at: Mapping[str, Any] = document, path: str = "") -> Mapping[str, Any]:
        value = next((at[name] for name in names if at.get(name) is not None), None)
        if isinstance(value, Mapping):
            return value
        problems.append(Problem(f"{path}{names[0]}", "must be an object", value))
        return {}

    dsl, conf = part(_DSL), part(_CONF)
    if conf and str(conf.get("dsl_version", "2")) != "2":
        problems.append(Problem("runtime_conf.dsl_version", "must be 2", conf.get("dsl_version")))
    components = part(("components",), dsl, "dsl.") if dsl else {}
    roles = part(("role",), conf, "runtime_conf.") if conf else {}
    tasks = {name: _task(name, entry, problems) for name, entry in components.items()}
    parameters = _mapping(conf.get("component_parameters"))
    for name, given in _mapping(parameters.get("common")).items():
        if name in tasks:
            tasks[name]["parameters"] = _mapping(given)
        else:
            problems.append(
                Problem(f"runtime_conf.component_parameters.common.{name}", "names no component", name)
            )
    if problems:
        raise Invalid(problems)
    settings = _mapping(conf.get("job_parameters"))
    dag: dict[str, Any] = {
        "parties": [{"role": role, "party_id": ids} for role, ids in roles.items()],
        "tasks": tasks,
        "party_tasks": dict(_party_tasks(roles, _mapping(parameters.get("role")), _mapping(settings.get("role")))),
    }
    dag["conf"], dag["stage"] = _conf(_mapping(settings.get("common")), _mapping(conf.get("initiator")))
    return {"dag": dag, "schema_version": "2.0.0", "kind": "fate"}


def _task(name: str, entry: Any, problems: list[Problem]) -> dict[str, Any]:
    at = f"dsl.components.{name}"
    if not isinstance(entry, Mapping) or not isinstance(entry.get("module"), str):
        problems.append(Problem(f"{at}.module", "must name a component", entry))
        return {}
    module = "reader" if entry["module"] in _READERS else entry["module"]
    inputs: dict[str, Any] = {}
    for kind, wanted in _mapping(entry.get("input")).items():
        if kind not in _GROUP:
            problems.append(Problem(f"{at}.input.{kind}", f"must be one of {', '.join(_GROUP)}", kind))
            continue
        for key, refs in (wanted if isinstance(wanted, Mapping) else {kind: wanted}).items():
            channels = [_channel(ref, f"{at}.input.{kind}.{key}", problems) for ref in _list(refs)]
            inputs.setdefault(_GROUP[kind], {})[key] = {"task_output_artifact": channels}
    outputs: dict[str, Any] = {}
    for kind, keys in _mapping(entry.get("output")).items():
        outputs[_GROUP.get(kind, "metric")] = {str(key): {} for key in _list(keys)}
    task: dict[str, Any] = {"component_ref": module, "inputs": inputs, "outputs": outputs}
    if isinstance(entry.get("provider"), str):
        task["conf"] = {"provider": entry["provider"]}
    return task


def _channel(ref: Any, at: str, problems: list[Problem]) -> dict[str, str]:
    task, dot, key = str(ref).partition(".")
    if not isinstance(ref, str) or not dot or not task or not key:
        problems.append(Problem(at, "must read <component>.<output>", ref))
    return {"producer_task": task, "output_artifact_key": key}


def _party_tasks(
    roles: Mapping[str, Any], parameters: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what single parties get: entries by role and index there, by parties here."""
    for role, ids in roles.items():
        for index, node in enumerate(_list(ids)):
            tasks: dict[str, Any] = {}
            for name, given in _of(parameters, role, index).items():
                values = _mapping(given)
                table = values.get("table")
                if isinstance(table, Mapping):  # a reader's dataset
                    values = {**values, **table}
                    del values["table"]
                tasks[name] = {"parameters": values}
            conf = _of(settings, role, index)
            if tasks or conf:
                parties = [{"role": role, "party_id": [node]}]
                yield f"{role}_{index}_{node}", {"parties": parties, "conf": conf, "tasks": tasks}


def _of(entries: Mapping[str, Any], role: str, index: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, entry in _mapping(entries.get(role)).items():
        if key == "all" or str(index) in key.split("|"):
            found |= _mapping(entry)
    return found


def _conf(common: Mapping[str, Any], initiator: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    conf: dict[str, Any] = {key: common[key] for key in _COMMON if common.get(key) is not None}
    if "backend" in common:
        conf["engine"] = {"name": common["backend"]}
    names = {key: str(common[key]) for key in ("model_id", "model_version") if common.get(key) is not None}
    predicts = common.get("job_type") == "predict"
    if predicts and len(names) == 2:
        conf["model_warehouse"] = names
    else:
        conf |= names
    if initiator:
        conf["extra"] = {"initiator": dict(initiator)}
    return conf, "predict" if predicts else "train"


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
