"""Every answer of this protocol is ``{code, message, data, job_id}``, without what is empty; HTTP status 200.

An error's ``data`` names our stable reason, our HTTP-like status and every problem: FATE reads ``code`` and
``message`` only, a gateway like this one reads all of it. `FateRoute` turns whatever a path raises into such an
answer; which code a path gives is told by `Codes`, one table per family of paths.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from adapter.fate.codes import OF_REASON, Code
from adapter.json import JsonRoute
from adapter.problems import Words, listed, refusal, shown, words_for
from gateway.errors import DatabaseAway, GatewayError, brief, release

log = structlog.get_logger(__name__)

_LONGEST_TEXT = 20_000

Codes = Mapping[str, Code]
"""Reason -> code, before the general table; ``""`` stands for every reason that is in neither."""
ANY = "*"
"""in `Codes`: every reason, before all else"""


def ok(data: Any = None, *, job_id: str = "", message: str = "success", **more: Any) -> dict[str, Any]:
    """Return a success, with what is not None or empty of its fields."""
    body: dict[str, Any] = {"code": int(Code.SUCCESS), "message": message}
    if data is not None:
        body["data"] = data
    if job_id:
        body["job_id"] = job_id
    return body | more


def fault(error: GatewayError, codes: Codes | None = None, words: Words = str) -> dict[str, Any]:
    """Return an error as this protocol tells it, in ``words`` for those who hear it."""
    codes = codes or {}
    found = (codes.get(ANY), codes.get(error.reason), OF_REASON.get(error.reason), codes.get(""))
    code = next((code for code in found if code), Code.EXCEPTION)
    data: dict[str, Any] = {"reason": error.reason, "status": error.code}
    if error.problems:
        data["problems"] = listed(error.problems, words)
    text = shown(f"{error.reason}: {words(error.message[: 2 * _LONGEST_TEXT])}", _LONGEST_TEXT)
    return {"code": int(code), "message": text, "data": data}


class NotServedHere(GatewayError):
    """A path of FATE's that exists, and that this gateway does not serve."""

    reason = "NOT_SERVED_HERE"
    code = 404


class FateRoute(JsonRoute):
    """A path that answers in FATE's envelope, whatever happens; its codes stand under ``x-codes``."""

    @property
    def codes(self) -> Codes:
        """Return the path's own codes."""
        found = (self.openapi_extra or {}).get("x-codes", {})
        return {str(reason): Code(code) for reason, code in found.items()}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the path's handler, whose errors come out as answers."""
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except GatewayError as error:
                release(error)
                request.state.refused = brief(error)
                status = 503 if isinstance(error, DatabaseAway) else 413 if error.code == 413 else 200
                return JSONResponse(fault(error, self.codes, words_for(request.app)), status_code=status)
            except RequestValidationError as error:
                release(error)
                wrong = refusal(request, error)
                request.state.refused = brief(wrong)
                return JSONResponse(fault(wrong))
            except RecursionError:
                return JSONResponse(fault(GatewayError("the body is nested too deeply", reason="INVALID")))
            except HTTPException as error:
                return JSONResponse(fault(GatewayError(str(error.detail), reason="INVALID")))
            except Exception as error:
                log.error("an error nobody foresaw", path=request.url.path, exc_info=error)
                text = "an error inside the gateway; its log has the trace"
                return JSONResponse(fault(GatewayError(text)))

        return answered


def coded(codes: Codes) -> dict[str, Any]:
    """Return what a path declares as ``openapi_extra`` to answer with codes of its own."""
    return {"x-codes": {reason: int(code) for reason, code in codes.items()}}
