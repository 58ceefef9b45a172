"""The flow in an application: the tasks of the jobs for which a partner asks permission."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from adapter.bfia import translate
from adapter.bfia.wire import DagBody
from gateway.domain import dag as flow
from gateway.domain.dag import Dag
from gateway.errors import problems_of


def read_flow(request: Mapping[str, Any]) -> Dag:
    """Return the flow in the body of an application: one without tasks if it cannot be read.

    Bodies are checked as they arrive; only an older version has stored others.
    """
    try:
        return _read(request.get("dag"))
    except ValidationError:
        return Dag(())


def _read(value: Any) -> Dag:
    return translate.dag(DagBody.model_validate(value))


def check_flow(value: Any) -> Any:
    """Return a flow unchanged; an approval is for its tasks, so it needs at least one.

    A pydantic validator, which raises PydanticCustomError with all problems of the flow otherwise.
    """
    try:
        problems = flow.check(_read(value))
    except ValidationError as error:
        problems = problems_of(error.errors(), DagBody)
    if problems:
        text = "; ".join(map(str, problems))
        raise PydanticCustomError("flow", "{problems}", {"problems": text})
    return value
