"""``/api/v1/audit`` and ``/api/v1/tokens``: who changed what here, and who may."""

from typing import Annotated, Any

from fastapi import Query

from gateway.admin.answers import Answer
from gateway.admin.deps import AfterNumber, AfterText, Limit
from gateway.admin.times import moments
from gateway.auth import Token, token_place
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.http.pagination import page_of
from gateway.http.paths import Paths
from gateway.store.access import SqlAudit, SqlTokens
from gateway.store.serialization import to_plain


def add_audit(router: Paths, audit: SqlAudit, tokens: SqlTokens, run: Answer) -> None:
    """Add the paths."""

    @router.get("/api/v1/audit", summary="Who asked for which change, and how that went", response_model=None)
    async def entries(
        after: AfterNumber = None,
        limit: Limit = 100,
        who: Annotated[str | None, Query(description="only by this person or node")] = None,
        action: Annotated[str | None, Query(description="only whose action holds this text")] = None,
        since: Annotated[str, Query(description="only then or later, such as 2026-11-21T08:00Z")] = "",
        until: Annotated[str, Query(description="only before that")] = "",
        refused: Annotated[bool | None, Query(description="only changes that were not made, or that were")] = None,
    ) -> Any:
        """``detail`` holds what was there ``before`` and ``after``, and the ids that were ``asked`` for.

        ``next``: send it as ``after`` for the next page; null on the last one.
        """

        def work() -> dict[str, Any]:
            problems: list[Problem] = []
            first, last = moments(problems, since=since, until=until)
            if problems:
                raise Invalid(problems)
            found = audit.list(after, limit + 1, who, action, first, last, refused)
            shown = [to_plain(e) for e in found[:limit]]
            return {"audit": shown, "next": found[limit - 1].id if len(found) > limit else None}

        return await run(work)

    @router.get("/api/v1/tokens", summary="Whose tokens there are; never their text", response_model=None)
    async def listed(after: AfterText = "", limit: Limit = 100) -> Any:
        """The oldest first. ``next``: what to send as ``after`` for the next page; null on the last one."""

        def work() -> dict[str, Any]:
            page = page_of(tokens.list(), token_place, after, limit)
            return {"tokens": [_shown(token) for token in page.entries], "total": page.total, "next": page.next}

        return await run(work)


def _shown(token: Token) -> dict[str, Any]:
    shown: dict[str, Any] = to_plain(token)
    shown.pop("digest")
    return shown
