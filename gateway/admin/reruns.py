"""``POST /api/v1/jobs/…/rerun``: an ended job is run again from a task on, as a new job."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.answers import Answer
from gateway.admin.parts import AdminParts
from gateway.http.paths import Paths

_EXAMPLE = {"from": "train", "parameters": {"common": {"train": {"epochs": 5}}}}


class RerunBody(BaseModel):
    """What to run again, and what to change."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    start: str = Field(
        default="", alias="from", max_length=200, description="a task; else the first that has not succeeded"
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="changes of tasks that run again, as in task_params: common, then role, index, task",
    )


def add_reruns(router: Paths, parts: AdminParts, answer: Answer) -> None:
    """Add the path. ``answer`` runs work in a thread and turns refusals into answers."""

    @router.post(
        "/api/v1/jobs/{job_id}/rerun",
        summary="Run an ended job again from a task on; what came before is taken over",
        response_model=None,
    )
    async def rerun(job_id: str, body: Annotated[RerunBody | None, Body(examples=[_EXAMPLE])] = None) -> Any:
        wanted = body or RerunBody()

        def work() -> dict[str, Any]:
            made = parts.coordinator.rerun(job_id, wanted.start, wanted.parameters)
            shown = {"job_id": made.job_id, "old_job_id": job_id, "from": made.start}
            return {**shown, "runs": list(made.runs), "inherits": list(made.inherits)}

        return await answer(work)
