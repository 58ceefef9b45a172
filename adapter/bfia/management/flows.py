"""The flow in an application: the tasks of the jobs for which a partner asks permission."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from adapter.bfia import translate
from adapter.bfia.wire import Body, DagBody
from gateway.domain import dag as flow
from gateway.domain.dag import Dag
from gateway.domain.problems import Problem
from gateway.errors import problems_of


class _WithFlow(Body):
    """An application, as far as it describes a flow."""

    dag: DagBody


def read_flow(request: Mapping[str, Any]) -> Dag:
    """Return the flow in the body of an application: one without tasks if it cannot be read.

    Bodies are checked as they arrive; only an older version has stored others.
    """
    try:
        return _read(request)
    except ValidationError:
        return Dag(())


def flow_problems(request: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of the flow in the body of an application, each with its path.

    An approval is for the flow's tasks, so it needs at least one. The largest flows take seconds,
    so the event loop must not wait for this.
    """
    try:
        return flow.check(_read(request))
    except ValidationError as error:
        return problems_of(error.errors(), _WithFlow)


def _read(request: Mapping[str, Any]) -> Dag:
    """Return the flow in the body of an application. Raises pydantic's ValidationError."""
    return translate.dag(_WithFlow.model_validate(request).dag)
