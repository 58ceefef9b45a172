"""Examples for the interface description: small bodies that a fresh node accepts, one after the other.

`JOB` and `TASK` are made up by those who send them. Where this node makes an id itself, one of ours stands for it.
"""

from typing import Any

from fastapi.openapi.models import Example

JOB = "job-example"
JOB_HERE = "job-scheduled-here"
"""a job that this node schedules for another"""
JOB_ASKED = "job-asked-about"
"""a job that another node asks about before it creates it here"""
AUDIT = "audit_example"
AUDIT_HERE = f"audit_{JOB_HERE}"
"""this node's own question about the job that it schedules"""
TASK = "task_example"
TASK_HERE = "task_scheduled_here"
"""a task of such a job; its id is made by this node"""
_NAME = "echo_1"

_DESCRIPTION: dict[str, Any] = {
    "componentName": "Echo",
    "title": "Echo",
    "provider": "example",
    "version": "1.0.0",
    "description": "Copies its input.",
    "roleList": ["guest", "host"],
    "desVersion": "1.3.0",
    "storageEngine": ["file"],
    "inputParam": [],
    "inputData": [{"name": "train_data", "description": "table", "category": "dataset", "dataFormat": ["csv"]}],
    "outputData": [{"name": "train_data", "description": "table", "category": "dataset", "dataFormat": ["csv"]}],
    "result": [{"resultCode": "00000000", "resultMessage": "ok"}],
}

REGISTER: dict[str, Example] = {
    "one component": Example(
        summary="A provider with one component",
        value={
            "name": "example",
            "device": "docker",
            "version": "1.0.0",
            "metadata": {"base_url": "", "image": "example:1.0.0"},
            "protocol": "bfia",
            "components_description": {"Echo": _DESCRIPTION},
        },
    )
}

REGISTER_COMPONENT: dict[str, Example] = {
    "one component": Example(
        summary="One component of an image",
        value={"imageUrl": "example:1.0.0", "component_info": _DESCRIPTION},
    )
}

_BODY: dict[str, Any] = {
    "flow_id": "my-flow",
    "dag": {
        "version": "2.0",
        "components": [
            {
                "name": _NAME,
                "componentName": "Echo",
                "provider": "example",
                "version": "1.0.0",
                "input": [],
                "output": [{"type": "dataset", "key": "data0"}],
            }
        ],
    },
    "config": {
        "version": "2.0.0",
        "initiator": {"role": "guest", "node_id": "JG0100001100000010"},
        "role": {"guest": ["JG0100001100000010"], "host": ["JG0100001100000010"]},
        "job_params": {"common": {"sync_type": "poll"}},
        "task_params": {"common": {}},
    },
}

CREATE_ALL: dict[str, Example] = {"two parties": Example(summary="One task at a guest and a host", value=_BODY)}

A_JOB: dict[str, Any] = _BODY


def _one(summary: str, **value: Any) -> dict[str, Example]:
    return {summary.lower(): Example(summary=summary, value=value)}


_OF_A_PEER = _BODY["config"] | {
    "initiator": {"role": "guest", "node_id": "JG0100001100000011"},
    "role": {"guest": ["JG0100001100000011"], "host": ["JG0100001100000010"]},
}
SUBMIT_JOB = _one("A job of two parties", **(_BODY | {"config": _OF_A_PEER}), job_id=JOB_HERE)
CREATE_JOB = _one("A job of two parties", **_BODY, job_id=JOB)
START_JOB = _one("A job", job_id=JOB)
DELETE_JOB = _one("A job", job_id=JOB, dry_run=True)
OUTPUT_METADATA = _one("All outputs of a task at a role", job_id=JOB, task_name=_NAME, role="guest")
START_TASK = _one("A task of a job", job_id=JOB, task_id=TASK, task_name=_NAME)
POLL_TASK = _one("One role of a task", task_id=TASK, role="guest")
REPORT_TASK = _one("One role of a task", task_id=TASK_HERE, status="RUNNING", role="guest")
STATUS_ALL: dict[str, Any] = {"job_id": JOB_HERE}
STOP_TASK = _one("A task", task_id=TASK)
CONFIRM_JOB = _one("Agreed", job_id=JOB_HERE, status="READY")
APPLY_AUDIT = _one(
    "A job of two parties",
    **{k: v for k, v in _BODY.items() if k != "config"},
    audit_id=AUDIT,
    job_id=JOB_ASKED,
    name="my flow",
    project_id="my-project",
    conf=_BODY["config"],
)
CONFIRM_AUDIT = _one("Approved", audit_id=AUDIT_HERE, status="APPROVED")
TERMINATE_AUDIT = _one("A question", audit_id=AUDIT)
SUSPEND_JOB = _one("A job", job_id=JOB_HERE)
STOP_JOB = _one("A whole job", job_id=JOB, outcome="STOPPED")
STOP_ALL = _one("A whole job", job_id=JOB_HERE)
RERUN = _one("From a task", job_id=JOB_HERE, new_job_id="job-again", **{"from": _NAME})
STOP_TASK_OF_JOB = _one("A task of a job", job_id=JOB_HERE, task_name=_NAME)
CALLBACK = _one("A container that has begun", task_id=TASK, status="RUNNING", role="guest")
DELETE = _one("A version of a provider", name="example", version="1.0.0")
