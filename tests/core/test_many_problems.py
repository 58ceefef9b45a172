"""Attack: reporting thousands of invalid fields would keep the event loop busy."""

from pydantic import ValidationError

from adapter.bfia.wire import DagBody
from adapter.fate.dag.wire import DagSchema
from gateway.errors import problems_of


def problems_in(model, document):
    """Return the problems of a document by its model."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        return problems_of(error.errors(), model)
    return []


def problems_in_flow(*components):
    """Return the problems of a flow's body."""
    return problems_in(DagBody, {"components": components})


def test_only_the_first_problems_have_suggestions():
    problems = problems_in_flow(*[{"versoin": "1.0.0"}] * 100)

    suggestions = [problem.suggestion for problem in problems if problem.suggestion]
    assert len(problems) == 400, "each of four fields is missing a hundred times"
    assert set(suggestions) == {"version instead of versoin"}
    assert len(suggestions) <= 20


def test_a_missing_key_is_compared_with_few_unknown_ones():
    many_keys = {f"key-{number}": 1 for number in range(100)} | {"versoin": "1.0.0"}
    assert not any(problem.suggestion for problem in problems_in_flow(many_keys))


def test_very_many_problems_are_only_counted():
    (problem,) = problems_in_flow(*[{"input": [{}] * 100}] * 100)
    assert problem.path == "components"
    assert problem.rule == "has 20400 problems, which are too many to list"


def test_very_many_problems_of_a_job_of_fate_are_only_counted():
    tasks = {f"task-{number}": {} for number in range(1000)}
    dag = {"parties": [{}] * 1000, "tasks": tasks}
    (problem,) = problems_in(DagSchema, {"dag": dag})
    assert problem.path == "dag"
    assert "too many to list" in problem.rule
