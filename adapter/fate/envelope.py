"""FATE's envelope: ``{code, message, data, job_id}`` without empty fields, with HTTP status 200.

An error's ``data`` has our stable reason, our HTTP-like status and every problem: FATE reads only
``code`` and ``message``, a gateway like this one reads everything. `FateRoute` turns every
exception of a path into such a response, with the code that the path's `Codes` give for its reason.
"""

from collections.abc import Callable, Coroutine, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from adapter.body import JsonRoute, Words, refusal, words_for
from gateway.errors import DatabaseAway, GatewayError, brief, envelope, release_frames

log = structlog.get_logger(__name__)

PARTNER = "/v2/partner"
SCHEDULER = "/v2/scheduler"


class Code(IntEnum):
    """The return codes of FATE-Flow 2.2 that the gateway sends or reads."""

    SUCCESS = 0
    JOB_PARAMS_ERROR = 1000
    JOB_NOT_FOUND = 1001
    CREATE_JOB_FAILED = 1002
    UPDATE_JOB_FAILED = 1003
    KILL_JOB_FAILED = 1004
    JOB_RESOURCE_EXCEPTION = 1005
    JOB_RESOURCE_LIMIT_EXCEEDED = 1006
    INHERITANCE_FAILED = 1007
    TASK_NOT_FOUND = 2000
    START_TASK_FAILED = 2001
    UPDATE_TASK_FAILED = 2002
    KILL_TASK_FAILED = 2003
    TASK_RESOURCE_EXCEPTION = 2004
    NO_FOUND_MODEL_OUTPUT = 2005
    EXPIRED = 5000
    INVALID_PARAMETER = 5001
    NO_FOUND_APPID = 5002
    VERIFY_FAILED = 5003
    AUTHENTICATION_FAILED = 5004
    NO_PERMISSION = 5005
    EXCEPTION = 6000
    FUNCTION_RESTRICTED = 6001
    TABLE_NOT_FOUND = 7001
    TABLE_EXISTS = 7002


# Our stable reason -> FATE's code, unless the path has a code of its own for it.
CODES_BY_REASON: Mapping[str, Code] = {
    "JOB_UNKNOWN": Code.JOB_NOT_FOUND,
    "TASK_UNKNOWN": Code.TASK_NOT_FOUND,
    "ROLE_UNKNOWN": Code.TASK_NOT_FOUND,
    "RESOURCES_BUSY": Code.JOB_RESOURCE_EXCEPTION,
    "RESOURCES_NEVER": Code.JOB_RESOURCE_LIMIT_EXCEEDED,
    "INHERITANCE_FAILED": Code.INHERITANCE_FAILED,
    "NOT_SERVED_HERE": Code.FUNCTION_RESTRICTED,
    "NOT_AUTHORISED": Code.NO_PERMISSION,
    "NO_TOKEN": Code.AUTHENTICATION_FAILED,
    "TOKEN_UNKNOWN": Code.AUTHENTICATION_FAILED,
    "TOKEN_EXPIRED": Code.AUTHENTICATION_FAILED,
    "TOKEN_REVOKED": Code.AUTHENTICATION_FAILED,
    "SIGNATURE_EXPIRED": Code.EXPIRED,
    "SIGNATURE_MISSING": Code.INVALID_PARAMETER,
    "SIGNATURE_WRONG": Code.VERIFY_FAILED,
    "SIGNATURE_USED": Code.VERIFY_FAILED,
    "APP_UNKNOWN": Code.NO_FOUND_APPID,
    "INVALID": Code.INVALID_PARAMETER,
    "TOO_LARGE": Code.INVALID_PARAMETER,
}

# A path's own codes by reason, which precede `CODES_BY_REASON`. Two keys are no reasons:
Codes = Mapping[str, Code]
ALWAYS = "*"  # its code applies to every reason, before all other codes
OTHERWISE = ""  # its code applies to a reason that is neither here nor in `CODES_BY_REASON`
# At these paths FATE has no code for a job or task that it does not find: it raises an exception.
NO_JOB: Codes = {"JOB_UNKNOWN": Code.EXCEPTION}
NO_TASK: Codes = {**NO_JOB, "TASK_UNKNOWN": Code.EXCEPTION}
# At these paths FATE reports an unknown job as an unknown task.
_NO_JOB_OR_TASK = {"JOB_UNKNOWN": Code.TASK_NOT_FOUND}
# Path between nodes -> its effect here, and its codes.
PATHS: Mapping[str, tuple[str, Codes]] = {
    f"{PARTNER}/job/create": (
        "create_job, once for all roles of the node",
        {ALWAYS: Code.CREATE_JOB_FAILED},
    ),
    f"{PARTNER}/job/status/update": (
        "an end: stop_job with it; `running`: start_job; `waiting` after an end: create_job again",
        {**NO_JOB, OTHERWISE: Code.UPDATE_JOB_FAILED},
    ),
    f"{PARTNER}/job/update": (
        "what this node shows of the job while FATE does not tell more",
        {OTHERWISE: Code.UPDATE_JOB_FAILED},
    ),
    f"{PARTNER}/job/resource/apply": ("hold", {OTHERWISE: Code.JOB_RESOURCE_EXCEPTION}),
    f"{PARTNER}/job/resource/return": ("give_back", {OTHERWISE: Code.JOB_RESOURCE_EXCEPTION}),
    f"{PARTNER}/job/start": ("start_job", NO_JOB),
    f"{PARTNER}/job/stop": ("stop_job", {OTHERWISE: Code.KILL_JOB_FAILED}),
    f"{PARTNER}/task/resource/apply": (
        "refused while as many tasks run as the job holds for, or a person has still to agree",
        {"RESOURCES_BUSY": Code.TASK_RESOURCE_EXCEPTION, OTHERWISE: Code.TASK_RESOURCE_EXCEPTION},
    ),
    f"{PARTNER}/task/resource/return": (
        "nothing: a task returns what it has at its end",
        {OTHERWISE: Code.TASK_RESOURCE_EXCEPTION},
    ),
    f"{PARTNER}/task/start": (
        "start_task, once for all roles of the node",
        {**NO_TASK, OTHERWISE: Code.START_TASK_FAILED},
    ),
    f"{PARTNER}/task/collect": ("poll_task", _NO_JOB_OR_TASK),
    f"{PARTNER}/task/status/update": (
        "nothing: a node's runs tell their state",
        {**NO_TASK, OTHERWISE: Code.UPDATE_TASK_FAILED},
    ),
    f"{PARTNER}/task/stop": ("stop_task", {**_NO_JOB_OR_TASK, OTHERWISE: Code.KILL_TASK_FAILED}),
    f"{PARTNER}/task/rerun": (
        "nothing: the next version begins when it is started",
        _NO_JOB_OR_TASK,
    ),
    f"{SCHEDULER}/job/create": (
        "submit_job, under an id made here",
        {ALWAYS: Code.CREATE_JOB_FAILED},
    ),
    f"{SCHEDULER}/job/stop": ("stop_job", {OTHERWISE: Code.KILL_JOB_FAILED}),
    f"{SCHEDULER}/job/rerun": ("rerun_job: a new job that takes over what had succeeded", NO_JOB),
    f"{SCHEDULER}/task/report": ("report_task", {**NO_TASK, OTHERWISE: Code.UPDATE_TASK_FAILED}),
}


class Envelope(BaseModel):
    """FATE's envelope. Errors have the same form, with HTTP 200 and another code."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    code: int = Field(
        examples=[0],
        description="0, or one of FATE's codes",
    )
    message: str = Field(examples=["success"])
    data: Any = Field(default=None, description="as in FATE-Flow; absent where there is none")


def ok(
    data: Any = None,
    *,
    job_id: str = "",
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> Envelope:
    """Return a success without empty fields; ``extra`` fields are siblings of ``data``."""
    body = {
        **extra,
        "code": int(Code.SUCCESS),
        "message": "success",
    }
    if data is not None:
        body["data"] = data
    if job_id:
        body["job_id"] = job_id
    return Envelope.model_construct(**body)


def fault(
    error: GatewayError,
    codes: Codes | None = None,
    words: Words = str,
) -> dict[str, Any]:
    """Return the envelope of an error.

    - ``codes``: the path's own; None: only `CODES_BY_REASON` applies
    - ``words`` rewrites the error's texts
    """
    body = envelope(error, words)
    return {
        "code": int(_code_of(error.reason, codes or {})),
        "message": body["msg"],
        "data": {**body["data"], "status": error.code},
    }


def _code_of(reason: str, codes: Codes) -> Code:
    """Return FATE's code for a reason; ``codes``: the path's own.

    In the order of precedence, the code is the path's for every reason (`ALWAYS`), the path's for
    this reason, the usual one of this reason, and the path's for other reasons (`OTHERWISE`).
    """
    candidates = (
        codes.get(ALWAYS),
        codes.get(reason),
        CODES_BY_REASON.get(reason),
        codes.get(OTHERWISE),
    )
    for code in candidates:
        if code is not None:
            return code
    return Code.EXCEPTION


class NotServedHere(GatewayError):
    """A path of FATE's that this gateway does not serve."""

    reason = "NOT_SERVED_HERE"
    code = 404


class FateRoute(JsonRoute):
    """A path that responds with FATE's envelope, also to errors.

    Its codes are declared as ``x-codes`` in OpenAPI.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        **options: Any,
    ) -> None:
        super().__init__(path, endpoint, **{**options, "response_model_exclude_unset": True})
        declared = (self.openapi_extra or {}).get("x-codes", {})
        self.codes: Codes = {str(reason): Code(code) for reason, code in declared.items()}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the path's handler, which turns errors into responses."""
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                return self._response(request, error)

        return handle_errors

    def _response(self, request: Request, error: Exception) -> JSONResponse:
        """Return the response to an error, and note it for the audit log."""
        gateway_error = _as_gateway_error(request, error)
        request.state.refused = brief(gateway_error)
        codes = None
        if gateway_error is error:
            # Errors of the framework, such as a body of the wrong form, have the same codes at
            # every path.
            codes = self.codes
        body = fault(gateway_error, codes, words_for(request.app))
        return JSONResponse(body, status_code=_http_status(gateway_error))


def _http_status(error: GatewayError) -> int:
    """Return the HTTP status of an error: 200, as FATE repeats a request after any other status.

    503 while the database does not respond, so that FATE repeats the request.
    """
    if isinstance(error, DatabaseAway):
        return 503
    return 200


def _as_gateway_error(request: Request, error: Exception) -> GatewayError:
    """Return the error to report for any exception; an unexpected exception is logged."""
    match error:
        case GatewayError():
            release_frames(error)
            return error
        case RequestValidationError():
            release_frames(error)
            return refusal(request, error)
        case HTTPException():
            return GatewayError(str(error.detail), reason="INVALID")
        case ClientDisconnect():
            return GatewayError("the body must be sent to its end", reason="BROKEN_OFF")
        case _:
            log.error(
                "unexpected error",
                path=request.url.path,
                exc_info=error,
            )
            return GatewayError("internal error; the gateway's log has the details")


def codes_extra(codes: Codes) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a path with codes of its own."""
    return {"x-codes": {reason: int(code) for reason, code in codes.items()}}


_ALL_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]

# Paths of FATE's own workers -> what a component does here instead.
FOR_WORKERS: Mapping[str, str] = {
    "/v2/worker": (
        "a container reads its environment, writes to the storage that is named there, and "
        "reports to its callback"
    )
}


def refusing_router(
    prefixes: Mapping[str, str],
    tag: str = "not served",
) -> APIRouter:
    """Return routes that refuse all paths below some prefixes as not served here.

    ``prefixes``: prefix -> what to use instead.
    """
    router = APIRouter(tags=[tag], route_class=FateRoute)
    for prefix, instead in prefixes.items():
        # A default value binds the variable of the loop, which would change until the call.
        async def refuse(request: Request, instead: str = instead) -> None:
            raise NotServedHere(f"{request.url.path} is not served here: {instead}")

        for path in (prefix, prefix + "/{rest:path}"):
            router.add_api_route(
                path,
                refuse,
                methods=_ALL_METHODS,
                include_in_schema=False,
            )
    return router


# Paths below ``/v2`` that are not FATE's: those of the standard and of the users' interface.
_OTHER_PREFIXES = ("/v2/schedule/", "/v2/provider/", "/v2/component/")
_SENT_AS_200 = (404, 405, 413)  # HTTP statuses of the framework after which FATE would repeat


def fate_response(
    path: str,
    error: GatewayError,
    status: int,
) -> JSONResponse | None:
    """Return FATE's response to a request that no route serves; None if the path is not FATE's.

    FATE's own nodes and tools read only FATE's envelope, and its nodes repeat a request if the HTTP
    status is not 200.
    """
    if not _is_fate_path(path):
        return None
    if status in _SENT_AS_200:
        status = 200
    return JSONResponse(fault(error), status_code=status)


def _is_fate_path(path: str) -> bool:
    """True for a path that FATE's nodes and tools call.

    The standard and the users' own interface have paths below ``/v2``, too.
    """
    if not path.startswith("/v2/"):
        return False
    return not f"{path}/".startswith(_OTHER_PREFIXES)
