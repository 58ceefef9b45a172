"""Finds unknown fields in a submitted job, and problems that its body model does not check."""

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

MOST_UNKNOWN = 50  # unknown fields of a submitted job that are reported
_LONGEST_KEY = 100  # characters of a field's name, or of its value, in a report
_SIMILARITY = 0.7  # a known name is suggested from this similarity on (0 to 1)
_UNKNOWN_RULE = "is not a field that this gateway knows; it is ignored"
_JOB_ID_RULE = (
    "is ignored: the node chooses the id of a submitted job; to submit it once although you repeat "
    "the request, send the header Idempotency-Key"
)


def unknown_fields(body: wire.CreateAll) -> tuple[UnknownField, ...]:
    """Return the first `MOST_UNKNOWN` unknown fields, in the order of the body."""
    return tuple(islice(_unknown_fields(body, ()), MOST_UNKNOWN))


def _unknown_fields(
    model: BaseModel,
    path: tuple[str | int, ...],
) -> Iterator[UnknownField]:
    """Yield the unknown fields of an object and of the objects inside it.

    ``path``: the names and list indices that lead from the body to the object.
    """
    spellings = _spellings(type(model))
    for key, value in (model.model_extra or {}).items():
        # A known spelling among the unknown keys: the body has the field in another spelling, too.
        if key not in spellings:
            yield _unknown_field(key, value, path, spellings)
    for name in type(model).model_fields:
        yield from _unknown_fields_inside(getattr(model, name), (*path, name))


def _unknown_field(
    key: str, value: Any, path: tuple[str | int, ...], spellings: Mapping[str, None]
) -> UnknownField:
    """Return an unknown field, with the most similar of the known ``spellings`` if one is similar.

    ``path`` leads to the object that has the field.
    """
    place = join((*path, key[:_LONGEST_KEY]))
    is_job_id = key == "job_id" and not path
    if is_job_id:
        return UnknownField(place, _JOB_ID_RULE, _value_text(value), "")
    similar = near(key, spellings, _SIMILARITY)
    return UnknownField(place, _UNKNOWN_RULE, _value_text(value), similar)


def _unknown_fields_inside(
    value: Any,
    path: tuple[str | int, ...],
) -> Iterator[UnknownField]:
    """Yield the unknown fields inside a field's value: an object, or a list of objects.

    Other values have none; ``path`` leads to the value.
    """
    if isinstance(value, BaseModel):
        yield from _unknown_fields(value, path)
    if isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, BaseModel):
                yield from _unknown_fields(entry, (*path, index))


def _spellings(model: type[BaseModel]) -> dict[str, None]:
    """Return all spellings of a model's fields in order; the dictionary is an ordered set."""
    spellings: dict[str, None] = {}
    for name, field in model.model_fields.items():
        spellings[name] = None
        if isinstance(field.validation_alias, AliasChoices):
            for choice in field.validation_alias.choices:
                spellings[str(choice)] = None
    return spellings


def _value_text(value: Any) -> str:
    """Return a short text for a value: an object's or list's content is not repeated."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return str(value)[:_LONGEST_KEY]


def is_job(model: Any) -> bool:
    """True if an endpoint's body model is that of a job."""
    return isinstance(model, type) and issubclass(model, wire.CreateAll)


def job_problems(body: Any, model: Any) -> list[Problem]:
    """Return the problems of the flow and the initiator of a submitted job with invalid fields.

    The caller reports these problems together with the invalid fields. Empty if ``model``, the body
    model of the endpoint, is not the model of a job.
    """
    if not is_job(model) or not isinstance(body, Mapping):
        return []
    config = body.get("config", body.get("conf"))
    return [*_flow_problems(body.get("dag")), *_initiator_problems(config)]


def _flow_problems(value: Any) -> list[Problem]:
    """Return the problems of a flow.

    Empty if the flow has invalid fields, which the caller reports.
    """
    try:
        return flow.check(translate.dag(wire.DagBody.model_validate(value)))
    except ValidationError:
        return []


def _initiator_problems(config: Any) -> list[Problem]:
    """Return one problem if the initiator's node is not among the nodes of its role; else none.

    Empty if ``config`` has invalid fields, which the caller reports.
    """
    if not isinstance(config, Mapping) or not isinstance(config.get("role"), Mapping):
        return []
    try:
        initiator = wire.Initiator.model_validate(config.get("initiator"))
    except ValidationError:
        return []
    nodes = config["role"].get(initiator.role, [])
    if not isinstance(nodes, list) or initiator.node_id in nodes:
        return []
    return [validation.unlisted_initiator(initiator.node_id, initiator.role)]
