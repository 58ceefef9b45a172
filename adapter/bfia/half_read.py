"""What is wrong with the meaning of a job's body of which some field cannot be read: it is told with that field.

Only what stands whole is looked at, so that nothing is told which follows from the unreadable field alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from adapter.bfia import translate, wire
from gateway.domain import dag as flow
from gateway.domain import parameters
from gateway.domain.problems import Problem


def faults(body: Any, model: Any) -> list[Problem]:
    """Return what else is wrong with a body that was to be a job; nothing for any other."""
    if not (isinstance(model, type) and issubclass(model, wire.CreateAll) and isinstance(body, Mapping)):
        return []
    return [*_of_flow(body.get("dag")), *_of_initiator(body.get("config", body.get("conf")))]


def _of_flow(dag: Any) -> list[Problem]:
    try:
        return flow.check(translate.dag(wire.DagBody.model_validate(dag)))
    except ValidationError:
        return []


def _of_initiator(config: Any) -> Iterator[Problem]:
    if not isinstance(config, Mapping) or not isinstance(config.get("role"), Mapping):
        return
    try:
        initiator = wire.Initiator.model_validate(config.get("initiator"))
    except ValidationError:
        return
    nodes = config["role"].get(initiator.role, [])
    if isinstance(nodes, list) and initiator.node_id not in nodes:
        yield parameters.unlisted(initiator.node_id, initiator.role)
