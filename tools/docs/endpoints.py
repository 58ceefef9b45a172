"""``docs/endpoints.md``: every path of every listener, from the applications' own descriptions."""

import asyncio
import contextlib
import io
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from adapter.bfia.platform import SCHEDULE
from gateway.auth import Role, roles_for
from gateway.bootstrap.node import Gateway
from gateway.config.loader import load
from tools.docs import code, table, translated

_INTRO = {
    "en": """# Endpoints

A node has three listeners; each serves its own paths and answers 404 to those of another. `/openapi.json`
on each shows bodies, answers and examples, `/docs` on the operators' one does so in a browser.
With `auth.mode: on` the operators' listener wants a
token (`/docs` asks for it in the page); the last column names the roles that may. Lists have pages: send `next` of
an answer as `after`; `limit` is 100 unless given
(`/api/v1/events` has pages of 1000 and no `limit`). Paths below `/v2/partner` and `/v2/scheduler` are
served with `fate.enabled` only. Paths of jobs and logs below `/v1/platform/schedule` are
served below `/v2/schedule`, too; `job/status_all`, `task/get_log_line` and `task/get_log` take GET and POST.
中文版: [endpoints.zh-CN.md](endpoints.zh-CN.md).""",
    "zh": """# 接口

节点有三个监听端口，各自只提供自己的路径，对其他端口的路径返回 404。每个端口的 `/openapi.json`
给出报文、应答与示例，管理端口的 `/docs` 在浏览器中给出同样内容。
`auth.mode: on` 时管理端口要求令牌（`/docs` 页面内输入），最后一列为可用的角色。
列表分页：把应答中的 `next` 作为 `after` 发送，`limit` 默认 100
（`/api/v1/events` 每页 1000，不接受 `limit`）。`/v2/partner`、`/v2/scheduler`
仅在 `fate.enabled` 时提供。`/v1/platform/schedule` 下作业与日志的路径
也可写作 `/v2/schedule`；`job/status_all`、`task/get_log_line`、`task/get_log` 同时支持 GET 与 POST。
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
_COLUMNS = {"en": ("Method", "Path", "What", "Roles"), "zh": ("方法", "路径", "摘要", "角色")}
_OPEN = {"en": "no token needed", "zh": "无需令牌"}
_EVERY = {"en": "every role", "zh": "所有角色"}
_UNGUARDED = ("/health/live", "/health/ready", "/api/v1/session/ways")


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh)."""
    parts = [_INTRO[language]]
    for listener, title in _LISTENERS.items():
        rows = [
            (
                method,
                code(path),
                translated(summary, language) + query,
                _roles(method, path, language),
            )[: 4 if listener == "operator" else 3]
            for method, path, summary, query in paths(listener)
        ]
        columns = _COLUMNS[language][: 4 if listener == "operator" else 3]
        parts.append(f"## {title[language]} (`listen.{listener}`)\n\n{table(columns, rows)}")
    return "\n\n".join(parts) + "\n"


def paths(listener: str) -> list[tuple[str, str, str, str]]:
    """Return (method, path, summary, parameters) of everything that a listener describes, by
    path.
    """
    found = [
        (method.upper(), path, str(operation.get("summary", "")), _query(path, method, operation))
        for path, methods in described()[listener]["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "put", "post", "patch", "delete")
    ]
    return sorted(found, key=lambda one: (one[1], one[0]))


def _query(
    path: str,
    method: str,
    operation: Any,
) -> str:
    """Return the parameters of a path of the standard's that is read."""
    given = operation.get("parameters", ()) if path.startswith(SCHEDULE) and method == "get" else ()
    return f" ({', '.join(code(one['name']) for one in given)})" if given else ""


def _roles(
    method: str,
    path: str,
    language: str,
) -> str:
    roles = roles_for(method, path)
    if path in _UNGUARDED:
        return _OPEN[language]
    return _EVERY[language] if len(roles) == len(Role) else ", ".join(roles)


@cache
def described() -> dict[str, Any]:
    """Return the OpenAPI documents of a node that serves everything, by listener; nothing of it is
    started.
    """
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        home = Path(folder)
        any_port = {"bind": "127.0.0.1:0"}
        settings = load(
            None,
            {
                "node": {"id": "JG0100001100000010"},
                "engine": {"kind": "process"},
                "listen": {
                    "peer": any_port,
                    "container": any_port,
                    "operator": any_port,
                },
                "database": {"url": f"sqlite:///{home / 'gateway.db'}"},
                "storage": {"url": f"file://{home / 'storage'}"},
                "state_dir": str(home / "state"),
                "fate": {"enabled": True},
            },
        )
        node = Gateway(settings)
        try:
            return {name: asyncio.run(_ask(node, name)) for name in _LISTENERS}
        finally:
            node.stop()


async def _ask(node: Gateway, listener: str) -> Any:
    transport = httpx.ASGITransport(app=node.apps[listener])
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return (await client.get("/openapi.json")).json()
