"""Examples for the interface description.

They are small bodies that a fresh node accepts, in the order of the description's paths.

`JOB` and `TASK` are ids that senders choose. `TASK_HERE` and `AUDIT_HERE` stand for ids that a node
makes; a real request needs the id that the node returned.
"""

from typing import Any

from fastapi import Body
from fastapi.openapi.models import Example

from adapter.bfia import wire
from provider_registry.schema import COMPONENT_REGISTRATION, REGISTRATION, Schema

JOB = "job-example"
JOB_HERE = "job-scheduled-here"  # a job that this node schedules for another node
# A job that another node submits for audit before that node creates the job here
JOB_ASKED = "job-asked-about"
AUDIT = "audit_example"
AUDIT_HERE = f"audit_{JOB_HERE}"  # this node's audit request about the job that it schedules
TASK = "task_example"
TASK_HERE = "task_scheduled_here"  # a task of `JOB_HERE`
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
    "inputData": [
        {
            "name": "train_data",
            "description": "table",
            "category": "dataset",
            "dataFormat": ["csv"],
        }
    ],
    "outputData": [
        {
            "name": "train_data",
            "description": "table",
            "category": "dataset",
            "dataFormat": ["csv"],
        }
    ],
    "result": [{"resultCode": "00000000", "resultMessage": "ok"}],
}

A_PROVIDER: dict[str, Any] = {
    "name": "example",
    "device": "docker",
    "version": "1.0.0",
    "metadata": {"base_url": "", "image": "example:1.0.0"},
    "protocol": "bfia",
    "components_description": {"Echo": _DESCRIPTION},
}
A_COMPONENT: dict[str, Any] = {
    "imageUrl": "example:1.0.0",
    "component_info": _DESCRIPTION,
}

A_JOB: dict[str, Any] = {
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


def _body(summary: str, **value: Any) -> Any:
    """Return the declaration of a path's body; ``value``: the fields of its example."""
    return Body(openapi_examples={"example": Example(summary=summary, value=value)})


def _unparsed(
    value: dict[str, Any],
    form: Schema,
) -> dict[str, Any]:
    """Return the description of a body that its path parses without the framework.

    ``value``: its example.
    """
    fields = {
        name: {"type": field.get("type", "string")}
        for name, field in form.document["properties"].items()
    }
    schema = {
        "type": "object",
        "required": form.document["required"],
        "properties": fields,
        "description": f"{form.title}; in full: GET /api/v1/schemas/{form.name}",
    }
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": value}},
        }
    }


# For a job that another node initiates
_CONFIG_OF_PEER = A_JOB["config"] | {
    "initiator": {"role": "guest", "node_id": "JG0100001100000011"},
    "role": {"guest": ["JG0100001100000011"], "host": ["JG0100001100000010"]},
}
# job/create_all between nodes
SUBMIT_JOB = _body("A job of two parties", **(A_JOB | {"config": _CONFIG_OF_PEER}), job_id=JOB_HERE)
CREATE_JOB = _body("A job of two parties", **A_JOB, job_id=JOB)  # job/create, job/plan
JOB_ID = _body("A job", job_id=JOB)  # job/start, job/resource/apply, job/resource/return
DELETE_JOB = _body("A job", job_id=JOB, dry_run=True)
CLEAN_TASK = _body(
    "The tables and models of a task",
    job_id=JOB,
    task_name=_NAME,
    content="outputs",
    dry_run=True,
)
OUTPUT_METADATA = _body(
    "All outputs of a task at a role",
    job_id=JOB,
    task_name=_NAME,
    role="guest",
)
START_TASK = _body(
    "A task of a job",
    job_id=JOB,
    task_id=TASK,
    task_name=_NAME,
)
POLL_TASK = _body("One role of a task", task_id=TASK, role="guest")
REPORT_TASK = _body(  # task/callback between nodes
    "One role of a task",
    task_id=TASK_HERE,
    status="RUNNING",
    role="guest",
)
_JOB_ID_BODY = {
    "schema": wire.JobId.model_json_schema(),
    "example": {"job_id": JOB_HERE},
}
STATUS_ALL = {"requestBody": {"content": {"application/json": _JOB_ID_BODY}}}
STOP_TASK = _body("A task", task_id=TASK)
CONFIRM_JOB = _body("Agreed", job_id=JOB_HERE, status="READY")
APPLY_AUDIT = _body(
    "A job of two parties",
    **{field: value for field, value in A_JOB.items() if field != "config"},
    audit_id=AUDIT,
    job_id=JOB_ASKED,
    name="my flow",
    project_id="my-project",
    conf=A_JOB["config"],
)
CONFIRM_AUDIT = _body("Approved", audit_id=AUDIT_HERE, status="APPROVED")
TERMINATE_AUDIT = _body("A question", audit_id=AUDIT)
# job/suspend, job/resume, job/resource/free
JOB_HERE_ID = _body("A job", job_id=JOB_HERE)
STOP_JOB = _body("A whole job", job_id=JOB, outcome="STOPPED")
STOP_ALL = _body("A whole job", job_id=JOB_HERE)
RERUN = _body(
    "From a task",
    job_id=JOB_HERE,
    new_job_id="job-again",
    **{"from": _NAME},
)
_NEW_PARAMETERS = {"common": {_NAME: {"epochs": 5}}}
AMEND = _body(  # job/parameters
    "New parameters for a task that has not begun",
    job_id=JOB_HERE,
    parameters=_NEW_PARAMETERS,
    reason="too slow",
)
OFFER = _body(  # job/parameters/offer
    "New parameters for a task that has not begun",
    job_id=JOB,
    parameters=_NEW_PARAMETERS,
    reason="too slow",
    amendment="a1",
    by="JG0100001100000010",
)
# job/stop_task of a node's users
STOP_TASK_OF_JOB = _body("A task of a job", job_id=JOB_HERE, task_name=_NAME)
CALLBACK = _body(  # task/callback of a container
    "A container that has begun",
    task_id=TASK,
    status="RUNNING",
    role="guest",
)
_REPORT = {
    "str_report_version": "1.0",
    "str_report_type": "Passport",
    "str_tee_platform": "SGX_DCAP",
    "json_report": "{}",
}
VERIFY_REPORT = _body("A report of SGX", nonce="00FF", report=_REPORT)  # tee/uas/verify
SUBMIT_REPORT = _body(  # tee/report of a container
    "A report of SGX",
    report=_REPORT,
    pem_public_key="-----BEGIN PUBLIC KEY-----\n...\n-----END PUBLIC KEY-----\n",
)
REGISTER = _unparsed(A_PROVIDER, REGISTRATION)
REGISTER_COMPONENT = _unparsed(A_COMPONENT, COMPONENT_REGISTRATION)
# job/create_all of a node's users
CREATE_ALL = _body("One task at a guest and a host", **A_JOB)
DELETE = _body("A version of a provider", name="example", version="1.0.0")  # v2/provider/delete
HELLO = _body("Hello", node_id="JG0100001100000010")  # node/hello
UPLOAD: dict[str, Any] = {
    "file": "examples/data/breast_hetero_guest.csv",
    "head": True,
    "partitions": 16,
    "extend_sid": True,
    "meta": {
        "delimiter": ",",
        "label_name": "y",
        "match_id_name": "id",
    },
    "namespace": "experiment",
    "name": "breast_hetero_guest",
}
