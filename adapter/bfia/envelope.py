"""Every response of this protocol is ``{code, msg, data}``; errors too, whatever raised them.

Known endpoints respond with HTTP 200 and a non-zero code, validation included; 404, 405, 413 and 500 keep their
HTTP status, but for peers that know HTTP 200 only. Our own ``/api`` has real statuses throughout. The users' own
interface (``/v2/provider``, ``/v2/component``) has ``message`` instead of ``msg``.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia import translate
from adapter.bfia.channel import responses
from adapter.bfia.channel.codec import CHANNEL
from adapter.bfia.profiles import Profile
from adapter.bfia.wire import Answer, Empty
from adapter.bfia.wire import Response as Data
from adapter.body import JsonRoute, Words, model_of, refusal, words_for
from adapter.foreign_jobs import problem_of_foreign_job
from gateway.errors import (
    DatabaseAway,
    GatewayError,
    Invalid,
    StorageAway,
    TooLarge,
    brief,
    envelope,
    release,
)
from gateway.language.catalogue import ENGLISH, in_language, next_step, of_header

log = structlog.get_logger(__name__)

_OWN_INTERFACE = ("/v2/provider", "/v2/component")
_REAL_STATUSES = "/api/"
_OPERATORS = (_REAL_STATUSES, "/v1/platform/", "/v2/schedule/", *_OWN_INTERFACE)
"""paths whose refusals go to people"""
_KEPT_STATUS = frozenset({404, 405, 413, 415})
_REASONS = {
    404: "PATH_UNKNOWN",
    405: "METHOD_NOT_ALLOWED",
    413: "TOO_LARGE",
    415: "MEDIA_TYPE",
    422: "INVALID",
}

D = TypeVar("D", bound=Data)
_ANSWER = Answer[Any]  # kept, as pydantic builds a type without a reference anew at every use
Elsewhere = Callable[[str, GatewayError, int], JSONResponse | None]
"""path, error, HTTP status -> the response of another protocol whose path it is; None: it is not theirs"""


class Route(JsonRoute):
    """A path of this protocol: its response has the fields that were set, and is not checked again."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        **options: Any,
    ) -> None:
        super().__init__(path, _written(endpoint), **options)


def _written(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def written(*given: Any, **named: Any) -> Any:
        made: BaseModel = await endpoint(*given, **named)
        text = made.__pydantic_serializer__.to_json(made, exclude_unset=True, by_alias=True)
        return Response(text, media_type="application/json")

    return written


def ok(data: D | None = None, profile: Profile | None = None) -> Answer[D]:
    """Return a success, with the code that the peer's profile understands as such."""
    return _ANSWER(
        code=profile.answer_code if profile else 0,
        msg="success",
        data=data or Empty(),
    )


def install(
    app: FastAPI,
    as_200: Callable[[Request], bool] = lambda request: False,
    elsewhere: Elsewhere = lambda path, error, status: None,
    words: Words | None = None,
) -> None:
    """Make every error of this application respond in the envelope.

    ``as_200`` tells whether a request's sender expects HTTP 200 whatever happens; ``elsewhere`` responds to what
    is not served of another protocol's paths; ``words`` rewrites messages for their readers.
    """
    words = words_for(app, words)

    def status_for(request: Request, status: int) -> int:
        return 200 if as_200(request) else status

    @app.exception_handler(GatewayError)
    async def known(request: Request, error: GatewayError) -> JSONResponse:
        release(error)
        request.state.refused = brief(error)
        away = isinstance(error, (DatabaseAway, StorageAway))
        status = 413 if error.code == 413 else 503 if away else _decided(request, error.code)
        return _answer(request, status_for(request, status), error, words)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        release(error)
        wrong = _invalid(request, error)
        request.state.refused = brief(wrong)
        return _answer(request, _decided(request, wrong.code), wrong)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code, path = error.status_code, request.url.path
        status = code if code in _KEPT_STATUS else _decided(request, code)
        texts = {
            404: f"no such path on this listener: {path}",
            405: f"{request.method} is not served at {path}",
        }
        found = GatewayError(
            texts.get(code, str(error.detail)), reason=_REASONS.get(code, "BAD_REQUEST")
        )
        found.code = code
        answer = elsewhere(path, found, status) or _answer(
            request, status_for(request, status), found
        )
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.error("unexpected error", path=request.url.path, exc_info=error)
        found = GatewayError("an error inside the gateway; its log has the trace")
        return _answer(request, status_for(request, 500), found)


def _invalid(request: Request, error: RequestValidationError) -> Invalid:
    model = model_of(request)
    foreign = problem_of_foreign_job(error.body) if translate.is_job(model) else None
    if foreign is not None:
        return Invalid([foreign])
    return Invalid([*refusal(request, error).problems, *translate.job_problems(error.body, model)])


def denial(
    scope: Scope,
    error: GatewayError,
    elsewhere: Elsewhere,
) -> Response:
    """Return the response to a request that is denied before any path of this protocol sees it."""
    if scope["path"].startswith(CHANNEL):
        return responses.refusal(error, responses.form_for(scope["headers"]))
    return elsewhere(scope["path"], error, 200) or _answer(Request(scope), 200, error)


def refused_body(
    scope: Scope,
    error: Invalid,
    as_200: Callable[[Request], bool],
    elsewhere: Elsewhere,
) -> Response:
    """Return the response to a request whose body cannot be decoded."""
    if scope["path"].startswith(CHANNEL):
        return responses.refusal(error, responses.form_for(scope["headers"]))
    request = Request(scope)
    status = error.code if error.code in _KEPT_STATUS else _decided(request, error.code)
    if as_200(request):
        status = 200
    return elsewhere(scope["path"], error, status) or _answer(request, status, error)


def too_large_in_envelope(
    app: ASGIApp,
    as_200: Callable[[Request], bool] = lambda request: False,
    elsewhere: Elsewhere = lambda path, error, status: None,
) -> ASGIApp:
    """Put the refusal of a too large body into the envelope: the framework's limiter sends plain text."""

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        replaced = False

        async def pass_on(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 413:
                content_type = Headers(raw=message["headers"]).get("content-type", "")
                replaced = content_type.startswith("text/plain")
                if replaced:
                    error = TooLarge("the body is larger than this path takes")
                    status = 200 if as_200(Request(scope)) else 413
                    answer = elsewhere(scope["path"], error, 413) or _answer(
                        Request(scope), status, error
                    )
                    answer.headers["connection"] = "close"
                    await answer(scope, receive, send)
            if not replaced:
                await send(message)

        await app(scope, receive, pass_on)

    return served


def _decided(request: Request, code: int) -> int:
    return code if request.url.path.startswith(_REAL_STATUSES) else 200


def _answer(
    request: Request,
    status: int,
    error: GatewayError,
    words: Words = str,
) -> JSONResponse:
    language = of_header(request.headers.get("accept-language", ""))
    body = envelope(error, words)
    if language != ENGLISH:
        body = in_language(body, error.reason, language, error.node)
    step = next_step(error.reason, language, error.node)
    if step and request.url.path.startswith(_OPERATORS):
        body["data"]["next_step"] = step
    if request.url.path.startswith(_OWN_INTERFACE):
        body["message"] = body.pop("msg")
    return JSONResponse(body, status_code=status)
