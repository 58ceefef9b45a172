"""Flows that no node can run."""

from typing import Any

from gateway.conformance.platforms.trial import ComponentName, task_of


def impossible_flows(component: ComponentName) -> dict[str, list[dict[str, Any]]]:
    """Return the tasks of flows that cannot be run, by their fault."""
    output = {"type": "dataset", "key": "data0"}
    first = task_of(component, "probe_1") | {"output": [output]}
    second = task_of(component, "probe_2") | {"output": [output]}
    after_second = first | {"input": [{"type": "dataset", "key": "probe_2.data0"}]}
    after_first = second | {"input": [{"type": "dataset", "key": "probe_1.data0"}]}
    after_nothing = first | {"input": [{"type": "dataset", "key": "nobody.data0"}]}
    return {
        "a cycle": [after_second, after_first],
        "two tasks of one name": [first, first],
        "an input of an unknown task": [after_nothing],
        "no task": [],
    }
