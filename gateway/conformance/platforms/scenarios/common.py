"""Clauses about every response of the control layer."""

from collections.abc import Iterable
from typing import Any

from adapter.bfia.paths import SCHEDULE
from gateway.conformance.platforms.answers import SUCCESS_CODES, Answer, read_answer
from gateway.conformance.platforms.findings import (
    Finding,
    demand,
    demand_except,
    deviates,
    fails,
    holds,
)
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import CREATE, POLL, START, STOP, Trial, new_task_id

# Bodies other than JSON objects, each with a name for people.
_MALFORMED_BODIES = (
    ("nothing", b""),
    ("half a JSON object", b'{"job_id": '),
    ("a list", b"[1, 2]"),
    ("a text", b'"job"'),
    ("invalid UTF-8", b'{"job_id": "\xff\xfe"}'),
    ("20,000 nested lists", b"[" * 20_000),
)
# Required fields, by path (control layer 3.2, 3.3, 3.6, 3.8).
_REQUIRED_FIELDS = (
    (CREATE, "job_id"),
    (CREATE, "dag"),
    (CREATE, "config"),
    (START, "job_id"),
    (STOP, "job_id"),
    (POLL, "task_id"),
)
_WRONG_IDS: tuple[Any, ...] = (5, ["a"], {"a": 1}, None)
# Profiles of the platforms with a success code, by that code.
_DIALECTS = {0: "spec", 200: "kuscia"}
_LEAST_ERROR_STATUS = 400  # of HTTP


@tries("C-2-envelope")
def successes_have_the_envelope(trial: Trial) -> Finding:
    """The responses to the creation, the start and the stop of a job."""
    body = trial.sample_job()
    response = trial.create(body)
    demand(response.succeeded, f"a valid job is refused: {response.summary}")
    breaches = _breaches_of_success(CREATE, response)
    for path in (START, STOP):
        response = trial.node.ask(path, {"job_id": body["job_id"]})
        breaches += _breaches_of_success(path, response)
    return _judge_breaches(breaches, "code, msg and data have the standard's types")


def _breaches_of_success(path: str, response: Answer) -> list[tuple[str, str]]:
    """Return the breaches of a success's form, with the path; [] for a refusal."""
    if not response.succeeded:
        return []
    of_code = str(SUCCESS_CODES[1])  # another clause judges the code
    name = path.removeprefix(f"{SCHEDULE}/")
    breaches = []
    for text, dialect in response.breaches:
        if of_code not in text:
            breaches.append((f"{name}: {text}", dialect))
    return breaches


@tries("C-2-code")
def success_code_is_of_the_standard(trial: Trial) -> Finding:
    """The code of a success: 200 in version 1.0, 0 in later ones."""
    response = trial.create(trial.sample_job())
    demand(response.succeeded, f"a valid job is refused: {response.summary}")
    dialect = _DIALECTS[response.code or 0]
    text = f"a success has the code {response.code}"
    demand_except(dialect, response.code == trial.standard.success_code, text)
    return holds(text)


@tries("C-2-refusal")
def refusal_has_the_envelope(trial: Trial) -> Finding:
    """The response to a poll of a task that does not exist."""
    response = trial.poll(new_task_id())
    demand(not response.succeeded, f"a poll of an unknown task is a success: {response.summary}")
    demand(response.refused, f"the refusal has no code: {response.summary}")
    demand(bool(response.text), f"the refusal has no text: {response.summary}")
    return _judge_breaches(response.breaches, f"code {response.code}, {response.text!r}")


@tries("C-2-malformed")
def malformed_bodies_are_refused(trial: Trial) -> Finding:
    """Bodies other than JSON objects."""
    problems = []
    for name, content in _MALFORMED_BODIES:
        response = read_answer(trial.node.send("POST", CREATE, content))
        problems += _refusal_problems(name, response)
    return _judge_problems(problems, f"{len(_MALFORMED_BODIES)} malformed bodies are refused")


@tries("C-2-missing")
def missing_fields_are_refused(trial: Trial) -> Finding:
    """Requests without one of their required fields."""
    problems = []
    for path, name in _REQUIRED_FIELDS:
        body = _valid_body(trial, path)
        del body[name]
        problems += _refusal_problems(f"{path} without {name}", trial.node.ask(path, body))
    return _judge_problems(problems, f"{len(_REQUIRED_FIELDS)} incomplete requests are refused")


@tries("C-2-types")
def wrong_types_are_refused(trial: Trial) -> Finding:
    """Ids of other types than text."""
    problems = []
    for path in (START, STOP):
        for value in _WRONG_IDS:
            response = trial.node.ask(path, {"job_id": value})
            problems += _refusal_problems(f"{path} with job_id {value!r}", response)
    return _judge_problems(problems, "ids of other types are refused")


@tries("C-2-trace")
def bad_input_shows_no_trace(trial: Trial) -> Finding:
    """A job with wrong values at every level."""
    body = trial.sample_job()
    config = body["config"]
    wrong_values: dict[str, dict[str, Any]] = {
        "dag: a list": {"dag": []},
        "dag.components: a text": {"dag": {"components": "x"}},
        "dag.components.0: null": {"dag": {"components": [None]}},
        "config.role: a list": {"config": config | {"role": [trial.me]}},
        "config.role.guest: a text": {"config": config | {"role": {"guest": trial.me}}},
        "config.initiator: a text": {"config": config | {"initiator": "me"}},
        "config.task_params: a list": {"config": config | {"task_params": [1]}},
    }
    problems = []
    for name, change in wrong_values.items():
        response = trial.node.ask(CREATE, body | change)
        problems += _refusal_problems(f"job/create with {name}", response)
    return _judge_problems(problems, "jobs with wrong values are refused without a trace")


def _valid_body(trial: Trial, path: str) -> dict[str, Any]:
    """Return the fields of a valid request to a path."""
    if path == CREATE:
        return trial.sample_job()
    if path == POLL:
        return {"task_id": new_task_id(), "role": "guest"}
    return {"job_id": trial.sample_job()["job_id"]}


def _refusal_problems(name: str, response: Answer) -> list[str]:
    """Return the faults of the response to a request that has to be refused; [] without any."""
    if response.crashed:
        return [f"{name}: {response.crashed}"]
    if response.succeeded:
        return [f"{name}: accepted"]
    status = response.exchange.status or 0
    if response.refused or status >= _LEAST_ERROR_STATUS:
        return []
    return [f"{name}: neither a code nor an HTTP error: {response.summary}"]


def _judge_problems(problems: list[str], observation: str) -> Finding:
    """Return a finding about bad requests: the problems, or an observation without any."""
    if problems:
        return fails("; ".join(problems))
    return holds(observation)


def _judge_breaches(breaches: Iterable[tuple[str, str]], observation: str) -> Finding:
    """Return a finding about the envelope: deviations of one known platform, or failures."""
    texts = [text for text, _ in breaches]
    dialects = {dialect for _, dialect in breaches}
    if not texts:
        return holds(observation)
    joined = "; ".join(texts)
    if len(dialects) == 1 and "" not in dialects:
        return deviates(dialects.pop(), joined)
    return fails(joined)
