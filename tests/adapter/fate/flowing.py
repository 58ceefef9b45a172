"""Two nodes that speak FATE's protocol, and a FATE-Flow that sends requests to one of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from adapter.fate import envelope
from tests.contracts.apis import THIRD, World, two_nodes
from tests.inprocess import ME, PEER, ask
from tests.world import write_routes

# the party id of a FATE site with a route
FATE = "9999"
# the party id of a FATE site that has to sign its requests
SIGNS = "8888"
JOB = "202411220101019999990"
OK: dict[str, Any] = {
    "code": 0,
    "message": "success",
}
PATHS = [path.removeprefix("/v2") for path in envelope.PATHS]


@contextmanager
def fate_world(
    home: Path,
    fate_port: int = 9,
    peer: Mapping[str, Any] = {},
    **me: Any,
) -> Iterator[World]:
    """Serve two nodes; every route speaks FATE's protocol, except the one to `THIRD`.

    ``me`` and ``peer`` are further settings of the nodes. At the default port nothing listens.
    """
    sites = {SIGNS: {"expects": {"app_id": "1", "app_token": "secret"}}}
    my_settings = {
        "fate": {
            "enabled": True,
            "sites": sites,
        },
        "limits": {"body_bytes": 200_000},
        **me,
    }
    peer_settings = {"fate": {"enabled": True}, **peer}
    with two_nodes(home, me=my_settings, peer=peer_settings) as world:
        for node in (world.me, world.peer):
            file = node.settings.route_table.file
            routes = yaml.safe_load(file.read_text())
            for site in (FATE, SIGNS):
                routes[site] = {
                    "host": "127.0.0.1",
                    "port": fate_port,
                }
            for entry in routes.values():
                entry["profile"] = "fate-partner"
            routes[THIRD]["profile"] = "spec"
            write_routes(file, routes)
            node.routes.reload()
        yield world


class Flow:
    """A FATE-Flow as `ME` sees it. Like FATE's own, it does not name the sending node."""

    def __init__(self, world: World) -> None:
        self._node = world.me

    def post(
        self,
        path: str,
        body: dict[str, Any],
        **headers: str,
    ) -> dict[str, Any]:
        """Send a request and return the body of the response, whose HTTP status must be 200."""
        all_headers = {
            "dest-party-id": ME,
            "service": "fateflow",
            "initiator-party-id": FATE,
            **headers,
        }
        response = self.request(
            path,
            headers=all_headers,
            json=body,
        )
        assert response.status_code == 200
        return dict(response.json())

    def request(
        self,
        path: str,
        **kwargs: Any,
    ) -> httpx.Response:
        """Send a request; ``kwargs`` go to `httpx.request`."""
        return ask(self._node, "peer", "POST", f"/v2{path}", **kwargs)

    def do(
        self,
        job: str,
        *steps: str,
    ) -> None:
        """Send requests about the host's part of a job; each must succeed.

        A step is a path below ``/partner``, with an optional status after a space.
        """
        for step in steps:
            path, _, status = step.partition(" ")
            body = task(job=job) if path.startswith("task/") else party(job)
            if path == "job/create":
                body |= dag()
            elif status:
                body["status"] = status
            assert self.code(f"/partner/{path}", body) == 0, step

    def code(
        self,
        path: str,
        body: dict[str, Any],
        **headers: str,
    ) -> int:
        """Send a request and return the code of the response."""
        return int(self.post(path, body, **headers)["code"])


def party(job: str = JOB, **fields: Any) -> dict[str, Any]:
    """Return the body of a request about the host's part of a job."""
    return {
        "job_id": job,
        "role": "host",
        "party_id": ME,
        **fields,
    }


def task(
    version: int = 0,
    name: str = "a",
    job: str = JOB,
    **fields: Any,
) -> dict[str, Any]:
    """Return the body of a request about the host's part of a task."""
    return {
        **party(job),
        "task_id": f"{job}_{name}",
        "task_version": version,
        **fields,
    }


def dag(scheduler: str = FATE, **conf: Any) -> dict[str, Any]:
    """Return a job whose host is this node and whose guest schedules it.

    If this node schedules it, the guest is `PEER`.
    """
    guest = PEER if scheduler == ME else scheduler
    parties = [
        {
            "role": "guest",
            "party_id": [guest],
        },
        {
            "role": "host",
            "party_id": [ME],
        },
    ]
    all_conf = {
        "scheduler_party_id": scheduler,
        "initiator_party_id": guest,
        "sync_type": "poll",
        "auto_retries": 0,
        "computing_partitions": 8,
        "model_id": JOB,
        "model_version": "0",
        "task": {"provider": "vendor:1.0.0@docker"},
        **conf,
    }
    only_task = {
        "component_ref": "Thing",
        "parameters": {},
        "outputs": {},
    }
    return {
        "dag": {
            "parties": parties,
            "conf": all_conf,
            "stage": "train",
            "tasks": {"a": only_task},
        },
        "schema_version": "2.2.0",
        "kind": "fate",
    }
