"""Problems of a submitted job, each with its path."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway.domain.dag import DagInput
from gateway.domain.job_settings import JobLimits, TaskLimits
from gateway.domain.spec import JobSpec
from gateway.domain.validation import check
from tests.builders import a_dag, a_node, a_spec
from tests.domain.submissions import (
    COMMON,
    FLOW,
    PREDICTION,
    TASK_PARAMETERS,
    UNKNOWN_FIELD,
    roles_of_every_task,
    spec_needing_output,
    spec_of_nodes,
    spec_with_common,
    spec_with_old_job,
    spec_with_role_params,
)

# The path of each problem, and words that are part of it.
Problems = Sequence[tuple[str, str]]
Table = dict[str, tuple[JobSpec, Problems]]

FLOWS: Table = {
    "no component": (
        spec_of_nodes(),
        [(FLOW, "must hold at least one component")],
    ),
    "a task that needs itself": (
        spec_of_nodes(a_node("a", ["a"])),
        [(FLOW, "(got 'a -> a')")],
    ),
    "an unknown upstream task": (
        spec_of_nodes(a_node("a"), a_node("b", ["a", "x"])),
        [
            (
                f"{FLOW}[1].input[1].key",
                "b needs the output of a task that is not in the flow (got 'x.out')",
            )
        ],
    ),
    "an unknown output": (
        spec_needing_output(DagInput("dataset", "a", "z"), "x", "y"),
        [(f"{FLOW}[1].input[0].key", "(x, y)")],
    ),
    "a mistyped output after more than a problem lists": (
        spec_needing_output(
            DagInput("dataset", "a", "scoers"),
            *(f"{number}" for number in range(20)),
            "scores",
        ),
        [(f"{FLOW}[1].input[0].key", "8, 9, …) (got 'a.scoers'); did you mean a.scores?")],
    ),
    "no output": (
        spec_needing_output(DagInput("dataset", "a", "")),
        [(f"{FLOW}[1].input[0].key", "<task>.<output key> (got 'a')")],
    ),
    "no upstream task": (
        spec_needing_output(DagInput("dataset", "", "out")),
        [(f"{FLOW}[1].input[0].key", "<output key>")],
    ),
    "an output of another type": (
        spec_needing_output(DagInput("model", "a", "out")),
        [(f"{FLOW}[1].input[0].type", "b needs a.out as model, but it is a dataset (got 'model')")],
    ),
    "a mistyped output": (
        spec_needing_output(DagInput("dataset", "a", "ou")),
        [(f"{FLOW}[1].input[0].key", "does not have (out) (got 'a.ou'); did you mean a.out?")],
    ),
    "wrong names": (
        spec_of_nodes(
            a_node("a"),
            a_node("a"),
            a_node(""),
            a_node("a.b"),
        ),
        [
            (f"{FLOW}[1].name", "unique"),
            (f"{FLOW}[2].name", "empty"),
            (f"{FLOW}[3].name", "a dot"),
        ],
    ),
    "wrong output keys": (
        spec_of_nodes(a_node("a", outputs=("x", "x", ""))),
        [
            (f"{FLOW}[0].output[1].key", "must be unique"),
            (f"{FLOW}[0].output[2].key", "must not be empty"),
        ],
    ),
}

PARTIES: Table = {
    "values that no container can get": (
        a_spec(
            "a",
            flow_id="a\ud800",
            task_params={
                "common": {"a": {"x": "\0", "y": "z" * 2**17}},
                "guest": {"0": {"a": {"=": 1}}},
            },
        ),
        [
            ("flow_id", "control characters"),
            (f"{TASK_PARAMETERS}common.a.x", "must not hold zero characters"),
            (f"{TASK_PARAMETERS}common.a.y", "must have at most 131000 bytes with its name"),
            (f"{TASK_PARAMETERS}guest.0.a.=", "must have a name without ="),
        ],
    ),
    "no party": (
        a_spec("a", {}),
        [("config.role", "at least one node")],
    ),
    "an initiator without its role": (
        a_spec(initiator_role="host"),
        [("config.initiator.node_id", "must be listed under config.role.host (got 'n1')")],
    ),
    "two roles in one": (
        a_spec(roles={"guest": ("n1",), "host, arbiter": ("n2",)}),
        [
            (
                "config.role.host, arbiter",
                "the nodes that play it (got 'host, arbiter'); did you mean host and arbiter?",
            )
        ],
    ),
    "a node too often": (
        a_spec(roles={"guest": ("n1",), "host": ("n2",) * 51}),
        [("config.role", 'must not name one node more than 50 times (got ["n2 (51)"])')],
    ),
    "too many indices": (
        a_spec(job_params={"host": {str(index): {} for index in range(1001)}}),
        [("config.job_params.host", "more than 1000 keys")],
    ),
    # Joined indices are split for every task of every party.
    "endless joined indices": (
        a_spec(task_params={"host": {f"0|{index}|{'9' * 4000}": {} for index in range(3)}}),
        [("config.task_params.host", "nor 8192 characters in joined ones")],
    ),
    "roles that are no objects": (
        a_spec(
            job_params={"guest": [1]},
            task_params={"common": "x"},
        ),
        [
            ("config.job_params.guest", "must be an object"),
            ("config.task_params.common", "must be an object"),
        ],
    ),
}


def with_each_timeout(seconds: Any) -> JobSpec:
    """Return a job with the same value for each of its timeouts."""
    return spec_with_common(
        timeout=seconds,
        task_timeout=seconds,
        tasks={"a": {"timeout": seconds}},
    )


WRONG_TIMEOUTS = (
    0,
    -1,
    "5",
    True,
    float("nan"),
    float("inf"),
    1e10,
    [],
    {},
)
TIMEOUT_PROBLEMS: Problems = [
    (f"{COMMON}timeout", ""),
    (f"{COMMON}task_timeout", ""),
    (f"{COMMON}tasks.a.timeout", "seconds"),
]
WRONG_RETRIES = (-1, 1.5, "1", True, 101)

LIMITS: Table = {
    **{
        f"a timeout of {value!r}": (with_each_timeout(value), TIMEOUT_PROBLEMS)
        for value in WRONG_TIMEOUTS
    },
    **{
        f"a number of retries of {value!r}": (
            spec_with_common(auto_retries=value),
            [(f"{COMMON}auto_retries", "whole number")],
        )
        for value in WRONG_RETRIES
    },
    "several limits": (
        spec_with_common(
            auto_retry_delay=-1,
            tasks={
                "a": {"time_out": 5},
                "b": 7,
                "x": {},
            },
        ),
        [
            (f"{COMMON}auto_retry_delay", ""),
            (f"{COMMON}tasks.a.time_out", ""),
            (f"{COMMON}tasks.b", ""),
            (f"{COMMON}tasks.x", ""),
        ],
    ),
    "tasks without names": (
        spec_with_common(tasks=[]),
        [(f"{COMMON}tasks", "must be an object")],
    ),
}

AMOUNTS = ("cpu", "memory", "disk")
VALID_AMOUNTS = (-1, 0, 1, 2.5, "4", None, -0.0, 5e-324)
WRONG_AMOUNTS = (
    "much",
    [],
    {},
    1e308,
    "nan",
    "inf",
    "",
    -5,
)
VALID_GPUS = (-1, 0, 1, "2", 8.0, None)
WRONG_GPUS = (-2, 0.5, "all", True, "nan", "-inf", 1e308)


def asking_for(amount: str, value: Any) -> JobSpec:
    """Return a job whose guest asks for an amount."""
    return spec_with_role_params(guest={"resources": {amount: value}})


RESOURCES: Table = {
    **{
        f"{amount}: {value!r}": (
            asking_for(amount, value),
            [(f"config.job_params.guest.0.resources.{amount}", "number")],
        )
        for amount in AMOUNTS
        for value in WRONG_AMOUNTS
    },
    **{
        f"gpu: {value!r}": (
            asking_for("gpu", value),
            [("config.job_params.guest.0.resources.gpu", "must be a whole number of devices")],
        )
        for value in WRONG_GPUS
    },
    "amounts that are no object": (
        spec_with_role_params(host={"resources": 3}),
        [("config.job_params.host.0.resources", "must be an object")],
    ),
    "no parallelism": (
        spec_with_common(task_parallelism=0),
        [(f"{COMMON}task_parallelism", "at least 1")],
    ),
    "sessions of tasks that are no flag": (
        spec_with_common(task_sessions=1),
        [(f"{COMMON}task_sessions", "must be true or false")],
    ),
    **{
        f"a priority of {value!r}": (
            spec_with_common(priority=value),
            [(f"{COMMON}priority", "whole number")],
        )
        for value in (True, 1.5, "1", [], 10**9)
    },
}

PROVIDERS: Table = {
    "two providers of a flow at one node": (
        a_spec(
            "a",
            {
                "guest": ("n1",),
                "host": ("n1",),
            },
            job_params={"host": {"0": {"providers": {"a": "x:1"}}}},
        ),
        [
            (
                "config.job_params.host.0.providers",
                "differ from those of guest.0 at the same node (got 'n1')",
            )
        ],
    ),
    "providers that are no object": (
        spec_with_role_params(host={"providers": "x:1"}),
        [("config.job_params.host.0.providers", "must be an object")],
    ),
    "a provider of an unknown task": (
        spec_with_role_params(host={"providers": {"z": "x:1"}}),
        [("config.job_params.host.0.providers.z", "names a task that is not in the flow")],
    ),
    "a provider without a version": (
        spec_with_role_params(host={"providers": {"a": "x"}}),
        [("config.job_params.host.0.providers.a", "must be the name and version of a provider")],
    ),
}

SPARED_PARTIES: Table = {
    "more parties than there are": (
        spec_with_common(min_parties={"host": 4}),
        [(f"{COMMON}min_parties.host", "from 0 to 3")],
    ),
    "a negative number, and an unknown role": (
        spec_with_common(min_parties={"host": -1, "arbiter": 1}),
        [
            (f"{COMMON}min_parties.host", ""),
            (f"{COMMON}min_parties.arbiter", "does not have"),
        ],
    ),
    "parties without a number": (
        spec_with_common(min_parties={"host": True}),
        [(f"{COMMON}min_parties.host", "")],
    ),
    "parties that are no object": (
        spec_with_common(min_parties=2),
        [(f"{COMMON}min_parties", "must be an object")],
    ),
    "texts in place of lists": (
        spec_with_common(required_parties="guest.0", tolerable_tasks={}),
        [
            (f"{COMMON}required_parties", "list"),
            (f"{COMMON}tolerable_tasks", "list"),
        ],
    ),
    "unknown required parties": (
        spec_with_common(required_parties=["guest.0", "host.3", 1]),
        [
            (f"{COMMON}required_parties[1]", "a party"),
            (f"{COMMON}required_parties[2]", "a party"),
        ],
    ),
    "an unknown tolerable task": (
        spec_with_common(tolerable_tasks=["a", "z"]),
        [(f"{COMMON}tolerable_tasks[1]", "a task")],
    ),
}

INHERITANCE: Table = {
    "a task without its input": (
        spec_with_old_job(inherit=["b"]),
        [(f"{COMMON}inherit[0]", "needs the output of a")],
    ),
    "one task a hundred thousand times": (
        spec_with_old_job(inherit=["a"] * 100_000),
        [(f"{COMMON}inherit", "must not name a task twice (got 100000)")],
    ),
    "an unknown task": (
        spec_with_old_job(inherit=["x"]),
        [(f"{COMMON}inherit[0]", "not in the flow")],
    ),
    "no old job": (
        spec_with_old_job("", inherit=["a"]),
        [(f"{COMMON}inherit", "needs old_job_id")],
    ),
    "a task that is no name": (
        spec_with_old_job(inherit=[5]),
        [(f"{COMMON}inherit", "names of tasks")],
    ),
    "an old job with a path as id": (
        spec_with_old_job("../x"),
        [("old_job_id", "must not hold /")],
    ),
    "an old job that is the job itself": (
        spec_with_old_job("job-1"),
        [("old_job_id", "another job")],
    ),
}

MODELS: Table = {
    "a prediction without a model": (
        spec_with_common(job_type="predict"),
        [(f"{COMMON}model_id", ""), (f"{COMMON}model_version", "required")],
    ),
    "wrong type and model": (
        spec_with_common(
            job_type="deploy",
            model_id="../x",
            model_version=["1"],
        ),
        [
            (f"{COMMON}job_type", ""),
            (f"{COMMON}model_id", "/"),
            (f"{COMMON}model_version", "text"),
        ],
    ),
    "an endless model id": (
        spec_with_common(**PREDICTION | {"model_id": "m" * 129}),
        [(f"{COMMON}model_id", "must not be longer than 128 characters")],
    ),
}

UNKNOWN_TASK_AND_PARTY = {
    "common": {"nobody": {}},
    "guest": {"9": {}},
}

STRICT_JOBS: Table = {
    "unused parameters": (
        a_spec(
            task_params=UNKNOWN_TASK_AND_PARTY,
            job_params={"common": {"strict": "true"}},
        ),
        [(f"{TASK_PARAMETERS}common.nobody", ""), (f"{TASK_PARAMETERS}guest.9", "")],
    ),
    "an unknown field": (
        a_spec(
            unknown_fields=(UNKNOWN_FIELD,),
            job_params={"common": {"strict": True}},
        ),
        [(UNKNOWN_FIELD.path, "")],
    ),
    "an unknown setting": (
        spec_with_common(strict=True, tiemout=5),
        [(f"{COMMON}tiemout", "")],
    ),
    "a wrong strictness": (
        spec_with_common(strict="very"),
        [(f"{COMMON}strict", "true or false")],
    ),
}


def engine_problem(path: str, engine: str) -> Problems:
    """Return the problem of a setting that belongs to a vendor's engine."""
    words = f"ENGINE_NOT_HERE: {engine} is the business of a vendor"
    return [(f"config.job_params.{path}", words)]


ENGINES: Table = {
    "computing engine": (
        spec_with_common(computing_engine="eggroll"),
        engine_problem("common.computing_engine", "Eggroll"),
    ),
    "computing": (
        spec_with_common(computing="SPARK"),
        engine_problem("common.computing", "Spark"),
    ),
    "backend": (
        spec_with_common(backend="linkis_spark"),
        engine_problem("common.backend", "Linkis"),
    ),
    "engines": (
        spec_with_common(engines={"computing": "spark", "storage": "x"}),
        engine_problem("common.engines.computing", "Spark"),
    ),
    "federation engine": (
        spec_with_common(federation_engine="pulsar"),
        engine_problem("common.federation_engine", "Pulsar"),
    ),
    "settings of Eggroll": (
        spec_with_common(eggroll_run={"cores": 4}),
        engine_problem("common.eggroll_run", "Eggroll"),
    ),
    "settings of Spark for a party": (
        spec_with_role_params(host={"spark_run": {}}),
        engine_problem("host.0.spark_run", "Spark"),
    ),
    "backend of a party": (
        spec_with_role_params(guest={"backend": "rabbit-mq_rabbitmq"}),
        engine_problem("guest.0.backend", "RabbitMQ"),
    ),
}


def prefix_ids(subject: str, table: Table) -> Table:
    """Return the table with the subject in front of each id."""
    return {f"{subject}: {name}": row for name, row in table.items()}


WRONG: Table = {
    **prefix_ids("flow", FLOWS),
    **prefix_ids("parties", PARTIES),
    **prefix_ids("limits", LIMITS),
    **prefix_ids("resources", RESOURCES),
    **prefix_ids("providers", PROVIDERS),
    **prefix_ids("spared parties", SPARED_PARTIES),
    **prefix_ids("inheritance", INHERITANCE),
    **prefix_ids("models", MODELS),
    **prefix_ids("strict job", STRICT_JOBS),
    **prefix_ids("engines", ENGINES),
}


@pytest.mark.parametrize(
    ("spec", "expected"),
    WRONG.values(),
    ids=WRONG,
)
def test_all_problems_are_reported_together_with_their_path(spec: JobSpec, expected: Problems):
    problems, _ = check(spec)

    assert [problem.path for problem in problems] == [path for path, _ in expected]
    for problem, (_, words) in zip(problems, expected, strict=True):
        assert words in str(problem)


VALID: dict[str, JobSpec] = {
    "limits set to null": spec_with_common(
        timeout=None,
        auto_retries=None,
        tasks=None,
    ),
    **{
        f"{amount}: {value!r}": asking_for(amount, value)
        for amount in AMOUNTS
        for value in VALID_AMOUNTS
    },
    **{f"gpu: {value!r}": asking_for("gpu", value) for value in VALID_GPUS},
    "spared parties": spec_with_common(
        min_parties={"host": 2},
        required_parties=["guest.0"],
        tolerable_tasks=["a"],
    ),
    "spared parties set to null": spec_with_common(
        min_parties=None,
        required_parties=None,
        tolerable_tasks=None,
    ),
    "an old job": spec_with_old_job(),
    "a prediction": spec_with_common(**PREDICTION),
    "no engine of a vendor": spec_with_common(
        computing_engine="standalone",
        engine=None,
        backend=0,
        run={},
        dry_run=True,
    ),
    "an engine in a note": spec_with_common(
        note="as good as spark",
        engines=["spark"],
    ),
    "an engine in place of an object": a_spec(job_params={"guest": {"0": "spark"}}),
}


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID)
def test_a_valid_job_has_no_problems(spec: JobSpec):
    problems, _ = check(spec)

    assert problems == []


def test_a_cycle_is_named_edge_by_edge():
    [problem], _ = check(a_spec(a_dag("a -> b -> c -> a; d")))

    assert (problem.path, problem.rule) == ("dag.components", "must not form a cycle")
    names = problem.got.split(" -> ")
    assert names[0] == names[-1]
    assert set(itertools.pairwise(names)) == {
        ("a", "b"),
        ("b", "c"),
        ("c", "a"),
    }


# ---------------------------------------------------------------- limits of tasks


def test_a_task_has_the_jobs_limits_unless_it_has_its_own():
    spec = spec_with_common(
        timeout=3600,
        task_timeout=60.5,
        auto_retries=2,
        auto_retry_delay=3,
        tasks={
            "a": {"timeout": 5, "auto_retries": 0},
            "b": {"auto_retry_delay": 0},
        },
    )

    limits = spec.settings.time_limits

    assert limits.job_timeout == 3600
    assert limits.of("a") == TaskLimits(5, 0, 3)
    assert limits.of("b") == TaskLimits(60.5, 2, 0)
    assert limits.of("c") == TaskLimits(60.5, 2, 3)


def test_limits_set_to_null_are_the_defaults():
    spec = spec_with_common(
        timeout=None,
        auto_retries=None,
        tasks=None,
    )

    assert spec.settings.time_limits == JobLimits()


# ---------------------------------------------------------------- datasets

THREE_PARTIES = {
    "guest": ("n1",),
    "host": ("n2",),
    "arbiter": ("n2",),
}


@pytest.mark.parametrize(
    ("host_params", "is_refused"),
    [
        ({}, True),
        ({"dataset_id": ""}, False),
        ({"dataset_id": "bank#b"}, False),
        ({"x": 1}, True),
    ],
    ids=["no parameters", "an empty dataset", "a dataset", "other parameters"],
)
def test_a_party_without_a_dataset_is_refused_where_another_has_one(
    host_params: Mapping[str, Any], is_refused: bool
):
    params = {
        "guest": {"0": {"a": {"dataset_id": "bank#a"}}},
        "host": {"0": {"a": host_params}},
    }
    spec = a_spec("a -> b", THREE_PARTIES, task_params=params)

    problems, _ = check(spec, roles_of_every_task)

    if not is_refused:
        assert problems == []
        return
    [problem] = problems
    assert problem.path == f"{TASK_PARAMETERS}host.0.a.dataset_id"
    assert "guest.0 reads a dataset" in problem.rule


def test_no_party_is_refused_where_none_has_a_dataset():
    """The component may read none."""
    problems, _ = check(a_spec("a -> b", THREE_PARTIES), roles_of_every_task)

    assert problems == []


@pytest.mark.parametrize(
    ("role", "key", "words"),
    [
        ("guest", "0|7", "guest.7 is not a party of this job: guest has guest.0 alone"),
        ("host", "3", "host.3 is not a party of this job: host has host.0 to host.2"),
    ],
)
def test_an_entry_for_no_party_names_that_party_and_the_existing_ones(role, key, words):
    spec = a_spec(
        roles={"guest": ["n1"], "host": ["n2", "n3", "n4"]},
        task_params={role: {key: {"a": {}}}},
    )
    _, warnings = check(spec)
    (warning,) = [warning for warning in warnings if warning.path.endswith(key)]
    assert warning.rule == words
