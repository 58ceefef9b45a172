"""Every answer of this protocol is ``{code, msg, data}``; errors too, whatever raised them.

Known endpoints answer HTTP 200 with a non-zero code, validation included; 404, 405, 413 and 500 keep their HTTP
status, but for peers that know HTTP 200 only. Our own ``/api`` has real statuses throughout. The user's own
interface (``/v2/provider``, ``/v2/component``) says ``message`` instead of ``msg``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia import validation
from adapter.bfia.channel import responses
from adapter.bfia.profiles import Profile
from adapter.problems import Words, model_of, refusal, words_for
from gateway.domain.problems import Problem
from gateway.errors import DatabaseAway, GatewayError, Invalid, TooLarge, brief, listed, release, shown

log = structlog.get_logger(__name__)

_OWN_INTERFACE = ("/v2/provider", "/v2/component")
_REAL_STATUSES = "/api/"
_KEPT_STATUS = frozenset({404, 405, 413})
_LONGEST_TEXT = 20_000
_REASONS = {404: "PATH_UNKNOWN", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE", 415: "MEDIA_TYPE", 422: "INVALID"}


def ok(data: Mapping[str, Any] | None = None, profile: Profile | None = None, **extra: Any) -> dict[str, Any]:
    """Return a success; ``extra`` are fields that one peer reads beside ``data``."""
    code = profile.answer_code if profile else 0
    return {"code": code, "msg": "success", "data": dict(data or {}), **extra}


def _never(request: Request) -> bool:
    return False


Elsewhere = Callable[[str, GatewayError, int], JSONResponse | None]
"""Path, error, HTTP status -> the answer of another protocol whose path it is; None where it is none of theirs."""


def _nowhere(path: str, error: GatewayError, status: int) -> None:
    return None


def install(
    app: FastAPI,
    as_200: Callable[[Request], bool] = _never,
    elsewhere: Elsewhere = _nowhere,
    words: Words | None = None,
) -> None:
    """Make every error of this application answer in the envelope.

    ``as_200`` says of a request whether its sender expects HTTP 200 whatever happens; ``elsewhere`` answers what
    is not served of another protocol's paths; ``words`` turns what is told into words for those who hear it.
    """
    words = words_for(app, words)

    def status_for(request: Request, status: int) -> int:
        return 200 if as_200(request) else status

    def decided(request: Request, code: int) -> int:
        """Return the status of what a known path decides."""
        return code if request.url.path.startswith(_REAL_STATUSES) else 200

    @app.exception_handler(GatewayError)
    async def known(request: Request, error: GatewayError) -> JSONResponse:
        release(error)
        request.state.refused = brief(error)
        away = isinstance(error, DatabaseAway)
        status = 413 if error.code == 413 else 503 if away else decided(request, error.code)
        return _answer(
            request,
            status_for(request, status),
            error.code,
            error.reason,
            words(error.message[: 2 * _LONGEST_TEXT]),
            error.problems,
            {"job_id": error.job_id} if error.job_id else {},
            words,
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        release(error)
        wrong = refusal(request, error)
        wrong = Invalid([*wrong.problems, *validation.faults(error.body, model_of(request))])
        request.state.refused = brief(wrong)
        status = decided(request, wrong.code)
        return _answer(request, status, wrong.code, wrong.reason, wrong.message, wrong.problems)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        kept = error.status_code in _KEPT_STATUS
        status = error.status_code if kept else decided(request, error.status_code)
        reason = _REASONS.get(error.status_code, "BAD_REQUEST")
        text = str(error.detail)
        if error.status_code == 404:
            text = f"no such path on this listener: {request.url.path}"
        if error.status_code == 405:
            text = f"{request.method} is not served at {request.url.path}"
        answer = elsewhere(request.url.path, _error(error.status_code, reason, text), status)
        if answer is None:
            answer = _answer(request, status_for(request, status), error.status_code, reason, text)
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(RecursionError)
    async def too_deep(request: Request, error: RecursionError) -> JSONResponse:
        release(error)
        return _answer(request, decided(request, 400), 400, "INVALID", "the body is nested too deeply")

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.error("an error nobody foresaw", path=request.url.path, exc_info=error)
        return _answer(
            request,
            status_for(request, 500),
            500,
            "INTERNAL",
            "an error inside the gateway; its log has the trace",
        )


def denial(scope: Scope, error: GatewayError, elsewhere: Elsewhere) -> Response:
    """Return the response to a request that is denied before any path of this protocol sees it."""
    if scope["path"].startswith("/v1/interconn/chan/"):
        return responses.refusal(error)
    answer = elsewhere(scope["path"], error, 200)
    return answer or _answer(Request(scope), 200, error.code, error.reason, error.message)


class TooLargeInEnvelope:
    """Answers a body over the limit in the envelope: the server's own limiter answers it as plain text."""

    def __init__(
        self, app: ASGIApp, as_200: Callable[[Request], bool] = _never, elsewhere: Elsewhere = _nowhere
    ) -> None:
        self._app = app
        self._as_200 = as_200
        self._elsewhere = elsewhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and replace the limiter's answer where it was too large."""
        replaced = False

        async def pass_on(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 413:
                replaced = (b"content-type", b"application/json") not in message.get("headers", ())
                if replaced:
                    text = "the body is larger than this path takes"
                    status = 200 if self._as_200(Request(scope)) else 413
                    answer = self._elsewhere(scope["path"], TooLarge(text), 413)
                    answer = answer or _answer(Request(scope), status, 413, "TOO_LARGE", text)
                    answer.headers["connection"] = "close"
                    await answer(scope, receive, send)
            if not replaced:
                await send(message)

        await self._app(scope, receive, pass_on)


def _error(code: int, reason: str, text: str) -> GatewayError:
    error = GatewayError(text, reason=reason)
    error.code = code
    return error


def _answer(
    request: Request,
    status: int,
    code: int,
    reason: str,
    text: str,
    problems: tuple[Problem, ...] = (),
    more: Mapping[str, str] = MappingProxyType({}),
    words: Words = str,
) -> JSONResponse:
    own = request.url.path.startswith(_OWN_INTERFACE)
    data: dict[str, Any] = {"reason": reason, **more}
    if problems:
        data["problems"] = listed(problems, words)
    body = {"code": code, "message" if own else "msg": shown(f"{reason}: {text}", _LONGEST_TEXT), "data": data}
    return JSONResponse(body, status_code=status)
