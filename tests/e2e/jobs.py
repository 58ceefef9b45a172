"""Bodies of jobs for tests: the user's own request, and tasks of `patient.py`."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.e2e.nodes import ROOT, Federation, Node, alive, example, process_engine

GUEST = "JG0100001100000010"
HOST = "JG0100002200000020"
ARBITER = "JG0100003300000030"
DATA = ROOT / "examples" / "data"
SCHEDULE = "/v1/platform/schedule"
STOP = f"{SCHEDULE}/job/stop_all"

WEAK_PAILLIER = {
    "method": "Paillier",
    "key_length": 1024,
}
TABLE = {
    "type": "dataset",
    "key": "data0",
}
MODEL = {
    "type": "model",
    "key": "model0",
}
REPORT = {
    "type": "report",
    "key": "report0",
}
ALL_RESOURCES = {
    "cpu": -1,
    "memory": -1,
    "disk": -1,
}


# ---------------------------------------------------------------- the user's request


def user_job(
    guest: str = GUEST,
    host: str = GUEST,
) -> Any:
    """Return the user's request; unchanged if one node plays both roles."""
    body = copy.deepcopy(example("create_all_psi_sbt.json"))
    if (guest, host) != (GUEST, GUEST):
        body["config"]["initiator"]["node_id"] = guest
        body["config"]["role"] = {
            "guest": [guest],
            "host": [host],
        }
    return body


def quick_job(
    guest: str,
    host: str,
    depth: int = 2,
) -> Any:
    """Return the user's request with shorter keys and trees of a depth."""
    body = user_job(guest, host)
    common = body["config"]["task_params"]["common"]
    common["intersect_rsa_1"]["rsa_params"]["key_length"] = 1024
    common["hetero_secureboost_1"] |= {
        "encrypt_param": WEAK_PAILLIER,
        "tree_param": {"max_depth": depth},
    }
    return body


def align_job(guest: str, host: str) -> Any:
    """Return the first half of the user's request: each party reads a table and writes one."""
    body = quick_job(guest, host)
    del body["dag"]["components"][1]
    del body["config"]["task_params"]["common"]["hetero_secureboost_1"]
    return body


def lr_job(
    guest: str,
    host: str,
    arbiter: str,
    **params: Any,
) -> Any:
    """Return Intersection, then HeteroLR with an arbiter on a third node.

    ``params`` replace parameters of HeteroLR.
    """
    body = align_job(guest, host)
    body["dag"]["components"].append(
        {
            "name": "hetero_lr_1",
            "componentName": "HeteroLR",
            "provider": "unionpay",
            "version": "2.0.0",
            "input": [{"type": "dataset", "key": "intersect_rsa_1.train_data"}],
            "output": [TABLE, MODEL, REPORT],
        }
    )
    config = body["config"]
    config["role"]["arbiter"] = [arbiter]
    config["job_params"]["arbiter"] = {"0": {"resources": ALL_RESOURCES}}
    defaults = {
        "id": "id",
        "label": "y",
        "optimizer": "adam",
        "learning_rate": 0.15,
        "max_iter": 10,
        "batch_size": "all",
        "encrypt_param": WEAK_PAILLIER,
    }
    config["task_params"]["common"]["hetero_lr_1"] = defaults | params
    return body


def predict_job(
    guest: str,
    host: str,
    version: str,
    model_id: str = "JG0100001100000000",
) -> Any:
    """Return Intersection, then HeteroSecureBoost with the model of a finished training.

    It needs no label and writes no model.
    """
    body = quick_job(guest, host)
    boosting = body["dag"]["components"][1]
    boosting["output"] = [TABLE, REPORT]
    body["config"]["task_params"]["common"]["hetero_secureboost_1"] = {"id": "id"}
    return limited(
        body,
        job_type="predict",
        model_id=model_id,
        model_version=version,
    )


def counting_job(guest: str, host: str) -> Any:
    """Return a job of the shell vendor: each party learns the other table's number of rows."""
    body = user_job(guest, host)
    body["dag"]["components"] = [
        {
            "name": "echo_1",
            "componentName": "Echo",
            "provider": "shellworks",
            "version": "1.0.0",
            "input": [],
            "output": [TABLE, REPORT],
        }
    ]
    body["config"]["task_params"] = {
        "common": {},
        "guest": {"0": {"echo_1": {"dataset_id": "testspace#test_guest"}}},
        "host": {"0": {"echo_1": {"dataset_id": "testspace#test_host"}}},
    }
    return body


def rows_of(role: str) -> int:
    """Return the number of rows of a party's table."""
    text = (DATA / f"breast_hetero_{role}.csv").read_text(encoding="utf-8")
    return len(text.splitlines()) - 1


def refusal_with(
    node: Node,
    version: str,
    storage: str,
) -> str:
    """Register components that need a kind of storage; return the refusal of a job of them."""
    provider = example("register_unionpay.json") | {"version": version}
    for description in provider["components_description"].values():
        description["version"] = version
        description["storageEngine"] = [storage]
    node.register(provider)
    body = quick_job(GUEST, HOST)
    for component in body["dag"]["components"]:
        component["version"] = version
    response = node.post(f"{SCHEDULE}/job/create_all", body)
    assert response["code"] != 0, response
    return str(response)


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
    **fields: Any,
) -> None:
    """Upload the table of a role; ``fields`` are further ones of the form."""
    meta = {"label_name": "y"} if role == "guest" else {}
    file = DATA / f"breast_hetero_{role}.csv"
    node.upload(file, "testspace", f"test_{role}", meta=meta, **fields)


# ---------------------------------------------------------------- tasks that wait as long as told

FOR_EVER = 600  # seconds; longer than a test


def component(file: str) -> list[str]:
    """Return the command of a component that is a file of this folder."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name(file))]


# Settings of an engine with one component, `patient.py`.
PATIENT_ENGINE = process_engine(
    "example:1.0.0",
    command=component("patient.py"),
)


@contextmanager
def patient_nodes(
    home: Path,
    engine: Any = PATIENT_ENGINE,
    **settings: Any,
) -> Iterator[Federation]:
    """Run two nodes with one component, `patient.py`; ``settings`` as for `Federation`."""
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
    config["initiator"] = {
        "role": "guest",
        "node_id": guest,
    }
    config["role"] = {
        "guest": [guest],
        "host": [host],
    }
    config["job_params"]["common"] |= common or {}
    config["task_params"] = {"common": {"echo_1": parameters}}
    return body


def job_of(
    register: Path | str,
    lasting: dict[str, float],
    flow: dict[str, str] | None = None,
    **parameters: Any,
) -> Any:
    """Return a job of tasks that last ``lasting`` seconds each.

    ``register`` is the folder or the address where containers register their start. ``flow`` has
    the task that a task needs the output of. ``parameters`` are further ones of all tasks.
    """
    (template,) = copy.deepcopy(A_JOB)["dag"]["components"]
    sources = flow or {}
    components = []
    task_params = {}
    for name, seconds in lasting.items():
        inputs = []
        if name in sources:
            inputs = [{"type": "dataset", "key": f"{sources[name]}.data0"}]
        components.append(template | {"name": name, "input": inputs})
        task_params[name] = {
            "name": name,
            "lasts": seconds,
            "register": str(register),
            **parameters,
        }
    body = echo_job()
    body["dag"]["components"] = components
    body["config"]["task_params"] = {"common": task_params}
    return body


def limited(body: Any, **common: Any) -> Any:
    """Set common parameters of a job; return its body."""
    body["config"]["job_params"]["common"] |= common
    return body


def started(register: Path) -> list[tuple[str, int]]:
    """Return task and process id of every container that was ever started."""
    containers = []
    for file in register.iterdir():
        task, *_, pid = file.name.split(".")
        containers.append((task, int(pid)))
    return containers


def running(register: Path) -> list[str]:
    """Return the tasks of the containers that run, sorted."""
    return sorted(task for task, pid in started(register) if alive(pid))


def status(
    node: Node,
    job_id: str,
) -> dict[str, Any]:
    """Return a job's status as the standard's interface shows it, without warnings.

    Each node's platform also gets the warnings about that node's own part.
    """
    data = dict(node.get(f"{SCHEDULE}/job/status_all", job_id=job_id)["data"])
    data.pop("warnings", None)
    return data


def events(
    node: Node,
    job_id: str,
    name: str,
) -> list[dict[str, Any]]:
    """Return the events of a job's timeline that have a name."""
    return [event for event in node.timeline(job_id) if event["event"] == name]
