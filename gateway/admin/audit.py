"""``/api/v1/audit`` and ``/api/v1/tokens``: who changed what here, and who may."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.access import Token
from gateway.admin.answers import Answer
from gateway.store.access import SqlAudit, SqlTokens
from gateway.store.store import to_plain


def add_audit(router: APIRouter, audit: SqlAudit, tokens: SqlTokens, run: Answer) -> None:
    """Add the paths."""

    @router.get("/api/v1/audit", summary="Who asked for which change, and how that went", response_model=None)
    async def entries(
        before: Annotated[int | None, Query(description="only entries older than this id")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        who: str | None = None,
    ) -> Any:
        return await run(lambda: {"audit": [to_plain(e) for e in audit.list(before, limit, who)]})

    @router.get("/api/v1/tokens", summary="Whose tokens there are; never their text", response_model=None)
    async def listed() -> Any:
        return await run(lambda: {"tokens": [_shown(token) for token in tokens.list()]})


def _shown(token: Token) -> dict[str, Any]:
    shown: dict[str, Any] = to_plain(token)
    shown.pop("digest")
    return shown
