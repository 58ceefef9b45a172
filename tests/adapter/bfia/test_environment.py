"""What a container is told: the user's own job to the byte, and the rules for values, roles and addresses."""

import json
import os
from collections.abc import Iterator, Mapping
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
from gateway.bootstrap.node import Gateway
from gateway.domain.run import Address, Run
from gateway.domain.spec import Ending, Party
from gateway.domain.states import Outcome, TaskStatus
from gateway.ports import Callback, Site
from tests.adapter.bfia import scripted as peers
from tests.adapter.bfia.scripted import says, scripted
from tests.builders import a_local_job, a_run, a_spec
from tests.contracts.apis import serving
from tests.e2e.nodes import ROOT, example, wait_for
from tests.inprocess import ME, Node, ask, settings
from tests.memory_engine import MemoryEngine, Script

JOB = "job-00112233445566778899aabbccddeeff"
TRACE = "trace_0123456789abcdef0123456789abcdef"
PSI, TREES = "intersect_rsa_1", "hetero_secureboost_1"
TASKS = {
    PSI: "task_11111111111111111111111111111111",
    TREES: "task_22222222222222222222222222222222",
}
ROLES = ("guest", "host")

INJECTED = "<the run's token>"
"""stands in the golden files for the one value that is random in every run"""


@dataclass(frozen=True)
class Launched:
    """What the engine was handed for one run, and the run's record."""

    spec: LaunchSpec
    run: Run

    @property
    def environment(self) -> dict[str, str]:
        """What the container gets, with the token taken out of the two places where it belongs."""
        found = dict(self.spec.environment)
        token, secret = found["config.token"], found["system.callback"].partition("?run=")[2]
        for text, id_ in ((token, self.run.token), (secret, self.run.run_id)):
            assert id_ and text.startswith(id_) and len(text) == len(id_) + 32
        assert self.run.run_id not in token
        found["system.callback"] = found["system.callback"].replace(secret, token)
        for name in ("config.token", "system.callback"):
            found[name] = found[name].replace(token, INJECTED)
        assert token not in "".join(found.values())
        return found


# ---------------------------------------------------------------- the user's job


@pytest.fixture(scope="module")
def launched(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[tuple[str, str], Launched]]:
    """Run the user's job, with ids, trace and addresses injected, up to what the engine is handed."""
    free = "127.0.0.1:0"
    listen = {
        "peer": {"bind": free},
        "container": {"bind": free, "advertise": "http://10.0.0.5:7381"},
        "operator": {"bind": free},
    }
    made = settings(tmp_path_factory.mktemp("node"), listen=listen, engine={"kind": "docker"})
    node = made.node.model_copy(update={"institution": "JG0100001100000000"})
    with serving(Node(made.model_copy(update={"node": node}), engine=_engine)) as gateway:
        yield _launched(gateway)


def _engine(settings: Any, installation: str) -> MemoryEngine:
    return MemoryEngine(
        node=settings.node.id,
        installation=installation,
        images={"unionpay:2.0.0": Script(code=None)},
    )


def _launched(gateway: Gateway, body: Any = None) -> dict[tuple[str, str], Launched]:
    provider = body or example("register_unionpay.json")
    registered = ask(gateway, "operator", "POST", "/v2/provider/register", json=provider)
    assert registered.json() == {"code": 0, "message": "create success"}
    for role in ROLES:
        _upload(gateway, role)
    job = wire.CreateAll.model_validate(example("create_all_psi_sbt.json"))
    gateway.participant.create_job(translate.job_spec(job, JOB, ME, TRACE), ME)
    gateway.participant.start_job(JOB, ME)
    found = {}
    for task, task_id in TASKS.items():
        gateway.participant.start_task(JOB, task_id, task, ME)
        for role in ROLES:
            found[task, role] = _up(gateway, task, role)
            _succeed(gateway, found[task, role])
    gateway.participant.stop_job(JOB, "", Ending(Outcome.SUCCEEDED, datetime.now(UTC)), ME)
    return found


def _upload(gateway: Gateway, role: str) -> None:
    meta = {"delimiter": ",", "match_id_name": "id"} | (
        {"label_name": "y"} if role == "guest" else {}
    )
    form = {
        "namespace": "testspace",
        "name": f"test_{role}",
        "head": "true",
        "partitions": "1",
    }
    path = ROOT / "examples" / "data" / f"breast_hetero_{role}.csv"
    with path.open("rb") as file:
        answer = ask(
            gateway,
            "operator",
            "POST",
            "/v2/component/upload/file",
            data=form | {"meta": json.dumps(meta)},
            files={"file": (path.name, file, "text/csv")},
        )
    assert answer.json()["code"] == 0, answer.text


def _up(
    gateway: Gateway,
    task: str,
    role: str,
) -> Launched:
    def find() -> Run | None:
        runs = gateway.store.local_jobs.get(JOB).runs
        return next(
            (r for r in runs if (r.task_name, r.party.role) == (task, role) and r.started_at), None
        )

    run: Run = wait_for(find, 20, 0.01, f"{role} of {task} is up")
    assert isinstance(gateway.engine, MemoryEngine)
    (spec,) = (spec for spec in gateway.engine.launches if spec.name == run.name)
    return Launched(spec, run)


def _succeed(gateway: Gateway, one: Launched) -> None:
    """Do what the container would: write every output where it was told to, report, end."""
    for mount in one.spec.mounts:
        if mount.target.startswith("/bfia/storage/") and not mount.read_only:
            (mount.source / "data_0").write_text("{}")
    gateway.participant.callback(Callback(TaskStatus.SUCCESS, run_id=one.run.run_id))
    assert isinstance(gateway.engine, MemoryEngine)
    gateway.engine.finish(one.spec.name, 0)
    wait_for(
        lambda: (
            next(
                r for r in gateway.store.local_jobs.get(JOB).runs if r.run_id == one.run.run_id
            ).over
        ),
        20,
        0.01,
    )


def golden(name: str, value: Any) -> None:
    """Assert that a JSON value is what a golden file holds; with REGENERATE_GOLDEN, write that anew."""
    path = Path(__file__).with_name("golden") / f"{name}.json"
    said = (
        json.dumps(
            value,
            indent=2,
            ensure_ascii=False,
            sort_keys=True,
        )
        + "\n"
    )
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(said, encoding="utf-8")
        raise AssertionError(f"{path.name} is written anew; look at what has changed")
    assert said == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("task", TASKS)
def test_the_users_job_gives_these_environments(
    launched: Mapping[tuple[str, str], Launched],
    task: str,
    role: str,
):
    golden(f"{task}-{role}", launched[task, role].environment)


def test_a_container_sees_its_inputs_and_its_outputs_and_nothing_else(
    launched: Mapping[tuple[str, str], Launched],
):
    for (task, role), one in launched.items():
        seen = {m.target: m.read_only for m in one.spec.mounts}
        addresses = {
            k: "/bfia/storage/{namespace}/{name}".format(**json.loads(v))
            for k, v in one.environment.items()
            if k.startswith(("runtime.component.input.", "runtime.component.output."))
        }
        assert seen == {
            **{path: k.startswith("runtime.component.input.") for k, path in addresses.items()},
            "/bfia/log": False,
        }
        own = "/bfia/storage/testspace/test_" if task == PSI else f"/bfia/storage/{JOB}-"
        assert addresses["runtime.component.input.train_data"].startswith(own + role)


# ---------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("value", "text"),
    [
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
    ],
)
def test_how_a_value_is_written(value: Any, text: str):
    assert encode_parameter(value) == text


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings_of(max_examples=50)
@given(st.lists(JSON_VALUES, max_size=4) | st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_lists_and_objects_come_back_from_their_text(value: Any):
    assert json.loads(encode_parameter(value)) == value


@given(
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(min_value=-(10**40), max_value=10**40)
)
def test_numbers_come_back_from_their_text(value: float):
    assert float(encode_parameter(value)) == float(value)


SITE = Site("file:///s", "http://c/cb?run=r", "10.0.0.5:7381", "/log", {"n1": "i1"})


def variables(run: Run, **spec: Any) -> dict[str, str]:
    local = a_local_job(run)
    return environment(replace(local, spec=a_spec(**spec)) if spec else local, run, SITE)


def test_a_null_is_left_out_and_an_empty_text_is_set():
    found = variables(
        a_run(
            parameters={
                "nothing": None,
                "empty": "",
                "zero": 0,
            }
        )
    )
    prefix = "runtime.component.parameter."
    assert {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)} == {
        "empty": "",
        "zero": "0",
    }


def test_the_folder_for_checkpoints_is_named_where_there_is_one():
    run = a_run()
    assert "system.checkpoint" not in variables(run)
    found = environment(a_local_job(run), run, replace(SITE, checkpoint="/bfia/checkpoint"))
    assert (
        found["system.checkpoint"] == "/bfia/checkpoint"
        and "system.checkpoint.address" not in found
    )
    found = environment(
        a_local_job(run), run, replace(SITE, checkpoint_at=Address("job-guest-0", "a", "lake"))
    )
    assert json.loads(found["system.checkpoint.address"]) == {
        "namespace": "job-guest-0",
        "name": "a",
    }


@pytest.mark.parametrize("profile", ["fate", "yacl"])
def test_an_image_of_an_older_form_gets_its_environment_in_it(profile: str):
    lake = "s3://10.0.0.5:9000?username=key&password=secret&bucket=joint"
    addresses = {
        "inputs": {"data": Address("bank", "customers")},
        "outputs": {"out": Address("job-guest-0", "t")},
    }
    plain = a_run(**addresses)
    site = replace(SITE, storage_url=lake)
    found = environment(a_local_job(plain), replace(plain, image_profile=profile), site)
    golden(f"older-{profile}", found)
    changed = dict(found.items() ^ environment(a_local_job(plain), plain, site).items())
    assert (
        set(changed)
        == {
            "fate": {"runtime.component.input.data", "runtime.component.output.out"},
            "yacl": {"system.storage.host.url"},
        }[profile]
    )


def test_what_is_registered_of_an_image_reaches_its_containers(tmp_path: Path):
    """But for what the admin sets of its provider, which goes before the registration."""
    body = example("register_unionpay.json")
    body["metadata"] |= {
        "profile": "yacl",
        "control_port": 10086,
        "n_threads": 4,
        "chunk_size": 4096,
    }
    tuned = {"system.control_port": "10086", "config.chunk_size": "4096"}
    tuned |= {"system.compute": "spark://10.0.0.9:7077", "config.n_threads": "2"}
    allow = {"unionpay": {"compute": "spark://10.0.0.9:7077", "n_threads": 2}}
    engine = {"kind": "docker", "docker": {"allow": allow}}
    with serving(Node(settings(tmp_path, engine=engine), engine=_engine)) as gateway:
        for one in _launched(gateway, body).values():
            assert (
                one.spec.environment["system.storage.host.url"]
                == one.spec.environment["system.storage"]
            )
            assert tuned.items() <= one.spec.environment.items()
        body["metadata"] |= {
            "profile": "older",
            "control_port": 65536,
            "n_threads": "4",
            "chunk_size": 0,
        }
        refused = ask(gateway, "operator", "POST", "/v2/provider/register", json=body).json()
        assert refused["code"] != 0 and "must be fate or yacl" in str(refused)
        assert all(
            f"metadata.{name}" in str(refused)
            for name in ("control_port", "n_threads", "chunk_size")
        )


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (
            {
                "code": 0,
                "status": "SUCCESS",
                "role": "guest",
            },
            TaskStatus.SUCCESS,
        ),
        (
            {
                "code": 0,
                "status": "failed",
                "role": "guest",
            },
            TaskStatus.FAILED,
        ),
        ({"code": 0, "status": "RUNNING"}, None),
        ({"code": 1, "status": "SUCCESS"}, None),
        ({"code": 0, "status": "DONE"}, None),
        ({"code": 0, "data": {"status": "SUCCESS"}}, None),
        (["SUCCESS"], None),
        (b"[" * 20_000, None),
        (
            {
                "code": 0,
                "status": "SUCCESS",
                "more": "x" * 65_536,
            },
            None,
        ),
    ],
    ids=str,
)
def test_a_container_says_at_its_control_port_how_its_task_ended(
    said: Any, status: TaskStatus | None
):
    with scripted() as (container, url):
        container.will(peers.text(said) if isinstance(said, bytes) else says(said))
        run = a_run(declared={"control_port": int(url.rpartition(":")[2])})
        assert container_status(run, "127.0.0.1") is status
        (asked,) = container.asked
        assert (asked.method, asked.target, asked.body) == ("POST", QUERY, {"task_id": run.task_id})
    assert container_status(run, "127.0.0.1") is None, "nothing listens there any more"


def test_only_nodes_whose_role_takes_part_in_the_task_are_named():
    roles = {
        "guest": ["n1"],
        "host": ["n2", "n3"],
        "arbiter": ["n4"],
    }
    found = variables(a_run(roles=("guest", "host"), party=Party("host", 1, "n3")), roles=roles)
    nodes, institutions = (
        {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
        for prefix in ("config.node_id.", "config.inst_id.")
    )
    assert nodes == {
        "guest.0": "n1",
        "host.0": "n2",
        "host.1": "n3",
    }
    assert institutions == nodes | {"guest.0": "i1"}  # one that is not known is the node's id
    assert found["config.self_role"] == "host.1"
