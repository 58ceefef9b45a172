"""Two nodes, one of which FATE-Flow talks to in its own protocol, and FATE's side of the talk."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from adapter.fate import envelope
from tests.contracts.apis import THIRD, World, two_nodes
from tests.inprocess import ME, PEER, ask

FATE = "9999"
"""a FATE site, by its route"""
JOB = "202411220101019999990"
OK: dict[str, Any] = {"code": 0, "message": "success"}
PATHS = [path.removeprefix("/v2") for path in envelope.PATHS]
SIGNS = "8888"
"""another one, which has to sign"""


@contextmanager
def fate_world(
    home: Path,
    fate_port: int = 9,
    peer: Mapping[str, Any] = {},
    **me: Any,
) -> Iterator[World]:
    """Yield the nodes: every route but the third node's is one to a node that speaks FATE's protocol.

    ``me``, ``peer``: further settings of theirs.
    """
    sites = {SIGNS: {"expects": {"app_id": "1", "app_token": "secret"}}}
    on = {"enabled": True}
    me = {
        "fate": on | {"sites": sites},
        "limits": {"body_bytes": 200_000},
        **me,
    }
    with two_nodes(home, me=me, peer={"fate": on, **peer}) as world:
        for node in (world.me, world.peer):
            file = world.home / node.settings.node.id / "routes.yml"
            routes = yaml.safe_load(file.read_text())
            for party in (FATE, SIGNS):
                routes[party] = {"host": "127.0.0.1", "port": fate_port}
            for entry in routes.values():
                entry["profile"] = "fate-partner"
            routes[THIRD]["profile"] = "spec"
            file.write_text(yaml.safe_dump(routes))
            node.routes.reload()
        yield world


class Flow:
    """FATE's side: it names no sender, as FATE does not."""

    def __init__(self, world: World) -> None:
        self._node = world.me

    def post(
        self,
        path: str,
        body: dict[str, Any],
        **headers: str,
    ) -> dict[str, Any]:
        sent = {
            "dest-party-id": ME,
            "service": "fateflow",
            "initiator-party-id": FATE,
        } | headers
        answer = self.sent(path, headers=sent, json=body)
        assert answer.status_code == 200
        said: dict[str, Any] = answer.json()
        return said

    def sent(self, path: str, **request: Any) -> httpx.Response:
        return ask(self._node, "peer", "POST", f"/v2{path}", **request)

    def do(self, job: str, *steps: str) -> None:
        """Take these steps of FATE's with its host, all of which succeed: each a path, maybe with a state."""
        for step in steps:
            path, _, status = step.partition(" ")
            body = task(job=job) if path.startswith("task/") else party(job)
            body |= dag() if path == "job/create" else {"status": status} if status else {}
            assert self.code(f"/partner/{path}", body) == 0, step

    def code(
        self,
        path: str,
        body: dict[str, Any],
        **headers: str,
    ) -> int:
        return int(self.post(path, body, **headers)["code"])


def party(job: str = JOB, **more: Any) -> dict[str, Any]:
    return {
        "job_id": job,
        "role": "host",
        "party_id": ME,
        **more,
    }


def task(
    version: int = 0,
    name: str = "a",
    job: str = JOB,
    **more: Any,
) -> dict[str, Any]:
    return {
        **party(job),
        "task_id": f"{job}_{name}",
        "task_version": version,
    } | more


def dag(scheduler: str = FATE, **conf: Any) -> dict[str, Any]:
    """Return a job of this node and of its scheduler, or of `PEER` if that is this node."""
    guest = PEER if scheduler == ME else scheduler
    return {
        "dag": {
            "parties": [{"role": "guest", "party_id": [guest]}, {"role": "host", "party_id": [ME]}],
            "conf": {
                "scheduler_party_id": scheduler,
                "initiator_party_id": guest,
                "sync_type": "poll",
                "auto_retries": 0,
                "computing_partitions": 8,
                "model_id": JOB,
                "model_version": "0",
                "task": {"provider": "vendor:1.0.0@docker"},
                **conf,
            },
            "stage": "train",
            "tasks": {
                "a": {
                    "component_ref": "Thing",
                    "parameters": {},
                    "outputs": {},
                }
            },
        },
        "schema_version": "2.2.0",
        "kind": "fate",
    }
