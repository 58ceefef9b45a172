"""Describes a task for FATE's ``component execute --config``. Needs nothing but Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .task import Task


def task_config(
    task: Task,
    scratch: Path,
    schemas: Mapping[str, Any],
    models: Mapping[str, Path],
    port: int,
) -> dict[str, Any]:
    """Return FATE's description of the task.

    - ``schemas``: those of the tables, which are in ``scratch`` as FATE's
    - ``models``: the files of the models
    - ``port``: the relay's on loopback
    """
    return {
        "task_id": task.id,
        "party_task_id": party_task_id(task),
        "task_name": task.component.name,
        "component": task.component.name,
        "role": task.own.role,
        "party_id": task.own.node,
        "stage": task.stage.name,
        "parameters": task.parameters,
        "input_artifacts": {
            **_input_tables(task, scratch, schemas),
            **_input_models(task, models),
        },
        "output_artifacts": _output_artifacts(task, scratch),
        "conf": {
            "device": {"type": "CPU", "metadata": {}},
            "computing": {
                "type": "standalone",
                "metadata": {"computing_id": "fate", "options": {"data_dir": str(scratch)}},
            },
            "federation": {
                "type": "osx",
                "metadata": {
                    "federation_id": task.session,
                    "parties": {
                        "local": task.own.in_fate(),
                        "parties": [party.in_fate() for party in task.parties],
                    },
                    "osx_config": {"host": "127.0.0.1", "port": port},
                },
            },
            "logger": {"config": LOGGING},
        },
    }


def _input_tables(
    task: Task,
    scratch: Path,
    schemas: Mapping[str, Any],
) -> dict[str, Any]:
    """Return FATE's names of the tables that the task reads, with these. An arbiter has none."""
    artifacts: dict[str, Any] = {}
    for name, schema in schemas.items():
        metadata = {"metadata": {"schema": schema}, "source": _source(task, name)}
        table = {
            "uri": table_uri(task, scratch, name),
            "metadata": metadata,
            "type_name": "dataframe",
        }
        if task.stage.has_many_tables:
            artifacts[task.stage.tables[name]] = [table]
        else:
            artifacts[task.stage.tables[name]] = table
    return artifacts


def _input_models(task: Task, models: Mapping[str, Path]) -> dict[str, Any]:
    """Return FATE's names of the models that the task reads, with these."""
    artifacts = {}
    for name, file in models.items():
        artifacts[task.stage.models[name]] = {
            "uri": f"file://{file}",
            "metadata": {"metadata": {}, "source": _source(task, name)},
            "type_name": "json_model",
        }
    return artifacts


def _source(task: Task, name: str) -> dict[str, str]:
    """Return where an input comes from, in FATE's terms."""
    return {
        "task_id": task.id,
        "party_task_id": task.id,
        "task_name": name,
        "component": task.component.name,
        "output_artifact_key": name,
    }


def _output_artifacts(task: Task, scratch: Path) -> dict[str, Any]:
    """Return FATE's names of the outputs, with the places where FATE is to write them."""
    stage = task.stage
    artifacts = {"metric": {"uri": f"file://{scratch}/report", "type_name": "json_metric"}}
    if stage.data_output:
        name = stage.data_output
        if stage.writes_many_tables:
            name += "_{index}"
        artifacts[stage.data_output] = {
            "uri": table_uri(task, scratch, name),
            "type_name": "dataframe",
        }
    if stage.model_output:
        artifacts[stage.model_output] = {
            "uri": f"file://{scratch}/model",
            "type_name": "json_model",
        }
    return artifacts


def table_uri(task: Task, scratch: Path, name: str) -> str:
    """Return the address of a table of FATE's."""
    return f"standalone://{scratch}/{party_task_id(task)}/{name}"


def party_task_id(task: Task) -> str:
    """Return FATE's id of a party's part of the task."""
    return f"{task.id}_{task.self_role}"


# FATE would otherwise log values of its tables, for debugging.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "stream": "ext://sys.stdout",
        }
    },
    "root": {"level": "INFO", "handlers": ["console"]},
}
