"""Every path between nodes, in FATE's order; the table in the documents and the routers' codes come from here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapter.fate.envelope import ANY, Code, Codes

PARTNER = "/v2/partner"
SCHEDULER = "/v2/scheduler"

_NO_JOB = {"JOB_UNKNOWN": Code.EXCEPTION}
"""FATE changes what it did not find: not a code of its own, but an exception"""


@dataclass(frozen=True)
class Endpoint:
    """One path: what it stands for here, and the codes with which it refuses."""

    path: str
    means: str
    codes: Codes


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(f"{PARTNER}/job/create", "create_job, once for all roles of the node", {ANY: Code.CREATE_JOB_FAILED}),
    Endpoint(
        f"{PARTNER}/job/status/update",
        "an end: stop_job with it; `running`: start_job; `waiting` after an end: create_job again",
        {**_NO_JOB, "": Code.UPDATE_JOB_FAILED},
    ),
    Endpoint(
        f"{PARTNER}/job/update",
        "what this node shows of the job while FATE does not tell more",
        {"": Code.UPDATE_JOB_FAILED},
    ),
    Endpoint(f"{PARTNER}/job/resource/apply", "hold", {"": Code.JOB_RESOURCE_EXCEPTION}),
    Endpoint(f"{PARTNER}/job/resource/return", "give_back", {"": Code.JOB_RESOURCE_EXCEPTION}),
    Endpoint(f"{PARTNER}/job/start", "start_job", _NO_JOB),
    Endpoint(f"{PARTNER}/job/stop", "stop_job", {"": Code.KILL_JOB_FAILED}),
    Endpoint(
        f"{PARTNER}/task/resource/apply",
        "refused while as many tasks run as the job holds for, or a person has still to agree",
        {"RESOURCES_BUSY": Code.TASK_RESOURCE_EXCEPTION, "": Code.TASK_RESOURCE_EXCEPTION},
    ),
    Endpoint(
        f"{PARTNER}/task/resource/return",
        "nothing: a task returns what it has at its end",
        {"": Code.TASK_RESOURCE_EXCEPTION},
    ),
    Endpoint(
        f"{PARTNER}/task/start",
        "start_task, once for all roles of the node",
        {**_NO_JOB, "TASK_UNKNOWN": Code.EXCEPTION, "": Code.START_TASK_FAILED},
    ),
    Endpoint(f"{PARTNER}/task/collect", "poll_task", {"JOB_UNKNOWN": Code.TASK_NOT_FOUND}),
    Endpoint(
        f"{PARTNER}/task/status/update",
        "nothing: a node's runs tell their state",
        {**_NO_JOB, "TASK_UNKNOWN": Code.EXCEPTION, "": Code.UPDATE_TASK_FAILED},
    ),
    Endpoint(
        f"{PARTNER}/task/stop",
        "stop_task",
        {"JOB_UNKNOWN": Code.TASK_NOT_FOUND, "": Code.KILL_TASK_FAILED},
    ),
    Endpoint(
        f"{PARTNER}/task/rerun",
        "nothing: the next version begins when it is started",
        {"JOB_UNKNOWN": Code.TASK_NOT_FOUND},
    ),
    Endpoint(f"{SCHEDULER}/job/create", "submit_job, under an id made here", {ANY: Code.CREATE_JOB_FAILED}),
    Endpoint(f"{SCHEDULER}/job/stop", "stop_job", {"": Code.KILL_JOB_FAILED}),
    Endpoint(f"{SCHEDULER}/job/rerun", "rerun_job: a new job that takes over what had succeeded", _NO_JOB),
    Endpoint(
        f"{SCHEDULER}/task/report",
        "report_task",
        {**_NO_JOB, "TASK_UNKNOWN": Code.EXCEPTION, "": Code.UPDATE_TASK_FAILED},
    ),
)

BY_PATH: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in ENDPOINTS}


def table(endpoints: Iterable[Endpoint] = ENDPOINTS) -> str:
    """Return the endpoints as a Markdown table."""
    lines = ["| Path | Here | Refused with |", "|---|---|---|"]
    for found in endpoints:
        codes = ", ".join(map(str, sorted({int(code) for code in found.codes.values()})))
        lines.append(f"| `{found.path}` | {found.means} | {codes} |")
    return "\n".join(lines)
