"""Every response of this protocol is ``{code, msg, data}``; errors too, whatever raised them.

Known endpoints refuse with HTTP 200 and a non-zero code, validation included; 404, 405, 413, 415,
500 and 503 are real HTTP statuses, except for peers that know HTTP 200 only. Our ``/api`` has real
statuses throughout. The interface of our first users (``/v2/provider``, ``/v2/component``) has
``message`` instead of ``msg``.
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
from starlette.middleware.body_limit import MAX_BODY_SIZE_SCOPE_KEY
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia import submitted
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
    release_frames,
)
from gateway.language.catalogue import ENGLISH, add_next_steps, in_language, next_step, of_header

log = structlog.get_logger(__name__)

_USERS_INTERFACE = ("/v2/provider", "/v2/component")
_ATTESTATION = "/v1/interconn/tee/"  # the standard has real HTTP statuses there alone
_OUR_API = "/api/"  # beginning of the paths of our API, which have real HTTP statuses
# Beginnings of the paths whose refusals are read by people and have the next step
_READ_BY_PEOPLE = (_OUR_API, "/v1/platform/", "/v2/schedule/", *_USERS_INTERFACE)
# HTTP statuses of the framework's errors that are the same at every path
_STATUS_AT_EVERY_PATH = frozenset({404, 405, 413, 415})
# HTTP status of an error of the framework -> its reason
_REASONS = {
    404: "PATH_UNKNOWN",
    405: "METHOD_NOT_ALLOWED",
    413: "TOO_LARGE",
    415: "MEDIA_TYPE",
    422: "INVALID",
}

D = TypeVar("D", bound=Data)
_ANSWER = Answer[Any]  # kept here: pydantic would build the type again at every use
# Path, error, HTTP status -> the error response at a path of another protocol; None at any other
# path.
Elsewhere = Callable[[str, GatewayError, int], JSONResponse | None]
# Request -> whether its sender expects HTTP 200 in any case.
As200 = Callable[[Request], bool]


class Route(JsonRoute):
    """A path of this protocol.

    Its response has only the fields that were set, and is not validated again.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        **options: Any,
    ) -> None:
        super().__init__(path, _serializing(endpoint), **options)


def _serializing(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an endpoint: send the model that it returns as JSON.

    An endpoint that takes the request may set headers of the response as ``request.state.headers``.
    """

    @wraps(endpoint)
    async def serialize(*args: Any, **kwargs: Any) -> Response:
        model: BaseModel = await endpoint(*args, **kwargs)
        serializer = model.__pydantic_serializer__
        text = serializer.to_json(model, exclude_unset=True, by_alias=True)
        headers = None
        if "request" in kwargs:
            headers = getattr(kwargs["request"].state, "headers", None)
        return Response(text, headers=headers, media_type="application/json")

    return serialize


def ok(
    data: D | None = None,
    profile: Profile | None = None,
) -> Answer[D]:
    """Return a success, with the code that the peer's profile understands as such."""
    code: int | str = 0
    if profile is not None:
        code = profile.success_code
    return _ANSWER(code=code, msg="success", data=data or Empty())


def _never_as_200(request: Request) -> bool:
    """Return False: no sender expects HTTP 200 in any case."""
    return False


def _no_other_protocol(path: str, error: GatewayError, status: int) -> JSONResponse | None:
    """Return None: there is no other protocol with this path."""
    return None


def install(
    app: FastAPI,
    as_200: As200 = _never_as_200,
    elsewhere: Elsewhere = _no_other_protocol,
    words: Words | None = None,
) -> None:
    """Make every error of this application respond in the envelope.

    ``elsewhere`` returns the error response at a path of another protocol, None at any other path;
    ``words`` rewrites messages for their readers.
    """
    handlers = _ErrorHandlers(as_200, elsewhere, words_for(app, words))
    app.exception_handler(GatewayError)(handlers.gateway_error)
    app.exception_handler(RequestValidationError)(handlers.invalid_request)
    app.exception_handler(HTTPException)(handlers.http_error)
    app.exception_handler(ClientDisconnect)(handlers.disconnect)
    app.exception_handler(Exception)(handlers.bug)


class _ErrorHandlers:
    """The responses of an application to exceptions of its paths."""

    def __init__(
        self,
        as_200: As200,
        elsewhere: Elsewhere,
        words: Words,
    ) -> None:
        self._as_200 = as_200
        self._elsewhere = elsewhere
        self._words = words

    async def gateway_error(self, request: Request, error: GatewayError) -> JSONResponse:
        """Respond to an error that a path raised on purpose."""
        release_frames(error)
        request.state.refused = brief(error)
        if error.code == 413:
            status = 413
        elif isinstance(error, (DatabaseAway, StorageAway)):
            status = 503
        else:
            status = _status_of_path(request, error.code)
        return _respond(request, self._status(request, status), error, self._words)

    async def invalid_request(
        self, request: Request, error: RequestValidationError
    ) -> JSONResponse:
        """Respond to a request that does not fit its path's declaration."""
        release_frames(error)
        invalid = _invalid(request, error)
        request.state.refused = brief(invalid)
        status = _status_of_path(request, invalid.code)
        return _respond(request, self._status(request, status), invalid)

    async def http_error(self, request: Request, http_error: HTTPException) -> JSONResponse:
        """Respond to an error of the framework, such as an unknown path."""
        path = request.url.path
        code = http_error.status_code
        texts = {
            404: f"no such path on this listener: {path}",
            405: f"{request.method} is not served at {path}",
        }
        text = texts.get(code, str(http_error.detail))
        error = GatewayError(
            text,
            reason=_REASONS.get(code, "BAD_REQUEST"),
        )
        error.code = code
        status = self._status(request, _framework_status(request, code))
        response = self._elsewhere(path, error, status)
        if response is None:
            response = _respond(request, status, error)
        response.headers.update(http_error.headers or {})
        return response

    async def disconnect(self, request: Request, error: ClientDisconnect) -> Response:
        """Respond to a client that has left: the status is only for the log."""
        return Response(status_code=400)

    async def bug(self, request: Request, error: Exception) -> JSONResponse:
        """Respond to an unexpected exception, which is logged."""
        log.error(
            "unexpected error",
            path=request.url.path,
            exc_info=error,
        )
        without_details = GatewayError("an error inside the gateway; its log has the trace")
        return _respond(request, self._status(request, 500), without_details)

    def _status(self, request: Request, status: int) -> int:
        """Return the status, or 200 if the sender expects it in any case."""
        if self._as_200(request):
            return 200
        return status


def _invalid(request: Request, error: RequestValidationError) -> Invalid:
    """Return the problems of a request.

    For a job in another platform's form, only the problem that names the platform.
    """
    model = model_of(request)
    if submitted.is_job(model):
        problem = problem_of_foreign_job(error.body)
        if problem is not None:
            return Invalid([problem])
    problems = refusal(request, error).problems
    return Invalid([*problems, *submitted.job_problems(error.body, model)])


def denial(
    scope: Scope,
    error: GatewayError,
    elsewhere: Elsewhere,
) -> Response:
    """Return the response to a request that is denied before any path of this protocol gets it.

    Its HTTP status is 200: only requests of other nodes are denied here, never paths below
    ``/api``.
    """
    path = scope["path"]
    if path.startswith(CHANNEL):
        return responses.refusal(error, responses.response_form(scope["headers"]))
    response = elsewhere(path, error, 200)
    if response is None:
        response = _respond(Request(scope), 200, error)
    return response


def refused_body(
    scope: Scope,
    error: Invalid,
    as_200: As200,
    elsewhere: Elsewhere,
) -> Response:
    """Return the response to a request whose body cannot be decoded."""
    path = scope["path"]
    if path.startswith(CHANNEL):
        return responses.refusal(error, responses.response_form(scope["headers"]))
    request = Request(scope)
    status = _framework_status(request, error.code)
    if as_200(request):
        status = 200
    response = elsewhere(path, error, status)
    if response is None:
        response = _respond(request, status, error)
    return response


def too_large_in_envelope(
    app: ASGIApp,
    as_200: As200 = _never_as_200,
    elsewhere: Elsewhere = _no_other_protocol,
    body_bytes: int | None = None,
) -> ASGIApp:
    """Put the refusal of a too large body into the envelope, with the limit.

    The framework's limiter sends plain text. ``body_bytes`` is the setting limits.body_bytes, which
    is named where it is the limit; None if the listener has no such setting.
    """

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        is_replaced = False

        async def send_or_replace(message: Message) -> None:
            nonlocal is_replaced
            if _is_limiters_refusal(message):
                is_replaced = True  # the limiter's further messages are dropped
                response = too_large(scope)
                await response(scope, receive, send)
            if not is_replaced:
                await send(message)

        await app(scope, receive, send_or_replace)

    def too_large(scope: Scope) -> Response:
        error = TooLarge(_size_rule(scope.get(MAX_BODY_SIZE_SCOPE_KEY), body_bytes))
        request = Request(scope)
        status = 413
        if as_200(request):
            status = 200
        response = elsewhere(scope["path"], error, status)
        if response is None:
            response = _respond(request, status, error)
        response.headers["connection"] = "close"
        return response

    return serve


def _size_rule(limit: int | None, body_bytes: int | None) -> str:
    """Return the rule about the size of a body, with the setting if it is the limit.

    ``limit``: bytes at the path, as the framework's limiter notes them; None if it did not.
    """
    if limit is None:
        return "the body is larger than this path takes"
    if limit == body_bytes:
        return f"a body may have at most {limit} bytes (limits.body_bytes)"
    return f"a body may have at most {limit} bytes at this path"


def _is_limiters_refusal(message: Message) -> bool:
    """True for the start of the response with which the framework's limiter refuses a body."""
    if message["type"] != "http.response.start" or message["status"] != 413:
        return False
    content_type = Headers(raw=list(message.get("headers", ()))).get("content-type", "")
    return content_type.startswith("text/plain")


def _framework_status(request: Request, code: int) -> int:
    """Return the HTTP status of an error that the framework, not a path, has raised.

    A few statuses are the same at every path.
    """
    if code in _STATUS_AT_EVERY_PATH:
        return code
    return _status_of_path(request, code)


def _status_of_path(request: Request, code: int) -> int:
    """Return the HTTP status of a refusal: 200, or the code at our ``/api`` and for attestation."""
    if request.url.path.startswith((_OUR_API, _ATTESTATION)):
        return code
    return 200


def _with_reason_once(text: str, reason: str) -> str:
    """Return an error's text, which begins with its reason, without further mentions of it.

    Only for people: other nodes read the reason of each problem from the text.
    """
    beginning = f"{reason}: "
    rest = text.removeprefix(beginning)
    return beginning + f" {rest}".replace(f" {beginning}", " ").lstrip()


def _respond(
    request: Request,
    status: int,
    error: GatewayError,
    words: Words = str,  # a function on the error's text: ``str`` changes nothing
) -> JSONResponse:
    """Return an error in the envelope.

    It is in the language of its reader and, at paths that people use, has the next step.
    """
    language = of_header(request.headers.get("accept-language", ""))
    body = envelope(error, words)
    if language != ENGLISH:
        body = in_language(body, error.reason, language, error.node)
    path = request.url.path
    step = next_step(error.reason, language, error.node)
    if path.startswith(_READ_BY_PEOPLE):
        body["msg"] = _with_reason_once(body["msg"], error.reason)
        add_next_steps(body["data"], language)
        if step:
            body["data"]["next_step"] = step
    if path.startswith(_USERS_INTERFACE):
        body["message"] = body.pop("msg")
    return JSONResponse(body, status_code=status)
