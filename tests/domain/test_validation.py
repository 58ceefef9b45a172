"""What is wrong with a job as submitted, and what is warned of: (given, expected), each with its path."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.domain import validation
from gateway.domain.dag import Dag, DagInput, DagNode
from gateway.domain.settings import JobLimits, TaskLimits
from gateway.domain.spec import JobSpec, UnknownField
from gateway.domain.validation import MOST_WARNINGS, check, idle_roles
from tests.builders import a_dag, a_node, a_spec

HOSTS = {"guest": ("n1",), "host": ("n2", "n3", "n4")}
NUMBERS = (-1, 0, 1, 2.5, "4", None, -0.0, 5e-324)
NO_NUMBERS = ("much", [], {}, True, 1e308, "nan", "inf", "", -5)


def flow(*nodes: Any) -> JobSpec:
    return a_spec(Dag(nodes))


def needing(wanted: DagInput, *outputs: str) -> JobSpec:
    """Return a job in which b needs that of a."""
    return flow(a_node("a", outputs=outputs or ("out",)), replace(a_node("b"), inputs=(wanted,)))


def common(**settings: Any) -> JobSpec:
    return a_spec("a; b; c", HOSTS, job_params={"common": settings})


def own(**entries: Any) -> JobSpec:
    return a_spec(job_params={role: {"0": entry} for role, entry in entries.items()})


def heir(old: str = "job-old", **settings: Any) -> JobSpec:
    return a_spec("a -> b", old_job_id=old, job_params={"common": settings})


SETTING, PARAMETER, FLOW = "config.job_params.common.", "config.task_params.", "dag.components"
PREDICTS = {
    "job_type": "predict",
    "model_id": "m",
    "model_version": "v",
}
ODD = {"common": {"nobody": {}}, "guest": {"9": {}}}
KEY = UnknownField("config.job_parms", "is not read", "an object", "job_params")

WRONG: dict[str, tuple[JobSpec, list[tuple[str, str]]]] = {
    # the flow
    "no component": (flow(), [(FLOW, "must hold at least one component")]),
    "a task that needs itself": (flow(a_node("a", ["a"])), [(FLOW, "(got 'a -> a')")]),
    "an unknown upstream": (
        flow(a_node("a"), a_node("b", ["a", "x"])),
        [
            (
                f"{FLOW}[1].input[1].key",
                "b needs the output of a task that is not in the flow (got 'x.out')",
            )
        ],
    ),
    "unknown output": (
        needing(DagInput("dataset", "a", "z"), "x", "y"),
        [(f"{FLOW}[1].input[0].key", "(x, y)")],
    ),
    "no output": (
        needing(DagInput("dataset", "a", "")),
        [(f"{FLOW}[1].input[0].key", "<task>.<output key> (got 'a')")],
    ),
    "no task named": (
        needing(DagInput("dataset", "", "out")),
        [(f"{FLOW}[1].input[0].key", "<output key>")],
    ),
    "another type": (
        needing(DagInput("model", "a", "out")),
        [(f"{FLOW}[1].input[0].type", "b needs a.out as model, but it is a dataset (got 'model')")],
    ),
    "a mistyped output": (
        needing(DagInput("dataset", "a", "ou")),
        [(f"{FLOW}[1].input[0].key", "does not have (out) (got 'a.ou'); did you mean a.out?")],
    ),
    "names": (
        flow(a_node("a"), a_node("a"), a_node(""), a_node("a.b")),
        [(f"{FLOW}[1].name", "unique"), (f"{FLOW}[2].name", "empty"), (f"{FLOW}[3].name", "a dot")],
    ),
    "keys": (
        flow(a_node("a", outputs=("x", "x", ""))),
        [
            (f"{FLOW}[0].output[1].key", "must be unique"),
            (f"{FLOW}[0].output[2].key", "must not be empty"),
        ],
    ),
    # parties and their entries
    "what no container can get": (
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
            (f"{PARAMETER}common.a.x", "must not hold zero characters"),
            (f"{PARAMETER}common.a.y", "must have at most 131000 bytes with its name"),
            (f"{PARAMETER}guest.0.a.=", "must have a name without ="),
        ],
    ),
    "no party": (a_spec("a", {}), [("config.role", "at least one node")]),
    "the initiator's role": (
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
    "joined indices without end": (  # each is parted for every task of every party
        a_spec(task_params={"host": {f"0|{index}|{'9' * 4000}": {} for index in range(3)}}),
        [("config.task_params.host", "nor 8192 characters in joined ones")],
    ),
    "no objects": (
        a_spec(job_params={"guest": [1]}, task_params={"common": "x"}),
        [
            ("config.job_params.guest", "must be an object"),
            ("config.task_params.common", "must be an object"),
        ],
    ),
    # limits
    "none": (
        common(
            timeout=None,
            auto_retries=None,
            tasks=None,
        ),
        [],
    ),
    **{
        f"no time: {value!r}": (
            common(
                timeout=value,
                task_timeout=value,
                tasks={"a": {"timeout": value}},
            ),
            [
                (SETTING + "timeout", ""),
                (SETTING + "task_timeout", ""),
                (SETTING + "tasks.a.timeout", "seconds"),
            ],
        )
        for value in (0, -1, "5", True, float("nan"), float("inf"), 1e10, [], {})
    },
    **{
        f"no number of retries: {value!r}": (
            common(auto_retries=value),
            [(SETTING + "auto_retries", "whole number")],
        )
        for value in (-1, 1.5, "1", True, 101)
    },
    "all of them": (
        common(
            auto_retry_delay=-1,
            tasks={
                "a": {"time_out": 5},
                "b": 7,
                "x": {},
            },
        ),
        [
            (SETTING + name, "")
            for name in ("auto_retry_delay", "tasks.a.time_out", "tasks.b", "tasks.x")
        ],
    ),
    "tasks by no name": (common(tasks=[]), [(SETTING + "tasks", "must be an object")]),
    # resources
    **{
        f"{kind}: {value!r}": (
            own(guest={"resources": {kind: value}}),
            [(f"config.job_params.guest.0.resources.{kind}", "number")]
            * (value in NO_NUMBERS and value != 1),
        )
        for kind in ("cpu", "memory", "disk")
        for value in (*NUMBERS, *(one for one in NO_NUMBERS if one is not True))
    },
    **{
        f"gpu: {value!r}": (
            own(guest={"resources": {"gpu": value}}),
            [("config.job_params.guest.0.resources.gpu", "must be a whole number of devices")]
            * wrong,
        )
        for wrong, values in enumerate(
            ((-1, 0, 1, "2", 8.0, None), (-2, 0.5, "all", True, "nan", "-inf", 1e308))
        )
        for value in values
    },
    "two flows at one node": (
        a_spec(
            "a",
            {"guest": ("n1",), "host": ("n1",)},
            job_params={"host": {"0": {"providers": {"a": "x:1"}}}},
        ),
        [
            (
                "config.job_params.host.0.providers",
                "differ from those of guest.0 at the same node (got 'n1')",
            )
        ],
    ),
    "no object of providers": (
        own(host={"providers": "x:1"}),
        [("config.job_params.host.0.providers", "must be an object")],
    ),
    "a provider of nothing": (
        own(host={"providers": {"z": "x:1"}}),
        [("config.job_params.host.0.providers.z", "names a task that is not in the flow")],
    ),
    "a provider without a version": (
        own(host={"providers": {"a": "x"}}),
        [("config.job_params.host.0.providers.a", "must be the name and version of a provider")],
    ),
    "no amounts": (
        own(host={"resources": 3}),
        [("config.job_params.host.0.resources", "must be an object")],
    ),
    "no parallelism": (common(task_parallelism=0), [(SETTING + "task_parallelism", "at least 1")]),
    **{
        f"no priority: {value!r}": (
            common(priority=value),
            [(SETTING + "priority", "whole number")],
        )
        for value in (True, 1.5, "1", [], 10**9)
    },
    # who can be spared
    "spared": (
        common(
            min_parties={"host": 2},
            required_parties=["guest.0"],
            tolerable_tasks=["a"],
        ),
        [],
    ),
    "nobody spared": (
        common(
            min_parties=None,
            required_parties=None,
            tolerable_tasks=None,
        ),
        [],
    ),
    "too many": (common(min_parties={"host": 4}), [(SETTING + "min_parties.host", "from 0 to 3")]),
    "too few, and no role": (
        common(min_parties={"host": -1, "arbiter": 1}),
        [(SETTING + "min_parties.host", ""), (SETTING + "min_parties.arbiter", "does not have")],
    ),
    "no number": (common(min_parties={"host": True}), [(SETTING + "min_parties.host", "")]),
    "no object": (common(min_parties=2), [(SETTING + "min_parties", "must be an object")]),
    "no lists": (
        common(required_parties="guest.0", tolerable_tasks={}),
        [(SETTING + "required_parties", "list"), (SETTING + "tolerable_tasks", "list")],
    ),
    "no parties": (
        common(required_parties=["guest.0", "host.3", 1]),
        [
            (SETTING + "required_parties[1]", "a party"),
            (SETTING + "required_parties[2]", "a party"),
        ],
    ),
    "no task": (common(tolerable_tasks=["a", "z"]), [(SETTING + "tolerable_tasks[1]", "a task")]),
    # what is taken over, and models
    "all that is the same": (heir(), []),
    "without its input": (heir(inherit=["b"]), [(SETTING + "inherit[0]", "needs the output of a")]),
    "one task a hundred thousand times": (
        heir(inherit=["a"] * 100_000),
        [(SETTING + "inherit", "must not name a task twice (got 100000)")],
    ),
    "no such task": (heir(inherit=["x"]), [(SETTING + "inherit[0]", "not in the flow")]),
    "of no job": (heir("", inherit=["a"]), [(SETTING + "inherit", "needs old_job_id")]),
    "by no name": (heir(inherit=[5]), [(SETTING + "inherit", "names of tasks")]),
    "of a path": (heir("../x"), [("old_job_id", "must not hold /")]),
    "of itself": (heir("job-1"), [("old_job_id", "another job")]),
    "what model": (
        common(job_type="predict"),
        [(SETTING + "model_id", ""), (SETTING + "model_version", "required")],
    ),
    "of a model": (common(**PREDICTS), []),
    "of no model": (
        common(
            job_type="deploy",
            model_id="../x",
            model_version=["1"],
        ),
        [
            (SETTING + "job_type", ""),
            (SETTING + "model_id", "/"),
            (SETTING + "model_version", "text"),
        ],
    ),
    "of a model without end": (
        common(**PREDICTS | {"model_id": "m" * 129}),
        [(SETTING + "model_id", "must not be longer than 128 characters")],
    ),
    # a strict job
    "strict": (
        a_spec(task_params=ODD, job_params={"common": {"strict": "true"}}),
        [(PARAMETER + "common.nobody", ""), (PARAMETER + "guest.9", "")],
    ),
    "strict keys": (
        a_spec(unknown_fields=(KEY,), job_params={"common": {"strict": True}}),
        [(KEY.path, "")],
    ),
    "strict on its settings": (common(strict=True, tiemout=5), [(SETTING + "tiemout", "")]),
    "how strict": (common(strict="very"), [(SETTING + "strict", "true or false")]),
    # computing engines
    **{
        path: (
            a_spec(job_params=params),
            [(f"config.job_params.{path}", f"ENGINE_NOT_HERE: {name} is the business of a vendor")],
        )
        for params, path, name in (
            ({"common": {"computing_engine": "eggroll"}}, "common.computing_engine", "Eggroll"),
            ({"common": {"computing": "SPARK"}}, "common.computing", "Spark"),
            ({"common": {"backend": "linkis_spark"}}, "common.backend", "Linkis"),
            (
                {"common": {"engines": {"computing": "spark", "storage": "x"}}},
                "common.engines.computing",
                "Spark",
            ),
            ({"common": {"federation_engine": "pulsar"}}, "common.federation_engine", "Pulsar"),
            ({"common": {"eggroll_run": {"cores": 4}}}, "common.eggroll_run", "Eggroll"),
            ({"host": {"0": {"spark_run": {}}}}, "host.0.spark_run", "Spark"),
            ({"guest": {"0": {"backend": "rabbit-mq_rabbitmq"}}}, "guest.0.backend", "RabbitMQ"),
        )
    },
    "none of them": (
        common(
            computing_engine="standalone",
            engine=None,
            backend=0,
            run={},
            dry_run=True,
        ),
        [],
    ),
    "in a note": (common(note="as good as spark", engines=["spark"]), []),
    "in no object": (a_spec(job_params={"guest": {"0": "spark"}}), []),
}


@pytest.mark.parametrize(("spec", "expected"), WRONG.values(), ids=WRONG)
def test_all_problems_are_reported_together_with_their_path(
    spec: JobSpec, expected: list[tuple[str, str]]
):
    problems, _ = check(spec)
    assert [p.path for p in problems] == [path for path, _ in expected]
    for problem, (_, words) in zip(problems, expected, strict=True):
        assert words in str(problem)


def test_a_cycle_is_named_edge_by_edge():
    [problem], _ = check(a_spec(a_dag("a -> b -> c -> a; d")))
    assert (problem.path, problem.rule) == ("dag.components", "must not form a cycle")
    edges = problem.got.split(" -> ")
    assert edges[0] == edges[-1]
    assert {(x, y) for x, y in itertools.pairwise(edges)} == {("a", "b"), ("b", "c"), ("c", "a")}


def test_a_task_has_the_jobs_settings_unless_it_has_its_own():
    tasks = {"a": {"timeout": 5, "auto_retries": 0}, "b": {"auto_retry_delay": 0}}
    found = common(
        timeout=3600,
        task_timeout=60.5,
        auto_retries=2,
        auto_retry_delay=3,
        tasks=tasks,
    ).settings.time_limits
    assert found.job_timeout == 3600
    assert [found.of(t) for t in "abc"] == [
        TaskLimits(5, 0, 3),
        TaskLimits(60.5, 2, 0),
        TaskLimits(60.5, 2, 3),
    ]
    assert (
        common(
            timeout=None,
            auto_retries=None,
            tasks=None,
        ).settings.time_limits
        == JobLimits()
    )


# ---------------------------------------------------------------- warnings

PARAMS = {
    "common": {"x": {}},
    "guest": {
        "0": {"y": {}},
        "1": {},
        "0|7": {},
        "z": {},
    },
    "arbiter": {"0": {"a": {}}},
}
MISTYPED = {
    "common": {
        "tiemout": 5,
        "prority": 2,
        "auto_retry": 3,
        "site": "x",
        "sync_type": "callbak",
    },
    "guest": {"0": {"resource": {"cpu": 1}, "resources": {"cpus": 1, "memory": 2}}},
    "comon": {"timeout": 3},
}
MEANT = {
    "common.tiemout": "timeout",
    "common.prority": "priority",
    "common.auto_retry": "auto_retries",
    "common.site": "",
    "common.sync_type": "",
    "guest.0.resource": "resources",
    "guest.0.resources.cpus": "cpu",
    "comon": "common",
}
KNOWN = dict.fromkeys(validation.COMMON - {"sync_type"}) | {
    "engine": {},
    "computing_engine": "x",
    "y_run": {},
}

WARNED: dict[str, tuple[JobSpec, dict[str, str]]] = {
    "parameters of nothing": (
        a_spec("a", task_params=PARAMS),
        {
            PARAMETER + p: ""
            for p in ("common.x", "guest.1", "guest.0|7", "guest.z", "guest.0.y", "arbiter")
        },
    ),
    "mistyped": (
        a_spec(job_params=MISTYPED),
        {f"config.job_params.{path}": meant for path, meant in MEANT.items()},
    ),
    "an unknown key": (a_spec(unknown_fields=(KEY,)), {KEY.path: "job_params"}),
    "settings are no tasks": (
        a_spec(job_params={"common": {"sync_type": "poll"}, "guest": {"0": {"resources": {}}}}),
        {},
    ),
    "too long to guess at": (a_spec(task_params={"host" * 11: {}}), {PARAMETER + "host" * 11: ""}),
    "known settings": (a_spec(job_params={"common": KNOWN}), {}),
}


@pytest.mark.parametrize(("spec", "expected"), WARNED.values(), ids=WARNED)
def test_what_is_warned_of_and_what_was_probably_meant(spec: JobSpec, expected: dict[str, str]):
    assert {w.path: w.suggestion for w in check(spec)[1]} == expected


def test_a_flood_of_unknown_names_is_cut():
    """Anybody may send a million of them, and each takes a while."""
    names = {f"trianing{number}": {} for number in range(2 * MOST_WARNINGS)}
    assert (
        len(check(a_spec("training", task_params={"common": names, "guest": {"0": names}}))[1])
        == MOST_WARNINGS
    )
    assert len(check(common(**{f"setting{i}" * 3: i for i in range(100_000)}))[1]) == MOST_WARNINGS


def test_every_setting_that_the_rules_read_is_known():
    texts = [
        file.read_text(encoding="utf-8") for file in Path(validation.__file__).parent.rglob("*.py")
    ]
    read = {name for text in texts for name in re.findall(r'(?:common|asked)\.get\("(\w+)"', text)}
    assert {"timeout", "priority", "inherit"} <= read <= validation.COMMON


@pytest.mark.parametrize(
    ("role", "have", "problems", "warnings"),
    [
        ("arbiter", ("guest", "host", "arbiter"), {}, ["config.role.host"]),
        ("hots", ("guest", "host"), {"config.role.hots": "host"}, []),
        ("arbiter", ("guest",), {}, ["config.role.arbiter"]),
        ("hots", None, {}, []),
    ],
)
def test_a_role_that_no_component_has(
    role,
    have,
    problems,
    warnings,
):
    found, warned = idle_roles(a_spec("a -> b", {"guest": ("n1",), role: ("n2",)}), lambda _: have)
    assert {p.path: p.suggestion for p in found} == problems and [
        w.path for w in warned
    ] == warnings
    every = {
        "guest": ("n1",),
        "host": ("n2",),
        "hosts": ("n3",),
    }
    assert [w.path for w in idle_roles(a_spec("a", every), lambda _: ("guest", "host"))[1]] == [
        "config.role.hosts"
    ]


def roles_of(_: DagNode) -> tuple[str, ...]:
    return ("guest", "host", "arbiter")


def test_unused_settings_are_refused_at_submission_and_warned_elsewhere():
    params = {"common": {"tranin": {}}, "host": {"0": {"a": {}, "trian": {"x": 1}}}}
    spec = a_spec("a -> train", task_params=params)
    problems, warnings = check(spec, roles_of)
    assert [(p.path, p.suggestion) for p in problems] == [
        (PARAMETER + "common.tranin", "train"),
        (PARAMETER + "host.0.trian", "train"),
    ]
    assert [w.path for w in warnings] == ["config.role.arbiter"] and check(spec) == ([], problems)


@pytest.mark.parametrize(
    ("host", "refused"),
    [({}, True), ({"dataset_id": ""}, False), ({"dataset_id": "bank#b"}, False), ({"x": 1}, True)],
)
def test_a_party_without_a_dataset_is_refused_where_another_has_one(
    host: dict[str, Any], refused: bool
):
    params = {"guest": {"0": {"a": {"dataset_id": "bank#a"}}}, "host": {"0": {"a": host}}}
    three = {
        "guest": ("n1",),
        "host": ("n2",),
        "arbiter": ("n2",),
    }
    problems, _ = check(a_spec("a -> b", three, task_params=params), roles_of)
    assert [p.path for p in problems] == [PARAMETER + "host.0.a.dataset_id"] * refused
    assert not refused or "guest.0 reads a dataset" in problems[0].rule
    assert check(a_spec("a -> b", three), roles_of)[0] == [], (
        "nobody has one: the component may read none"
    )
