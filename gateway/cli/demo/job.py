"""The demo's job: an intersection, then a boosted-tree model of both parties."""

from collections.abc import Sequence
from typing import Any

from gateway.cli.demo.nodes import BANK, PARTNER


def job_body(key_length: int) -> dict[str, Any]:
    """Return the job as `create_all` takes it.

    ``key_length``: length of the Paillier keys, in bits.
    """
    return {
        "flow_id": "demo",
        "dag": {
            "version": "2.0",
            "components": _components(),
        },
        "config": {
            "version": "2.0.0",
            "initiator": {
                "role": "guest",
                "node_id": BANK,
            },
            "role": {
                "guest": [BANK],
                "host": [PARTNER],
            },
            "job_params": {"common": {"sync_type": "poll"}},
            "task_params": {
                "common": {
                    "intersect": {
                        "id": "id",
                        "intersect_method": "rsa",
                        "only_output_key": False,
                    },
                    "secureboost": {
                        "id": "id",
                        "label": "y",
                        "num_trees": 3,
                        "learning_rate": 0.5,
                        "tree_param": {"max_depth": 3},
                        "bin_num": 16,
                        "encrypt_param": {
                            "method": "Paillier",
                            "key_length": key_length,
                        },
                        "report_local_baseline": True,
                    },
                },
                "guest": {"0": {"intersect": {"dataset_id": "demo#guest"}}},
                "host": {"0": {"intersect": {"dataset_id": "demo#host"}}},
            },
        },
    }


def _components() -> list[dict[str, Any]]:
    intersect = _component(
        "intersect",
        "Intersection",
        inputs=[],
        outputs=[
            _port("dataset", "train_data"),
            _port("report", "report0"),
        ],
    )
    secureboost = _component(
        "secureboost",
        "HeteroSecureBoost",
        inputs=[_port("dataset", "intersect.train_data")],
        outputs=[
            _port("dataset", "data0"),
            _port("model", "model0"),
            _port("report", "report0"),
            _port("report", "report1"),
            _port("report", "report2"),
        ],
    )
    return [intersect, secureboost]


def _component(
    task: str,
    name: str,
    inputs: Sequence[dict[str, str]],
    outputs: Sequence[dict[str, str]],
) -> dict[str, Any]:
    return {
        "name": task,
        "componentName": name,
        "provider": "reference",
        "version": "1.0.0",
        "input": inputs,
        "output": outputs,
    }


def _port(kind: str, key: str) -> dict[str, str]:
    return {"type": kind, "key": key}
