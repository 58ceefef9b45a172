"""``docs/endpoints.md``: every path of every listener, from their OpenAPI documents."""

import asyncio
import contextlib
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from adapter.bfia.platform import SCHEDULE
from gateway.auth import Role, roles_for
from gateway.bootstrap.node import Gateway
from gateway.config.loader import load
from gateway.config.schema import Settings
from tools.docs import code, table, translated

_INTRO = {
    "en": """# Endpoints

A node has three listeners; each serves its own paths and responds to others with 404. On each,
`/openapi.json` describes bodies, responses and examples; `/docs` on the operators' listener shows
them in a browser. With `auth.mode: on` the operators' listener requires a token (`/docs` asks for
it in the page); the last column names the roles with access. Lists have pages: send `next` of a
response as `after`; the default of `limit` is 100 (`/api/v1/events` has pages of 1000 and no
`limit`). Paths below `/v2/partner` and `/v2/scheduler` are served with `fate.enabled` only. Paths
of jobs and logs below `/v1/platform/schedule` are also served below `/v2/schedule`;
`job/status_all`, `task/get_log_line` and `task/get_log` take GET and POST. 中文版:
[endpoints.zh-CN.md](endpoints.zh-CN.md).""",
    "zh": """# 接口

节点有三个监听端口，各自只提供自己的路径，对其他端口的路径返回 404。每个端口的 `/openapi.json`
给出报文、应答与示例，管理端口的 `/docs` 在浏览器中给出同样内容。
`auth.mode: on` 时管理端口要求令牌（`/docs` 页面内输入），最后一列为可用的角色。列表分页：把应答中的 `next` 作为 `after` 发送，`limit` 默认 100
（`/api/v1/events` 每页 1000，不接受 `limit`）。`/v2/partner`、`/v2/scheduler`
仅在 `fate.enabled` 时提供。`/v1/platform/schedule` 下作业与日志的路径也可写作 `/v2/schedule`；`job/status_all`、`task/get_log_line`、`task/get_log` 同时支持 GET 与 POST。
English: [endpoints.md](endpoints.md)。""",
}
_LISTENERS = {
    "operator": {
        "en": "For this node's operators and platform",
        "zh": "管理端口：供本节点的平台与管理员使用",
    },
    "peer": {"en": "For other nodes", "zh": "节点间端口：供其他节点使用"},
    "container": {"en": "For this node's containers", "zh": "容器端口：供本节点的容器使用"},
}
_COLUMNS = {
    "en": ("Method", "Path", "What", "Roles"),
    "zh": ("方法", "路径", "摘要", "角色"),
}
_OPEN = {"en": "no token needed", "zh": "无需令牌"}
_EVERY = {"en": "every role", "zh": "所有角色"}
# Paths of the operators' listener that need no token.
_UNGUARDED = ("/health/live", "/health/ready", "/api/v1/session/ways")
_METHODS = ("get", "put", "post", "patch", "delete")
_ANY_PORT = {"bind": "127.0.0.1:0"}


@dataclass(frozen=True, order=True)
class _Endpoint:
    """A method of a path."""

    path: str
    method: str  # in upper case
    summary: str
    parameters: str  # names of query parameters as the page shows them; empty for most paths


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh)."""
    sections = [_INTRO[language]]
    for listener, title in _LISTENERS.items():
        endpoints = _endpoint_table(listener, language)
        sections.append(f"## {title[language]} (`listen.{listener}`)\n\n{endpoints}")
    return "\n\n".join(sections) + "\n"


def _endpoint_table(listener: str, language: str) -> str:
    """Return a table of a listener's endpoints; only operators' endpoints depend on roles."""
    width = 4 if listener == "operator" else 3
    rows = []
    for endpoint in _endpoints(listener):
        summary = translated(endpoint.summary, language) + endpoint.parameters
        roles = _roles(endpoint, language)
        rows.append((endpoint.method, code(endpoint.path), summary, roles)[:width])
    return table(_COLUMNS[language][:width], rows)


def _endpoints(listener: str) -> list[_Endpoint]:
    """Return everything that a listener's OpenAPI document describes, sorted by path."""
    endpoints = []
    for path, operations in described()[listener]["paths"].items():
        for method in _METHODS:
            if method not in operations:
                continue
            operation = operations[method]
            summary = str(operation.get("summary", ""))
            parameters = _parameters(path, method, operation)
            endpoints.append(_Endpoint(path, method.upper(), summary, parameters))
    return sorted(endpoints)


def _parameters(
    path: str,
    method: str,
    operation: Any,
) -> str:
    """Return the parameters of a read path of the standard, such as `` (`job_id`)``; else ""."""
    is_read_of_standard = path.startswith(SCHEDULE) and method == "get"
    if not is_read_of_standard or not operation.get("parameters"):
        return ""
    names = [code(parameter["name"]) for parameter in operation["parameters"]]
    return f" ({', '.join(names)})"


def _roles(endpoint: _Endpoint, language: str) -> str:
    """Return the roles with access to an endpoint of the operators' listener."""
    if endpoint.path in _UNGUARDED:
        return _OPEN[language]
    roles = roles_for(endpoint.method, endpoint.path)
    if len(roles) == len(Role):
        return _EVERY[language]
    return ", ".join(roles)


@cache
def described() -> dict[str, Any]:
    """Return the OpenAPI documents of a node that serves everything, by listener.

    The node is built in a temporary folder, but not started.
    """
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        node = Gateway(_settings(Path(folder)))
        try:
            return {listener: asyncio.run(_openapi(node, listener)) for listener in _LISTENERS}
        finally:
            node.stop()


def _settings(home: Path) -> Settings:
    """Return settings of a node with all its files in one folder."""
    return load(
        None,
        {
            "node": {"id": "JG0100001100000010"},
            "engine": {"kind": "process"},
            "listen": dict.fromkeys(_LISTENERS, _ANY_PORT),
            "database": {"url": f"sqlite:///{home / 'gateway.db'}"},
            "storage": {"url": f"file://{home / 'storage'}"},
            "state_dir": str(home / "state"),
            "fate": {"enabled": True},
        },
    )


async def _openapi(node: Gateway, listener: str) -> Any:
    """Return the OpenAPI document of a listener."""
    transport = httpx.ASGITransport(app=node.apps[listener])
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        response = await client.get("/openapi.json")
        return response.json()
