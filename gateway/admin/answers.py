"""How the operators' paths answer."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
from fastapi import Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json

from gateway.errors import GatewayError
from gateway.ports import Limiters

Answer = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs work in a thread, which also writes out the object that it returns; what the gateway can name becomes an
answer with its HTTP status."""


def answering(limiters: Limiters) -> Answer:
    """Return how a path does its work: in a thread of the limiter, with errors as answers."""

    async def answer(work: Callable[[], Any]) -> Any:
        try:
            return await anyio.to_thread.run_sync(lambda: _written(work()), limiter=limiters.rest)
        except GatewayError as error:
            return refusal(error)

    return answer


def _written(found: Any) -> Any:
    """Return an object as an answer in JSON: the framework would go through it on the event loop, and slowly."""
    if not isinstance(found, dict):
        return found
    text = to_json(found, inf_nan_mode="null", fallback=jsonable_encoder)
    return Response(text, media_type="application/json")


def refusal(error: GatewayError) -> JSONResponse:
    """Return an error as the operators' paths say it: its own HTTP status, its reason, every problem."""
    data: dict[str, Any] = {"reason": error.reason}
    if error.job_id:
        data["job_id"] = error.job_id
    if error.problems:
        data["problems"] = [
            {"path": p.path, "rule": p.rule, "got": str(p.got)}
            | ({"suggestion": p.suggestion} if p.suggestion else {})
            for p in error.problems
        ]
    body = {"code": error.code, "msg": f"{error.reason}: {error.message}", "data": data}
    return JSONResponse(body, status_code=error.code)


def named(request: Request, otherwise: str) -> str:
    """Return whose token the request came with; where no token is needed, what it says itself."""
    return str(getattr(request.state, "operator", "") or otherwise)


def noted(request: Request, before: Any, after: Any, reason: str = "") -> None:
    """Leave to the audit what a change changed; None: nothing was, or is, there."""
    request.state.audit = {"before": before, "after": after, **({"reason": reason} if reason else {})}


def looked(request: Request) -> None:
    """Leave to the audit that nothing was changed: the request only asked what would be."""
    request.state.audit = {"dry_run": True}
