"""Unknown fields of a submitted job, and what else is wrong with a body of which some field is invalid."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from pydantic import AliasChoices, BaseModel, ValidationError

from adapter.bfia import translate, wire
from gateway.domain import dag as flow
from gateway.domain import validation
from gateway.domain.problems import Problem
from gateway.domain.spec import UnknownField
from gateway.errors import join, near

_RULE = "is not a field that this gateway knows; it is ignored"
_GIVEN = "is ignored: the node chooses the id of a submitted job"
_LONGEST = 100
MOST_UNKNOWN = 50


def unknown_fields(body: wire.CreateAll) -> tuple[UnknownField, ...]:
    """Return the first `MOST_UNKNOWN` of them, in the order of the body's parts."""
    return tuple(islice(_found(body, ()), MOST_UNKNOWN))


def _found(model: BaseModel, at: tuple[str | int, ...]) -> Iterator[UnknownField]:
    known = _spellings(type(model))
    for key, value in (model.model_extra or {}).items():
        if key in known:
            continue  # the other spelling of a key stands beside it
        rule = _GIVEN if key == "job_id" and not at else _RULE
        meant = near(key, known, 0.7) if rule is _RULE else ""
        yield UnknownField(join((*at, key[:_LONGEST])), rule, _kind(value), meant)
    for name in type(model).model_fields:
        inner = getattr(model, name)
        if isinstance(inner, BaseModel):
            yield from _found(inner, (*at, name))
        elif isinstance(inner, list):
            for i, one in enumerate(inner):
                if isinstance(one, BaseModel):
                    yield from _found(one, (*at, name, i))


def _spellings(kind: type[BaseModel]) -> dict[str, None]:
    found: dict[str, None] = {}
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        known = [str(one) for one in alias.choices] if isinstance(alias, AliasChoices) else [name]
        found |= dict.fromkeys((name, *known))
    return found


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else str(value)[:_LONGEST]


def faults(body: Any, model: Any) -> list[Problem]:
    """Return what else is wrong with the flow and the initiator of a job's body of which some field is invalid."""
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
        yield validation.unlisted(initiator.node_id, initiator.role)
