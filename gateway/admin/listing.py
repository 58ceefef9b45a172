"""``GET /api/v1/jobs``: the jobs that this node schedules or takes part in, by filters and pages."""

import math
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query

from gateway.admin.answers import Answer
from gateway.admin.deps import AfterText, Limit
from gateway.admin.parts import AdminParts
from gateway.admin.times import moments
from gateway.domain.problems import Problem
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Invalid
from gateway.http.paths import Paths
from gateway.store.listing import Place, Wanted, page
from gateway.store.serialization import to_plain

_STATUSES = [str(status) for status in JobStatus]
_OUTCOMES = [str(outcome) for outcome in Outcome]


def add_listing(router: Paths, parts: AdminParts, run: Answer) -> None:
    """Add the path."""

    @router.get("/api/v1/jobs", summary="Jobs scheduled here or taken part in, newest first", response_model=None)
    async def jobs(
        status: Annotated[str, Query(description=f"one or more of {', '.join(_STATUSES)}, with commas")] = "",
        outcome: Annotated[str, Query(description=f"one or more of {', '.join(_OUTCOMES)}")] = "",
        flow_id: Annotated[str | None, Query(description="only of this flow")] = None,
        partner: Annotated[str | None, Query(description="only with this node in a role")] = None,
        since: Annotated[str, Query(description="only created then or later, such as 2026-11-21T08:00Z")] = "",
        until: Annotated[str, Query(description="only created before that")] = "",
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Any:
        """``sides``: what this node is to the job; ``next``: what to send as ``after``, null on the last page."""

        def work() -> dict[str, Any]:
            problems: list[Problem] = []
            wanted = Wanted(
                _among(status, _STATUSES, "status", problems),
                _among(outcome, _OUTCOMES, "outcome", problems),
                flow_id,
                partner,
                *moments(problems, since=since, until=until),
            )
            place = _place(after, problems)
            if problems:
                raise Invalid(problems)
            found = page(parts.store, wanted, limit, place)
            return {
                "jobs": [to_plain(entry) for entry in found.entries],
                "next": f"{found.next.created_at!r}~{found.next.job_id}" if found.next else None,
            }

        return await run(work)


def _among(text: str, words: list[str], path: str, problems: list[Problem]) -> list[str]:
    asked = [word.strip().upper() for word in text.split(",") if word.strip()]
    if wrong := [word for word in asked if word not in words]:
        problems.append(Problem(path, f"must be among {', '.join(words)}", ", ".join(wrong)))
    return asked


def _place(text: str, problems: list[Problem]) -> Place | None:
    if not text:
        return None
    created, mark, job_id = text.partition("~")
    with suppress(ValueError):
        if mark and math.isfinite(float(created)):
            return Place(float(created), job_id)
    problems.append(Problem("after", "must be what an answer said in next", text))
    return None
