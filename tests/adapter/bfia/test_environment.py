"""A container's environment: a user's own job to the byte, and the rules for its values.

The rules concern values, roles and addresses.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from adapter.bfia import translate, wire
from adapter.bfia.environment import QUERY, container_status, encode_parameter, environment
from engines.base import LaunchSpec
from gateway.domain.run import Address, Run, RunData
from gateway.domain.spec import Ending, Party
from gateway.domain.states import Outcome, TaskStatus
from gateway.ports import Callback, Site
from tests.adapter.bfia.scripted import says, scripted, text
from tests.builders import a_local_job, a_run, a_spec
from tests.e2e.nodes import ROOT, example, wait_for
from tests.inprocess import ME, Node, serving, settings
from tests.memory_engine import MemoryEngine, Script

# The ids of the user's job, its trace and its tasks.
JOB = "job-00112233445566778899aabbccddeeff"
TRACE = "trace_0123456789abcdef0123456789abcdef"
PSI = "intersect_rsa_1"
TREES = "hetero_secureboost_1"
TASKS = {
    PSI: "task_11111111111111111111111111111111",
    TREES: "task_22222222222222222222222222222222",
}
ROLES = ("guest", "host")

# In place of the token in the golden files, the one value that is random in every run.
TOKEN_MARK = "<the run's token>"

INPUT = "runtime.component.input."
OUTPUT = "runtime.component.output."
PARAMETER = "runtime.component.parameter."


@dataclass(frozen=True)
class Launch:
    """A run as the engine was asked to launch it, and the run as it is stored."""

    spec: LaunchSpec
    run: Run

    def environment(self) -> dict[str, str]:
        """Return the container's variables; `TOKEN_MARK` replaces both copies of the token.

        Fails if the token does not begin with the run's ids, or is in any other variable.
        """
        variables = dict(self.spec.environment)
        token = variables["config.token"]
        callback, _, callback_token = variables["system.callback"].partition("?run=")
        assert is_signed(token, self.run.token)
        assert is_signed(callback_token, self.run.run_id)
        assert self.run.run_id not in token

        variables["config.token"] = TOKEN_MARK
        variables["system.callback"] = f"{callback}?run={TOKEN_MARK}"
        assert token not in "".join(variables.values())
        return variables


def is_signed(token: str, name: str) -> bool:
    """Return whether a token is a name and 32 characters of signature."""
    return name != "" and token.startswith(name) and len(token) == len(name) + 32


def named(
    variables: Mapping[str, str],
    prefix: str,
) -> dict[str, str]:
    """Return the variables of a prefix, without the prefix."""
    values = {}
    for name, value in variables.items():
        if name.startswith(prefix):
            values[name.removeprefix(prefix)] = value
    return values


# ---------------------------------------------------------------- a user's job


@contextmanager
def serving_node(configuration: Any) -> Iterator[Node]:
    """Serve a node whose containers run until a test ends them."""
    engine = MemoryEngine.making({"unionpay:2.0.0": Script(code=None)})
    with serving(Node(configuration, engine=engine)) as node:
        yield node


@pytest.fixture(scope="module")
def launches(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[tuple[str, str], Launch]]:
    """The launches of the user's job, by task and role; its ids and addresses are fixed."""
    free_port = {"bind": "127.0.0.1:0"}
    configuration = settings(
        tmp_path_factory.mktemp("node"),
        listen={
            "peer": free_port,
            "container": free_port | {"advertise": "http://10.0.0.5:7381"},
            "operator": free_port,
        },
        engine={"kind": "docker"},
    )
    with_institution = configuration.node.model_copy(update={"institution": "JG0100001100000000"})
    configuration = configuration.model_copy(update={"node": with_institution})
    with serving_node(configuration) as node:
        yield run_users_job(node, example("register_unionpay.json"))


def run_users_job(
    node: Node,
    provider: dict[str, Any],
) -> dict[tuple[str, str], Launch]:
    """Run the user's job with a provider to its success; return the launches by task and role."""
    registration = node.post("/v2/provider/register", provider)
    assert registration.json() == {
        "code": 0,
        "message": "create success",
    }
    upload_table(node, "guest", {"label_name": "y"})
    upload_table(node, "host", {})
    job = wire.CreateAll.model_validate(example("create_all_psi_sbt.json"))
    node.participant.create_job(
        translate.job_spec(job, JOB, ME, TRACE),
        ME,
    )
    node.participant.start_job(JOB, ME)

    launches = {}
    for task, task_id in TASKS.items():
        node.participant.start_task(JOB, task_id, task, ME)
        for role in ROLES:
            launch = wait_for_launch(node, task, role)
            finish(node, launch)
            launches[task, role] = launch

    ending = Ending(Outcome.SUCCEEDED, datetime.now(UTC))
    node.participant.stop_job(JOB, "", ending, ME)
    return launches


def upload_table(
    node: Node,
    role: str,
    extra_meta: dict[str, str],
) -> None:
    """Upload a role's table of the examples."""
    meta = {"delimiter": ",", "match_id_name": "id", **extra_meta}
    form = {
        "namespace": "testspace",
        "name": f"test_{role}",
        "head": "true",
        "partitions": "1",
        "meta": json.dumps(meta),
    }
    path = ROOT / "examples" / "data" / f"breast_hetero_{role}.csv"
    files = {"file": (path.name, path.read_bytes(), "text/csv")}
    response = node.post(
        "/v2/component/upload/file",
        data=form,
        files=files,
    )
    assert response.json()["code"] == 0, response.text


def wait_for_launch(
    node: Node,
    task: str,
    role: str,
) -> Launch:
    """Wait until a role's container of a task has started."""

    def started_run() -> Run | None:
        for run in node.store.local_jobs.get(JOB).runs:
            if run.task_name == task and run.party.role == role and run.started_at:
                return run
        return None

    run: Run = wait_for(started_run, 20, 0.01, f"{role} of {task} has started")
    [spec] = [spec for spec in engine_of(node).launches if spec.name == run.name]
    return Launch(spec, run)


def finish(node: Node, launch: Launch) -> None:
    """Act as a successful container: write every output, report, and exit."""
    for mount in launch.spec.mounts:
        is_output = mount.target.startswith("/bfia/storage/") and not mount.read_only
        if is_output:
            (mount.source / "data_0").write_text("{}")
    node.container_callbacks.record(Callback(TaskStatus.SUCCESS, run_id=launch.run.run_id))
    engine_of(node).finish(launch.spec.name, 0)

    def is_over() -> bool:
        runs = node.store.local_jobs.get(JOB).runs
        [run] = [run for run in runs if run.run_id == launch.run.run_id]
        return run.over

    wait_for(is_over, 20, 0.01)


def engine_of(node: Node) -> MemoryEngine:
    """Return a node's engine."""
    assert isinstance(node.engine, MemoryEngine)
    return node.engine


def assert_golden(name: str, value: Any) -> None:
    """Fail unless a JSON value is that of a golden file.

    With REGENERATE_GOLDEN in the environment the file is written, and the test fails.
    """
    path = Path(__file__).with_name("golden") / f"{name}.json"
    content = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(content, encoding="utf-8")
        raise AssertionError(f"{path.name} was written; check the changes")
    assert content == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("task", TASKS)
def test_the_users_job_gives_these_environments(launches, task, role):
    assert_golden(f"{task}-{role}", launches[task, role].environment())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("task", "input_folder"),
    [
        (PSI, "/bfia/storage/testspace/test_"),
        (TREES, f"/bfia/storage/{JOB}-"),
    ],
    ids=[PSI, TREES],
)
def test_a_container_sees_its_inputs_and_its_outputs_and_nothing_else(
    launches, task, input_folder, role
):
    launch = launches[task, role]
    inputs = mount_paths(launch, INPUT)
    outputs = mount_paths(launch, OUTPUT)

    read_only = {mount.target: mount.read_only for mount in launch.spec.mounts}

    expected = {"/bfia/log": False}
    expected |= dict.fromkeys(outputs.values(), False)
    expected |= dict.fromkeys(inputs.values(), True)
    assert read_only == expected
    assert inputs["train_data"].startswith(input_folder + role)


def mount_paths(
    launch: Launch,
    prefix: str,
) -> dict[str, str]:
    """Return the paths of a container's inputs or outputs."""
    paths = {}
    for name, value in named(launch.environment(), prefix).items():
        address = json.loads(value)
        paths[name] = f"/bfia/storage/{address['namespace']}/{address['name']}"
    return paths


# ---------------------------------------------------------------- values

WRITTEN_VALUES = [
    ("as it is", "as it is"),
    ("", ""),
    ('"quoted"', '"quoted"'),
    (True, "True"),
    (False, "False"),
    (1.0, "1"),
    (-3.0, "-3"),
    (
        {
            "max_depth": 5,
            "need": False,
            "no": None,
        },
        '{"max_depth": 5, "need": false, "no": null}',
    ),
    ({"名": "值"}, '{"名": "值"}'),
]


@pytest.mark.parametrize(("value", "written"), WRITTEN_VALUES)
def test_a_value_has_one_text_in_the_environment(value, written):
    assert encode_parameter(value) == written


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(
        allow_nan=False,
        allow_infinity=False,
    )
    | st.text()
)


def lists_and_objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return lists and objects of values."""
    return st.lists(values, max_size=4) | st.dictionaries(
        st.text(),
        values,
        max_size=4,
    )


@settings_of(max_examples=50)
@given(lists_and_objects(st.recursive(SCALARS, lists_and_objects, max_leaves=10)))
def test_lists_and_objects_are_read_back_from_their_text(value):
    assert json.loads(encode_parameter(value)) == value


@given(
    st.floats(
        allow_nan=False,
        allow_infinity=False,
    )
    | st.integers(min_value=-(10**40), max_value=10**40)
)
def test_numbers_are_read_back_from_their_text(value):
    assert float(encode_parameter(value)) == float(value)


# ---------------------------------------------------------------- variables

SITE = Site(
    "file:///s",
    "http://c/cb?run=r",
    "10.0.0.5:7381",
    "/log",
    {"n1": "i1"},
)


def test_a_null_is_left_out_and_an_empty_text_is_set():
    parameters = {
        "nothing": None,
        "empty": "",
        "zero": 0,
    }
    run = a_run(data=RunData(parameters))
    variables = environment(a_local_job(run), run, SITE)
    assert named(variables, PARAMETER) == {
        "empty": "",
        "zero": "0",
    }


def test_a_run_without_checkpoints_has_no_folder_for_them():
    run = a_run()
    assert "system.checkpoint" not in environment(a_local_job(run), run, SITE)


def test_the_folder_for_checkpoints_is_named():
    run = a_run()
    site = replace(SITE, checkpoint="/bfia/checkpoint")
    variables = environment(a_local_job(run), run, site)
    assert variables["system.checkpoint"] == "/bfia/checkpoint"
    assert "system.checkpoint.address" not in variables


def test_the_address_for_checkpoints_is_named():
    run = a_run()
    site = replace(
        SITE,
        checkpoint_at=Address("job-guest-0", "a", "lake"),
    )
    variables = environment(a_local_job(run), run, site)
    address = json.loads(variables["system.checkpoint.address"])
    assert address == {
        "namespace": "job-guest-0",
        "name": "a",
    }


@pytest.mark.parametrize(
    ("profile", "differing"),
    [
        ("fate", {"runtime.component.input.data", "runtime.component.output.out"}),
        ("yacl", {"system.storage.host.url"}),
    ],
    ids=["fate", "yacl"],
)
def test_an_image_of_an_older_form_gets_its_environment_in_it(profile, differing):
    data = RunData(
        inputs={"data": Address("bank", "customers")},
        outputs={"out": Address("job-guest-0", "t")},
    )
    run = a_run(data=data)
    lake = "s3://10.0.0.5:9000?username=key&password=secret&bucket=joint"
    site = replace(SITE, storage_url=lake)

    current = environment(a_local_job(run), run, site)
    older = environment(
        a_local_job(run),
        replace(run, software=replace(run.software, profile=profile)),
        site,
    )

    assert_golden(f"older-{profile}", older)
    changes = older.items() ^ current.items()
    assert {name for name, _ in changes} == differing


# The registration of an image of an older form, with settings for its containers.
TUNING = {
    "profile": "yacl",
    "control_port": 10086,
    "n_threads": 4,
    "chunk_size": 4096,
}
WRONG_TUNING = {
    "profile": "older",
    "control_port": 65536,
    "n_threads": "4",
    "chunk_size": 0,
}
COMPUTE = "spark://10.0.0.9:7077"


def test_what_is_registered_of_an_image_reaches_its_containers(tmp_path):
    """The admin's settings for a provider precede its registration."""
    provider = example("register_unionpay.json")
    provider["metadata"] |= TUNING
    admin_settings = {"unionpay": {"compute": COMPUTE, "n_threads": 2}}
    engine = {
        "kind": "docker",
        "docker": {"allow": admin_settings},
    }

    with serving_node(settings(tmp_path, engine=engine)) as node:
        launches = run_users_job(node, provider)

    for launch in launches.values():
        variables = launch.spec.environment
        assert variables["system.storage.host.url"] == variables["system.storage"]
        assert variables["system.control_port"] == "10086"
        assert variables["config.chunk_size"] == "4096"
        assert variables["system.compute"] == COMPUTE
        assert variables["config.n_threads"] == "2"


def test_wrong_settings_of_an_image_are_refused_by_name(tmp_path):
    provider = example("register_unionpay.json")
    provider["metadata"] |= WRONG_TUNING

    with serving_node(settings(tmp_path)) as node:
        refusal = node.post("/v2/provider/register", provider).json()

    assert refusal["code"] != 0
    assert "must be fate or yacl" in str(refusal)
    for name in ("control_port", "n_threads", "chunk_size"):
        assert f"metadata.{name}" in str(refusal)


def test_only_nodes_whose_role_takes_part_in_the_task_are_named():
    run = a_run(party=Party("host", 1, "n3"))
    software = replace(run.software, roles=("guest", "host"))
    run = replace(run, software=software)
    spec = a_spec(
        roles={
            "guest": ["n1"],
            "host": ["n2", "n3"],
            "arbiter": ["n4"],
        }
    )
    local = replace(
        a_local_job(run),
        spec=spec,
    )

    variables = environment(local, run, SITE)

    nodes = {
        "guest.0": "n1",
        "host.0": "n2",
        "host.1": "n3",
    }
    assert named(variables, "config.node_id.") == nodes
    # the institution of an unknown node is its own id
    assert named(variables, "config.inst_id.") == nodes | {"guest.0": "i1"}
    assert variables["config.self_role"] == "host.1"


# ---------------------------------------------------------------- the control port

# A container's answer at its control port, and the status of the task that it reports.
CONTROL_ANSWERS = {
    "success": (
        says(
            {
                "code": 0,
                "status": "SUCCESS",
                "role": "guest",
            }
        ),
        TaskStatus.SUCCESS,
    ),
    "failure": (
        says(
            {
                "code": 0,
                "status": "failed",
                "role": "guest",
            }
        ),
        TaskStatus.FAILED,
    ),
    "running": (
        says({"code": 0, "status": "RUNNING"}),
        None,
    ),
    "refusal": (
        says({"code": 1, "status": "SUCCESS"}),
        None,
    ),
    "another word": (
        says({"code": 0, "status": "DONE"}),
        None,
    ),
    "in data": (
        says({"code": 0, "data": {"status": "SUCCESS"}}),
        None,
    ),
    "list": (
        says(["SUCCESS"]),
        None,
    ),
    "deep": (text(b"[" * 20_000), None),
    "large": (
        says(
            {
                "code": 0,
                "status": "SUCCESS",
                "more": "x" * 65_536,
            }
        ),
        None,
    ),
}


@pytest.mark.parametrize(
    ("response", "status"),
    CONTROL_ANSWERS.values(),
    ids=CONTROL_ANSWERS,
)
def test_a_container_says_at_its_control_port_how_its_task_ended(response, status):
    with scripted() as (container, url):
        container.will(response)
        port = int(url.rpartition(":")[2])
        run = a_run()
        software = replace(run.software, declared={"control_port": port})
        run = replace(run, software=software)

        assert container_status(run, "127.0.0.1") is status

        [request] = container.requests
        assert request.method == "POST"
        assert request.target == QUERY
        assert request.body == {"task_id": run.task_id}
    assert container_status(run, "127.0.0.1") is None, "the port has no listener any more"
