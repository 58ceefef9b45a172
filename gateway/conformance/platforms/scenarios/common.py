"""Clauses about every response of the control layer."""

from gateway.conformance.platforms.answers import SUCCESS_CODES, Answer, read_answer
from gateway.conformance.platforms.findings import Finding, deviates, fails, holds
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import CREATE, POLL, START, STOP, Trial, new_task_id

# Bodies that are no JSON object, each with a name for people.
_WRONG_BODIES = (
    ("nothing", b""),
    ("half a JSON object", b'{"job_id": '),
    ("a list", b"[1, 2]"),
    ("a text", b'"job"'),
    ("invalid UTF-8", b'{"job_id": "\xff\xfe"}'),
    ("20,000 nested lists", b"[" * 20_000),
)
# Fields without which a request means nothing, by path (control layer 3.2, 3.3, 3.6, 3.8).
_REQUIRED = (
    (CREATE, "job_id"),
    (CREATE, "dag"),
    (CREATE, "config"),
    (START, "job_id"),
    (STOP, "job_id"),
    (POLL, "task_id"),
)
_WRONG_VALUES = (5, ["a"], {"a": 1}, None)  # in place of an id


@tries("C-2-envelope")
def success_has_the_envelope(trial: Trial) -> Finding:
    """The response to a success."""
    answer = trial.create(trial.sample_job())
    if not answer.succeeded:
        return fails(f"a valid job is refused: {answer.summary}")
    other_oddities = [
        oddity for oddity in answer.oddities if str(SUCCESS_CODES[1]) not in oddity[0]
    ]
    return _judge_oddities(other_oddities, "code, msg and data have the standard's types")


@tries("C-2-code")
def success_code_is_zero(trial: Trial) -> Finding:
    """The code of a success."""
    answer = trial.create(trial.sample_job())
    if answer.code == SUCCESS_CODES[0]:
        return holds("a success has the code 0")
    if answer.succeeded:
        return deviates("kuscia", f"a success has the code {answer.code}")
    return fails(f"a valid job is refused: {answer.summary}")


@tries("C-2-refusal")
def refusal_has_the_envelope(trial: Trial) -> Finding:
    """The response to a poll of a task that does not exist."""
    answer = trial.poll(new_task_id())
    if answer.succeeded:
        return fails(f"a poll of an unknown task is a success: {answer.summary}")
    if not answer.refused:
        return fails(f"the refusal has no code: {answer.summary}")
    if not answer.text:
        return fails(f"the refusal has no text: {answer.summary}")
    return _judge_oddities(answer.oddities, f"code {answer.code}, {answer.text!r}")


@tries("C-2-malformed")
def malformed_bodies_are_refused(trial: Trial) -> Finding:
    """Bodies that are no JSON object."""
    problems = []
    for name, content in _WRONG_BODIES:
        answer = read_answer(trial.node.send("POST", CREATE, content))
        problems += _refusal_problems(name, answer)
    return _judge_problems(problems, f"{len(_WRONG_BODIES)} malformed bodies are refused")


@tries("C-2-missing")
def missing_fields_are_refused(trial: Trial) -> Finding:
    """Requests without one of their required fields."""
    problems = []
    for path, name in _REQUIRED:
        body = _valid_body(trial, path)
        del body[name]
        problems += _refusal_problems(f"{path} without {name}", trial.node.ask(path, body))
    return _judge_problems(problems, f"{len(_REQUIRED)} incomplete requests are refused")


@tries("C-2-types")
def wrong_types_are_refused(trial: Trial) -> Finding:
    """Ids that are no texts."""
    problems = []
    for path in (START, STOP):
        for value in _WRONG_VALUES:
            answer = trial.node.ask(path, {"job_id": value})
            problems += _refusal_problems(f"{path} with job_id {value!r}", answer)
    return _judge_problems(problems, "ids of other types are refused")


@tries("C-2-trace")
def bad_input_shows_no_trace(trial: Trial) -> Finding:
    """What the node shows of its program after a job with wrong values at every level."""
    body = trial.sample_job()
    config = body["config"]
    wrong_values = (
        {"dag": []},
        {"dag": {"components": "x"}},
        {"dag": {"components": [None]}},
        {"config": config | {"role": [trial.me]}},
        {"config": config | {"role": {"guest": trial.me}}},
        {"config": config | {"initiator": "me"}},
        {"config": config | {"task_params": [1]}},
    )
    problems = []
    for change in wrong_values:
        answer = trial.node.ask(CREATE, body | change)
        problems += _refusal_problems(f"job/create with {change}"[:120], answer)
    return _judge_problems(problems, "jobs with wrong values are refused without a trace")


def _valid_body(trial: Trial, path: str) -> dict[str, object]:
    """Return the fields of a valid request to a path."""
    if path == CREATE:
        return trial.sample_job()
    if path == POLL:
        return {"task_id": new_task_id(), "role": "guest"}
    return {"job_id": trial.sample_job()["job_id"]}


def _refusal_problems(name: str, answer: Answer) -> list[str]:
    """Return what is wrong with the response to a request that has to be refused."""
    if answer.crashed:
        return [f"{name}: {answer.crashed}"]
    if answer.succeeded:
        return [f"{name}: accepted"]
    status = answer.exchange.status or 0
    if not answer.refused and status < 400:
        return [f"{name}: neither a code nor an HTTP error: {answer.summary}"]
    return []


def _judge_problems(problems: list[str], seen: str) -> Finding:
    """Return a finding about bad requests: the problems, or what was seen."""
    if problems:
        return fails("; ".join(problems))
    return holds(seen)


def _judge_oddities(
    oddities: "list[tuple[str, str]] | tuple[tuple[str, str], ...]",
    seen: str,
) -> Finding:
    """Return a finding about the envelope: deviations of one known platform, or failures."""
    if not oddities:
        return holds(seen)
    text = "; ".join(oddity for oddity, _ in oddities)
    dialects = {dialect for _, dialect in oddities}
    if len(dialects) == 1 and "" not in dialects:
        return deviates(dialects.pop(), text)
    return fails(text)
