"""Bodies of jobs for tests, made from the user's own request."""

import copy
import json
from typing import Any

from tests.e2e.nodes import ROOT, Federation, Node, example

GUEST, HOST, ARBITER = "JG0100001100000010", "JG0100002200000020", "JG0100003300000030"
DATA = ROOT / "examples" / "data"


def registration(image: str) -> Any:
    """Return the reference vendor's registration, with the image that the test's engine has."""
    body = json.loads((ROOT / "examples/reference_vendor/register_reference.json").read_text(encoding="utf-8"))
    body["metadata"]["image"] = image
    return body


def user_job(guest: str = GUEST, host: str = GUEST) -> Any:
    """Return the user's request; unchanged where one node plays both roles."""
    body = example("create_all_psi_sbt.json")
    if (guest, host) != (GUEST, GUEST):
        body = copy.deepcopy(body)
        body["config"]["initiator"]["node_id"] = guest
        body["config"]["role"] = {"guest": [guest], "host": [host]}
    return body


def quick_job(guest: str, host: str, depth: int = 2) -> Any:
    """Return the user's request with shorter keys and shallower trees, for tests that are not about training."""
    body = copy.deepcopy(user_job(guest, host))
    common = body["config"]["task_params"]["common"]
    common["intersect_rsa_1"]["rsa_params"]["key_length"] = 1024
    common["hetero_secureboost_1"] |= {
        "encrypt_param": {"method": "Paillier", "key_length": 1024},
        "tree_param": {"max_depth": depth},
    }
    return body


def lr_job(guest: str, host: str, arbiter: str, **params: Any) -> Any:
    """Return Intersection, then HeteroLR with an arbiter on a third node."""
    body = user_job(guest, host)
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
    config["job_params"]["arbiter"] = {"0": {"resources": {"cpu": -1, "memory": -1, "disk": -1}}}
    del config["task_params"]["common"]["hetero_secureboost_1"]
    config["task_params"]["common"]["hetero_lr_1"] = {
        "id": "id",
        "label": "y",
        "optimizer": "nesterov_momentum_sgd",
        "learning_rate": 0.15,
        "max_iter": 10,
        "batch_size": "all",
        "encrypt_param": {"method": "Paillier", "key_length": 1024},
        **params,
    }
    return body


def prepare(federation: Federation, guest: str = GUEST, host: str = GUEST) -> None:
    """Register the user's provider everywhere and upload the two parties' tables."""
    for node in federation.nodes.values():
        node.register(example("register_unionpay.json"))
    upload(federation[guest], "guest")
    upload(federation[host], "host")


def upload(node: Node, role: str) -> None:
    meta = {"label_name": "y"} if role == "guest" else {}
    node.upload(DATA / f"breast_hetero_{role}.csv", "testspace", f"test_{role}", meta=meta)


def predict_job(guest: str, host: str, version: str, model_id: str = "JG0100001100000000") -> Any:
    """Return Intersection, then HeteroSecureBoost with a model that a training left: no label, no model output."""
    body = quick_job(guest, host)
    trees = body["dag"]["components"][1]
    trees["output"] = [{"type": "dataset", "key": "data0"}, {"type": "report", "key": "report0"}]
    common = body["config"]["job_params"]["common"]
    common |= {"job_type": "predict", "model_id": model_id, "model_version": version}
    body["config"]["task_params"]["common"]["hetero_secureboost_1"] = {"id": "id"}
    return body
