"""What the transport's endpoints say of themselves in the OpenAPI document."""

from typing import Any

_ANSWER_EXAMPLE = {"code": "E0000000000", "message": "success", "metadata": {}, "content": "", "payload": ""}


def _header(name: str, about: str, example: str, *, required: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": about,
        "schema": {"type": "string"},
        "example": example,
    }


def _about(
    summary: str,
    properties: dict[str, Any],
    required: list[str],
    example: dict[str, Any],
    headers: list[dict[str, Any]],
) -> dict[str, Any]:
    body = {"type": "object", "properties": properties, "required": required, "example": example}
    answer = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "E0000000000, or why it failed"},
            "message": {"type": "string"},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            "content": {"type": "string", "format": "byte"},
            "payload": {"type": "string", "format": "byte", "description": "the same bytes as content"},
        },
        "required": ["code", "message"],
        "example": _ANSWER_EXAMPLE,
    }
    answered = {"content": {"application/json": {"schema": answer}}}
    return {
        "summary": summary,
        "openapi_extra": {
            "parameters": [_SESSION, *headers],
            "requestBody": {"required": bool(required), "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": {"description": "the code tells success from failure", **answered},
                "413": {"description": "the body is over the limit", **answered},
            },
        },
    }


_SESSION = _header("x-ptp-session-id", "session; session_<job id>", "session_example", required=True)
_TARGET = _header("x-ptp-target-node-id", "the node that is to receive it", "JG0100001100000010", required=True)
_FROM = _header("x-ptp-target-node-id", "own node or none: any source; a peer: that source only", "")
_TOKEN = _header("x-ptp-token", "config.token; Docker containers may leave it out: their address tells", "")
_POP_ID = _header("x-ptp-pop-id", "names one logical pop; its repeat gets the same message", "")
_TOPIC = {"type": "string", "maxLength": 4096, "default": ""}
_TIMEOUT = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": "^[0-9]{1,9}$"}],
    "description": "milliseconds; below 1000 it is seconds; 0 or absent: the default",
}
_PAYLOAD = {"type": "string", "format": "byte", "description": "Base64"}
_METADATA = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "sequence: a repeat with the same one is stored once",
}

PUSH = _about(
    "Append a message to a topic on the target node",
    {"topic": _TOPIC, "payload": _PAYLOAD, "metadata": _METADATA},
    ["payload"],
    {"topic": "guest.0-host.0", "payload": "aGVsbG8=", "metadata": {"sequence": "1"}},
    [_TARGET, _TOKEN],
)
POP = _about(
    "Take the next message of a topic; wait for it if there is none",
    {"topic": _TOPIC, "timeout": _TIMEOUT},
    [],
    {"topic": "guest.0-host.0", "timeout": 1000},
    [_FROM, _TOKEN, _POP_ID],
)
PEEK = _about(
    "Take the next message of a topic if there is one",
    {"topic": _TOPIC},
    [],
    {"topic": "guest.0-host.0"},
    [_FROM, _TOKEN, _POP_ID],
)
RELEASE = _about(
    "Drop a topic; without one, what is kept for repeats of the reader's pops",
    {"topic": _TOPIC, "timeout": _TIMEOUT},
    [],
    {"topic": "guest.0-host.0", "timeout": 10000},
    [_TOKEN],
)
INVOKE = _about(
    "Store a message that another node's transport brings",
    {"topic": _TOPIC, "payload": _PAYLOAD, "metadata": _METADATA},
    ["payload"],
    {"topic": "guest.0-host.0", "payload": "aGVsbG8=", "metadata": {"sequence": "1"}},
    [
        _header("x-ptp-version", "1: the body is the container's push; else it is wrapped in an Inbound", "1"),
        _header("x-ptp-uri", "what it is for on this node", "/v1/interconn/chan/push"),
        _header("x-ptp-source-node-id", "the sending node", "JG0100001100000011", required=True),
        _header("x-ptp-target-node-id", "this node", "JG0100001100000010"),
    ],
)
TRANSPORT = _about("Not served over HTTP: answers E0000000614", {}, [], {}, [])
