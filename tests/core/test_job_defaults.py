"""The node's own defaults for settings that a job leaves out (``jobs.defaults``)."""

import pytest

from adapter.bfia.examples import A_JOB
from gateway.errors import Invalid
from gateway.jobs.job_defaults import JobDefaults
from tests.builders import a_spec
from tests.core.example_jobs import LASTING_COMMANDS, submit_job
from tests.inprocess import settings
from tests.world import World

DEFAULTS = {
    "auto_retries": 2,
    "task_timeout": 7200.0,
    "task_parallelism": 4,
}


NOTE = "defaults of this node"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with World(tmp_path_factory.mktemp("nodes")) as world:
        yield world.node(
            commands=LASTING_COMMANDS,
            settings={"jobs": {"defaults": DEFAULTS}},
        )


@pytest.mark.parametrize(
    ("common", "filled_in"),
    [
        ({}, DEFAULTS),
        ({"auto_retries": None}, DEFAULTS),
        ({"auto_retries": 0, "task_timeout": 5}, {"task_parallelism": 4}),
        ("no object", {}),
    ],
    ids=["nothing", "null", "own values", "another form"],
)
def test_only_what_a_job_leaves_out_is_filled_in(common, filled_in):
    spec = a_spec(
        "a",
        job_params={"common": common},
    )

    completed = JobDefaults(DEFAULTS).complete(spec)

    assert completed.filled_in == filled_in
    for name, value in filled_in.items():
        assert completed.spec.common[name] == value


def test_own_values_and_another_form_stay_as_they_are():
    for common in ({"auto_retries": 0, "task_timeout": 5, "task_parallelism": 1}, "no object"):
        spec = a_spec(
            "a",
            job_params={"common": common},
        )
        assert JobDefaults(DEFAULTS).complete(spec).spec == spec


def test_a_task_keeps_the_limits_of_its_own():
    tasks = {"a": {"auto_retries": 0}}
    spec = a_spec(
        "a b:a",
        job_params={"common": {"tasks": tasks}},
    )

    limits = JobDefaults(DEFAULTS).complete(spec).spec.settings.time_limits

    assert (limits.of("a").retries, limits.of("b").retries) == (0, 2)
    assert (limits.of("a").timeout, limits.of("b").timeout) == (7200.0, 7200.0)


def test_a_submitted_job_has_the_nodes_defaults_and_says_so(node):
    job_id = submit_job(node)

    for record in (node.store.jobs.get(job_id), node.store.local_jobs.get(job_id)):
        assert record.spec.settings.task_parallelism == 4
        assert record.spec.settings.time_limits.default.retries == 2
    [entry] = [entry for entry in node.store.timeline(job_id) if entry.event == NOTE]
    assert entry.detail == DEFAULTS
    node.job_requests.stop(job_id)


def test_a_plan_shows_the_nodes_defaults(node):
    plan = node.request("POST", "/api/v1/jobs/plan", json=A_JOB).json()

    texts = [check["found"] for entry in plan["nodes"] for check in entry["checks"]]
    assert f"{NOTE}: task_parallelism 4, auto_retries 2, task_timeout 7200.0" in texts


@pytest.mark.parametrize(
    "defaults",
    [
        {"auto_retries": 101},
        {"task_parallelism": 0},
        {"timeout": 0},
        {"task_timeout": -1},
        {"auto_retry_delay": -1},
        {"priority": 1},
    ],
    ids=lambda defaults: next(iter(defaults)),
)
def test_a_default_that_no_job_may_have_is_refused(tmp_path, defaults):
    [name] = defaults
    with pytest.raises(Invalid) as refusal:
        settings(tmp_path, jobs={"defaults": defaults})
    assert f"jobs.defaults.{name}" in [problem.path for problem in refusal.value.problems]
