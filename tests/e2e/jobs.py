"""Bodies of jobs for tests: the user's own request, and tasks of `patient.py` that last as long as told."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.e2e.nodes import ROOT, Federation, Node, alive, example, process_engine

GUEST, HOST, ARBITER = "JG0100001100000010", "JG0100002200000020", "JG0100003300000030"
DATA = ROOT / "examples" / "data"


def user_job(guest: str = GUEST, host: str = GUEST) -> Any:
    """Return the user's request; unchanged where one node plays both roles."""
    body = example("create_all_psi_sbt.json")
    if (guest, host) != (GUEST, GUEST):
        body = copy.deepcopy(body)
        body["config"]["initiator"]["node_id"] = guest
        body["config"]["role"] = {"guest": [guest], "host": [host]}
    return body


def quick_job(
    guest: str,
    host: str,
    depth: int = 2,
) -> Any:
    """Return the user's request with shorter keys and shallower trees, for tests that are not about training."""
    body = copy.deepcopy(user_job(guest, host))
    common = body["config"]["task_params"]["common"]
    common["intersect_rsa_1"]["rsa_params"]["key_length"] = 1024
    common["hetero_secureboost_1"] |= {
        "encrypt_param": {"method": "Paillier", "key_length": 1024},
        "tree_param": {"max_depth": depth},
    }
    return body


def align_job(guest: str, host: str) -> Any:
    """Return the first half of the user's request: each party reads a table and writes one."""
    body = quick_job(guest, host)
    del (
        body["dag"]["components"][1],
        body["config"]["task_params"]["common"]["hetero_secureboost_1"],
    )
    return body


def lr_job(
    guest: str,
    host: str,
    arbiter: str,
    **params: Any,
) -> Any:
    """Return Intersection, then HeteroLR with an arbiter on a third node."""
    body = quick_job(guest, host)
    body["dag"]["components"][1] = {
        "name": "hetero_lr_1",
        "componentName": "HeteroLR",
        "provider": "unionpay",
        "version": "2.0.0",
        "input": [{"type": "dataset", "key": "intersect_rsa_1.train_data"}],
        "output": [
            {"type": "dataset", "key": "data0"},
            {"type": "model", "key": "model0"},
            {"type": "report", "key": "report0"},
        ],
    }
    config = body["config"]
    config["role"]["arbiter"] = [arbiter]
    config["job_params"]["arbiter"] = {
        "0": {
            "resources": {
                "cpu": -1,
                "memory": -1,
                "disk": -1,
            }
        }
    }
    del config["task_params"]["common"]["hetero_secureboost_1"]
    config["task_params"]["common"]["hetero_lr_1"] = {
        "id": "id",
        "label": "y",
        "optimizer": "adam",
        "learning_rate": 0.15,
        "max_iter": 10,
        "batch_size": "all",
        "encrypt_param": {"method": "Paillier", "key_length": 1024},
        **params,
    }
    return body


def refusal_with(
    node: Node,
    version: str,
    storage: str,
) -> str:
    """Return why a job is refused whose components are of a version that works with one kind of storage."""
    provider, body = (
        example("register_unionpay.json") | {"version": version},
        quick_job(GUEST, HOST),
    )
    for described in provider["components_description"].values():
        described |= {"version": version, "storageEngine": [storage]}
    node.register(provider)
    for component in body["dag"]["components"]:
        component["version"] = version
    answer = node.post(f"{SCHEDULE}/job/create_all", body)
    assert answer["code"] != 0, answer
    return str(answer)


def prepare(
    federation: Federation,
    guest: str = GUEST,
    host: str = GUEST,
) -> None:
    """Register the user's provider everywhere and upload the two parties' tables."""
    for node in federation.nodes.values():
        node.register(example("register_unionpay.json"))
    upload(federation[guest], "guest")
    upload(federation[host], "host")


def upload(
    node: Node,
    role: str,
    **more: Any,
) -> None:
    meta = {"label_name": "y"} if role == "guest" else {}
    node.upload(DATA / f"breast_hetero_{role}.csv", "testspace", f"test_{role}", meta=meta, **more)


def predict_job(
    guest: str,
    host: str,
    version: str,
    model_id: str = "JG0100001100000000",
) -> Any:
    """Return Intersection, then HeteroSecureBoost with a model that a training left: no label, no model output."""
    body = quick_job(guest, host)
    trees = body["dag"]["components"][1]
    trees["output"] = [{"type": "dataset", "key": "data0"}, {"type": "report", "key": "report0"}]
    common = body["config"]["job_params"]["common"]
    common |= {
        "job_type": "predict",
        "model_id": model_id,
        "model_version": version,
    }
    body["config"]["task_params"]["common"]["hetero_secureboost_1"] = {"id": "id"}
    return body


def counting_job(guest: str, host: str) -> Any:
    """Return a job of the shell vendor: each party learns how many rows the other's table has."""
    body = user_job(guest, host)
    table, report = {"type": "dataset", "key": "data0"}, {"type": "report", "key": "report0"}
    one = {
        "name": "echo_1",
        "componentName": "Echo",
        "provider": "shellworks",
        "version": "1.0.0",
    }
    body["dag"]["components"] = [one | {"input": [], "output": [table, report]}]
    data = {r: {"0": {"echo_1": {"dataset_id": f"testspace#test_{r}"}}} for r in ("guest", "host")}
    body["config"]["task_params"] = {"common": {}, **data}
    return body


def rows_of(role: str) -> int:
    """Return how many rows a party's table has."""
    return len((DATA / f"breast_hetero_{role}.csv").read_text(encoding="utf-8").splitlines()) - 1


# ---------------------------------------------------------------- tasks that last as long as they are told

SCHEDULE = "/v1/platform/schedule"
STOP = f"{SCHEDULE}/job/stop_all"
FOR_EVER = 600


def component(file: str) -> list[str]:
    """Return the command of a component that is a file beside this one."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name(file))]


PATIENT_ENGINE = process_engine("example:1.0.0", command=component("patient.py"))
"""settings of an engine whose one component is `patient.py`"""


@contextmanager
def patient_nodes(
    home: Path,
    engine: Any = PATIENT_ENGINE,
    **settings: Any,
) -> Iterator[Federation]:
    """Two nodes whose one component is `patient.py`."""
    with Federation(home, [GUEST, HOST], engine, **settings) as federation:
        for node in federation.nodes.values():
            node.register(A_PROVIDER)
        yield federation


def echo_job(
    guest: str = GUEST,
    host: str = HOST,
    common: Any = None,
    **parameters: Any,
) -> Any:
    """Return a job of one task without outputs. ``common`` goes into the job's own parameters."""
    body = copy.deepcopy(A_JOB)
    body["dag"]["components"][0]["output"] = []
    config = body["config"]
    config["initiator"] = {"role": "guest", "node_id": guest}
    config["role"] = {"guest": [guest], "host": [host]}
    config["job_params"]["common"] |= common or {}
    config["task_params"] = {"common": {"echo_1": parameters}}
    return body


def job_of(
    register: Path | str,
    lasting: dict[str, float],
    flow: dict[str, str] | None = None,
    **more: Any,
) -> Any:
    """Return a job of tasks that last so many seconds; ``flow`` names whose output a task needs."""
    body = echo_job()
    (one,) = copy.deepcopy(A_JOB)["dag"]["components"]
    inputs = {
        name: [{"type": "dataset", "key": f"{source}.data0"}]
        for name, source in (flow or {}).items()
    }
    body["dag"]["components"] = [
        one | {"name": name, "input": inputs.get(name, [])} for name in lasting
    ]
    body["config"]["task_params"] = {
        "common": {
            name: {
                "name": name,
                "lasts": seconds,
                "register": str(register),
            }
            | more
            for name, seconds in lasting.items()
        }
    }
    return body


def limited(body: Any, **common: Any) -> Any:
    body["config"]["job_params"]["common"] |= common
    return body


def started(register: Path) -> list[tuple[str, int]]:
    """Return task and process id of every container that there ever was."""
    found = [path.name.split(".") for path in register.iterdir()]
    return [(parts[0], int(parts[-1])) for parts in found]


def running(register: Path) -> list[str]:
    return sorted(task for task, pid in started(register) if alive(pid))


def status(node: Node, job_id: str) -> dict[str, Any]:
    return dict(node.get(f"{SCHEDULE}/job/status_all", job_id=job_id)["data"])


def events(
    node: Node,
    job_id: str,
    name: str,
) -> list[dict[str, Any]]:
    return [e for e in node.timeline(job_id) if e["event"] == name]
