"""Examples of bodies for the description of the client API."""

from typing import Any

from fastapi.openapi.models import Example

_GUEST, _HOST = "JG0100001100000010", "JG0100002200000020"
_PARTIES = [{"role": "guest", "party_id": [_GUEST]}, {"role": "host", "party_id": [_HOST]}]

DAG_SCHEMA: dict[str, Any] = {
    "kind": "bfia",
    "schema_version": "2.2.0",
    "dag": {
        "conf": {"extra": {"initiator": {"role": "guest", "party_id": _GUEST}}},
        "parties": _PARTIES,
        "stage": "train",
        "tasks": {
            "intersect_rsa_1": {
                "component_ref": "Intersection",
                "conf": {"provider": "unionpay", "version": "2.0.0"},
                "parameters": {"id": "id", "intersect_method": "rsa"},
                "inputs": {
                    "data": {
                        "train_data": {
                            "data_warehouse": [
                                {"dataset_id": "testspace#test_guest", "parties": _PARTIES[:1]},
                                {"dataset_id": "testspace#test_host", "parties": _PARTIES[1:]},
                            ]
                        }
                    }
                },
            }
        },
    },
}
"""A job of one task, as FATE's pipeline writes it"""

SUBMIT = {"one task": Example(summary="An intersection of two parties", value={"dag_schema": DAG_SCHEMA})}
