"""The warning about a task that reads a table which an earlier task has reduced to its ids."""

from dataclasses import replace
from itertools import count

import pytest

from gateway.domain.dag import Dag
from tests.builders import a_dag, a_spec
from tests.contracts.apis import IMAGE, registration
from tests.inprocess import ME
from tests.memory_engine import Script
from tests.world import NodeSetup

_numbers = count()
BOTH_HERE = {
    "guest": (ME,),
    "host": (ME,),
}
IDS_ONLY = {
    "name": "only_output_key",
    "title": "ids only",
    "type": "boolean",
    "optional": "true",
    "defaultValue": "true",
}


def provider_with_intersection():
    """Return a provider with ``Thing``, and with ``Sets``, which writes ids alone by default."""
    request = registration()
    components = request["components_description"]
    components["Sets"] = components["Thing"] | {
        "componentName": "Sets",
        "inputParam": [IDS_ONLY],
    }
    return request


NODE = NodeSetup(
    scripts={IMAGE: Script(code=None)},
    providers=[provider_with_intersection()],
)


def a_flow(text, *intersections):
    """Return a flow in which some tasks have the component ``Sets``, the others ``Thing``."""
    nodes = []
    for dag_node in a_dag(text).nodes:
        if dag_node.name in intersections:
            component = replace(dag_node.component, name="Sets")
            dag_node = replace(dag_node, component=component)
        nodes.append(dag_node)
    return Dag(tuple(nodes))


def warnings_of(node, flow, **task_params):
    """Return the planned warnings about ids alone, each with its path, and their advice."""
    spec = a_spec(
        "a",
        BOTH_HERE,
        job_id=f"job-ids-{next(_numbers)}",
        task_params=task_params,
    )
    plan = node.dry_run.plan(replace(spec, dag=flow))
    warnings = []
    for warning in plan.warnings:
        item = warning.item
        if "ids alone" in item.cause:
            warnings.append((item.about, item.cause, item.remedy))
    return warnings


def complete(task, value=False):
    """Return parameters by which a task writes all columns."""
    return {task: {"only_output_key": value}}


def warning_about(reader, origin="common", task="a"):
    """Return path, text and advice of the expected warning."""
    return (
        f"config.task_params.{origin}.{task}.only_output_key",
        f"is true, so Sets writes the ids alone: {reader} reads its table and gets no other column",
        f"set it to false, unless {reader} needs the ids alone",
    )


def test_a_reader_of_ids_alone_is_warned_once_for_all_parties(node):
    assert warnings_of(node, a_flow("a -> b", "a")) == [warning_about("b")]


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_the_warning_names_the_entry_that_sets_the_parameter(node, value):
    flow = a_flow("a -> b", "a")
    guest = {"a": {"only_output_key": value}}

    warnings = warnings_of(
        node,
        flow,
        common=complete("a"),
        guest={"0": guest},
    )

    assert warnings == [warning_about("b", origin="guest.0")]


@pytest.mark.parametrize("value", [False, "false"])
def test_a_complete_table_is_no_warning(node, value):
    flow = a_flow("a -> b", "a")
    assert warnings_of(node, flow, common=complete("a", value)) == []


def test_an_intersection_may_read_ids_alone(node):
    flow = a_flow("a -> b", "a", "b")
    assert warnings_of(node, flow) == []


def test_an_intersection_passes_ids_alone_on(node):
    flow = a_flow("a -> b -> c", "a", "b")
    warnings = warnings_of(node, flow, common=complete("b"))
    assert warnings == [warning_about("c")]


def test_a_created_job_has_the_warning_too(node):
    spec = a_spec("a", BOTH_HERE, job_id="job-ids-created")
    flow = a_flow("a -> b", "a")
    node.participant.create_job(replace(spec, dag=flow), "")
    path, text, _ = warning_about("b")
    local = node.store.local_jobs.get(spec.job_id)
    assert f"{path}: {text}" in local.warnings
