"""A gateway node in the test's own process, on real loopback sockets."""

import asyncio
import contextlib
import functools
import inspect
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from adapter.bfia.environment import session_id
from engines.base import Engine, EngineDown, LaunchSpec
from gateway.auth import Role, new_token
from gateway.bootstrap.link_services import link_service
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import Pace
from gateway.config.loader import load
from gateway.config.tls import Tls
from gateway.domain.run import Reporting
from gateway.domain.spec import Call
from gateway.domain.states import RunStatus, TaskStatus
from gateway.http.server import bound, port_of, serve
from gateway.store.database import open_database
from tests.builders import OK, a_local_job, a_run, a_spec
from tests.e2e.nodes import wait_for
from tests.plain import NO_TLS

ME = "JG0100001100000010"
PEER = "JG0100002200000020"
STRANGER = "JG0000000000000404"  # no node has a route to it


class Node(Gateway):
    """A gateway with all services as attributes, whichever stage of the bootstrap builds them."""

    def __getattr__(self, name: str) -> Any:
        """Return the service of that name. Raises `AttributeError` if no stage has one."""
        if name == "services":  # asked for while the gateway is built
            raise AttributeError(name)
        for stage in fields(self.services):
            services = getattr(self.services, stage.name)
            if hasattr(services, name):
                return getattr(services, name)
        raise AttributeError(name)

    def request(
        self,
        method: str,
        path: str,
        *,
        listener: str = "operator",
        token: str = "",
        **kwargs: Any,
    ) -> httpx.Response:
        """Send one request to a listener of the node; ``kwargs`` go to `httpx.request`."""
        headers = dict(kwargs.pop("headers", {}))
        if token:
            headers["authorization"] = f"Bearer {token}"
        return ask(self, listener, method, path, headers=headers, **kwargs)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        """Read a path of the operators' listener; arguments as for `request`."""
        return self.request("GET", path, **kwargs)

    def post(
        self,
        path: str,
        json: Any = None,
        **kwargs: Any,
    ) -> httpx.Response:
        """Post a JSON body, by default to the operators' listener; arguments as for `request`."""
        return self.request("POST", path, json=json, **kwargs)


def settings(
    home: Path,
    node_id: str = ME,
    **changes: Any,
) -> Any:
    """Return the settings of a node with its files below ``home`` and free ports.

    ``changes`` replace settings, by their first key.
    """
    home.mkdir(parents=True, exist_ok=True)
    routes = home / "routes.yml"
    if not routes.exists():
        routes.write_text("{}")
    database = home / "gateway.db"
    if "database" not in changes and not database.exists():
        database.write_bytes(_empty_database())
    any_port = "127.0.0.1:0"
    listen = {
        "peer": {"bind": any_port},
        "container": {"bind": any_port},
        "operator": {"bind": any_port},
    }
    return load(
        None,
        {
            "node": {"id": node_id},
            "listen": listen,
            "database": {"url": f"sqlite:///{database}"},
            "storage": {"url": f"file://{home / 'storage'}"},
            "state_dir": str(home / "state"),
            "engine": {"kind": "process"},
            "route_table": {"file": str(routes)},
        }
        | changes,
    )


@functools.cache
def _empty_database() -> bytes:
    """Return an empty database of the newest schema; copying it is quicker than making one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "empty.db")
        open_database(f"sqlite:///{file}").dispose()
        return file.read_bytes()


@contextmanager
def running(
    home: Path,
    node_id: str = ME,
    make_engine: Callable[[Any, str], Engine] | None = None,
    pace: Pace = Pace(),
    **changes: Any,
) -> Iterator["Node"]:
    """Serve a node until the test is over.

    ``make_engine`` makes its engine from settings and installation id; None: as the settings say.
    ``changes`` replace settings, by their first key.
    """
    gateway = Node(settings(home, node_id, **changes), engine=make_engine, pace=pace)
    with serving(gateway):
        try:
            yield gateway
        finally:
            with contextlib.suppress(EngineDown):  # then no run is left
                for run in gateway.engine.list():
                    gateway.engine.remove(run.name)


@contextmanager
def pair(home: Path, **changes: Any) -> Iterator[tuple["Node", "Node"]]:
    """Serve two nodes, `ME` and `PEER`, with routes to each other."""
    with running(home / "me", **changes) as me, running(home / "peer", PEER, **changes) as peer:
        for node, partner in ((me, peer), (peer, me)):
            entry = f"{partner.settings.node.id}: {{url: '{partner.addresses()['peer']}'}}\n"
            Path(str(node.settings.route_table.file)).write_text(entry)
            node.routes.reload()
        yield me, peer


@contextmanager
def serving(gateway: Gateway) -> Iterator["Node"]:
    """Serve a node until the test is over."""
    is_up = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    services = gateway.services

    async def main() -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        loops.append((loop, stopping))

        def end_session(session: str) -> None:
            ending = services.peers.broker.end_session(session)
            asyncio.run_coroutine_threadsafe(ending, loop).result(60)

        services.peers.sessions.on_end(end_session)
        gateway.start()
        sockets = services.sockets
        await serve(
            gateway.apps,
            sockets.by_listener,
            is_up.set,
            stopping,
            sockets.arrivals,
            sockets.tls,
            gateway.grpc_servers(),
            link_service(services),
            gateway.leaving.set,
        )
        await services.peers.courier.close()
        await asyncio.to_thread(gateway.stop)

    def run() -> None:
        asyncio.run(main())

    def is_up_or_dead() -> bool:
        return is_up.is_set() or not thread.is_alive()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_for(is_up_or_dead, 20, 0.01, "the node is up")
        yield gateway
    finally:
        loop, stopping = loops[0]
        loop.call_soon_threadsafe(stopping.set)
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def listening(
    app: ASGIApp,
    tls: Tls | None = None,
    **kwargs: Any,
) -> Iterator[int]:
    """Serve an application until the test is over; yield its port. ``kwargs`` go to
    `serve`.
    """
    sock = bound("127.0.0.1:0")
    is_up = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    tls_by_listener = {}
    if tls:
        tls_by_listener["peer"] = tls

    async def main() -> None:
        stopping = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stopping))
        await serve(
            {"peer": app},
            {"peer": [sock]},
            is_up.set,
            stopping,
            tls=tls_by_listener,
            **kwargs,
        )

    def run() -> None:
        asyncio.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_up.wait(30)
    try:
        yield port_of(sock)
    finally:
        loop, stopping = loops[0]
        loop.call_soon_threadsafe(stopping.set)
        thread.join(30)


def ask(
    gateway: Gateway,
    listener: str,
    method: str,
    path: str,
    **kwargs: Any,
) -> httpx.Response:
    """Make one request to a listener of the node."""
    return httpx.request(
        method,
        gateway.addresses()[listener] + path,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
        **kwargs,
    )


def uploaded(
    gateway: Gateway,
    namespace: str,
    name: str,
    content: bytes = b"id,x\na,1\nb,2\n",
) -> None:
    """Upload a table by the operators' API."""
    form = {
        "namespace": namespace,
        "name": name,
        "head": "true",
        "partitions": "1",
        "meta": '{"delimiter": ",", "match_id_name": "id"}',
    }
    response = ask(
        gateway,
        "operator",
        "POST",
        "/v2/component/upload/file",
        data=form,
        files={"file": ("t.csv", content, "text/csv")},
    )
    assert response.json()["code"] == 0, response.text


def token_of(
    gateway: Gateway,
    role: Role,
    name: str = "",
) -> str:
    """Return a new access token of a role, named after the role unless ``name`` is given."""
    text, token = new_token(name or str(role), role, gateway.clock())
    gateway.tokens.add(token)
    return text


def containers(
    gateway: Gateway,
    job_id: str,
    roles: Mapping[str, tuple[str, ...]],
    *,
    launched: bool = False,
) -> dict[str, dict[str, str]]:
    """Store a running job; return the headers of its containers' messages, by party.

    The containers have ended without a launch, so that the executor leaves them alone. With
    ``launched`` they run in the node's engine.
    """
    spec = a_spec(roles=roles, job_id=job_id)
    fields: dict[str, Any] = {
        "status": RunStatus.SUCCESS,
        "reporting": Reporting(TaskStatus.SUCCESS, OK),
        "launch": Call(),
    }
    if launched:
        fields = {
            "status": RunStatus.RUNNING,
            "reporting": Reporting(TaskStatus.RUNNING, OK),
            "owner": gateway.owner,
            "launch": OK,
        }
    runs = {}
    for party in spec.parties_at(spec.scheduler):
        runs[party.label] = a_run(
            "a",
            party=party,
            run_id=uuid4().hex + uuid4().hex,
            token=uuid4().hex,
            name=f"bfia-{uuid4().hex}",
            task_id=f"task_{job_id}",
            **fields,
        )
    if launched:
        labels = {"bfia.node": ME, "bfia.installation": gateway.installation}
        for run in runs.values():
            gateway.engine.launch(LaunchSpec(run.name, run.software.image, {}, labels))
    local = a_local_job(*runs.values(), spec=spec, node=spec.scheduler)
    assert gateway.store.local_jobs.add(local, "flow")

    headers = {}
    for label, run in runs.items():
        headers[label] = {
            "x-ptp-session-id": session_id(job_id),
            "x-ptp-token": gateway.run_tokens.issue(run.token),
        }
    return headers


def routes_of(app: Any) -> Iterator[APIRoute]:
    """Yield the routes of a listener's application, inside all middleware."""
    while not isinstance(app, FastAPI):
        inner = getattr(app, "_app", None) or getattr(app, "app", None)
        app = inner or inspect.getclosurevars(app).nonlocals["app"]
    for route in app.routes:
        router = getattr(route, "original_router", None)
        for inner_route in getattr(router, "routes", (route,)):
            if isinstance(inner_route, APIRoute):
                yield inner_route
