"""``/api/v1/jobs/…/metadata``: what an output is like, wherever it lies; what is in it stays at its node."""

from typing import Annotated, Any

import anyio.to_thread
from fastapi import Path

from gateway.admin.answers import refusal
from gateway.data.outputs import OutputFacts, Wanted
from gateway.errors import GatewayError
from gateway.http.paths import Paths
from gateway.ports import Limiters

ALL = "/api/v1/jobs/{job_id}/metadata/{task}/{party}"
ONE = ALL + "/{key}"
Party = Annotated[str, Path(description="`host.0`, or `host` for all parties of the role", examples=["host.0"])]


def router(facts: OutputFacts, limiters: Limiters) -> Paths:
    """Return the paths."""
    router = Paths(tags=["operators"])

    async def answer(wanted: Wanted) -> Any:
        def work() -> dict[str, Any]:
            return {"outputs": [one.as_dict() for one in facts.known(wanted)]}

        try:
            return await anyio.to_thread.run_sync(work, limiter=limiters.peers)
        except GatewayError as error:
            return refusal(error)

    @router.get(ALL, summary="What a task's outputs are like, at this node or at a partner", response_model=None)
    async def of_task(job_id: str, task: str, party: Party) -> Any:
        """Columns, count and size, never a row. A partner tells of what it has granted: `data grant` there.

        ``outputs`` are those it has granted; where it has granted none it refuses (NOT_AUTHORISED).
        """
        return await answer(Wanted(job_id, task, party))

    @router.get(ONE, summary="What one output is like, at this node or at a partner", response_model=None)
    async def of_one(job_id: str, task: str, party: Party, key: str) -> Any:
        return await answer(Wanted(job_id, task, party, key))

    return router
