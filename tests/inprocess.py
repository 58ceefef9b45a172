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

ME, PEER, STRANGER = "JG0100001100000010", "JG0100002200000020", "JG0000000000000404"


class Node(Gateway):
    """A gateway whose services tests reach by their names, whichever stage builds them."""

    def __getattr__(self, name: str) -> Any:
        """Return the service of a name. Raises `AttributeError` if no stage has one."""
        if name == "services":  # not built yet
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
        """Send one request to a listener of the node; ``kwargs`` are those of `httpx.request`."""
        headers = dict(kwargs.pop("headers", {}))
        if token:
            headers["authorization"] = f"Bearer {token}"
        return ask(self, listener, method, path, headers=headers, **kwargs)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        """Read a path of the operators' listener; arguments as for `request`."""
        return self.request("GET", path, **kwargs)

    def post(self, path: str, json: Any = None, **kwargs: Any) -> httpx.Response:
        """Post a JSON body, by default to the operators' listener; arguments as for `request`."""
        return self.request("POST", path, json=json, **kwargs)


def settings(
    home: Path,
    node_id: str = ME,
    **over: Any,
) -> Any:
    """Return the settings of a node on free ports below ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    routes = home / "routes.yml"
    if not routes.exists():
        routes.write_text("{}")
    database = home / "gateway.db"
    if "database" not in over and not database.exists():
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
        | over,
    )


@functools.cache
def _empty_database() -> bytes:
    """Return a database of the newest schema with nothing in it, which is copied and not made for every node."""
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
    **over: Any,
) -> Iterator["Node"]:
    """Serve a node until the test is over. ``make_engine`` makes its engine from settings and installation."""
    gateway = Node(settings(home, node_id, **over), engine=make_engine, pace=pace)
    with serving(gateway):
        try:
            yield gateway
        finally:
            with contextlib.suppress(EngineDown):  # then there are none
                for left in gateway.engine.list():
                    gateway.engine.remove(left.name)


@contextmanager
def pair(home: Path, **over: Any) -> Iterator[tuple["Node", "Node"]]:
    """Serve two nodes, `ME` and `PEER`, that know each other."""
    with running(home / "me", **over) as me, running(home / "peer", PEER, **over) as peer:
        for node, other in ((me, peer), (peer, me)):
            entry = f"{other.settings.node.id}: {{url: '{other.addresses()['peer']}'}}\n"
            Path(str(node.settings.route_table.file)).write_text(entry)
            node.routes.reload()
        yield me, peer


@contextmanager
def serving(gateway: Gateway) -> Iterator["Node"]:
    """Serve a node that is built already, until the test is over."""
    up, hold = threading.Event(), dict[str, Any]()
    services = gateway.services

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hold["loop"], hold["stop"] = loop, asyncio.Event()

        def end_session(session: str) -> None:
            asyncio.run_coroutine_threadsafe(
                services.peers.broker.end_session(session), loop
            ).result(60)

        services.peers.sessions.on_end(end_session)
        gateway.start()
        sockets = services.sockets
        further = (sockets.arrivals, sockets.tls, gateway.grpc_servers(), gateway.leaving.set)
        await serve(gateway.apps, sockets.by_listener, up.set, hold["stop"], *further)
        await services.peers.courier.close()
        await asyncio.to_thread(gateway.stop)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    try:
        wait_for(lambda: up.is_set() or not thread.is_alive(), 20, 0.01, "the node is up")
        yield gateway
    finally:
        hold["loop"].call_soon_threadsafe(hold["stop"].set)
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def listening(
    app: ASGIApp,
    tls: Tls | None = None,
    **more: Any,
) -> Iterator[int]:
    """Serve the application until the test is over; yield its port. ``more``: what else `serve` is given."""
    sock = bound("127.0.0.1:0")
    up, hold = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def main() -> None:
        stopping = asyncio.Event()
        hold.append((asyncio.get_running_loop(), stopping))
        await serve(
            {"peer": app},
            {"peer": [sock]},
            up.set,
            stopping,
            tls={"peer": tls} if tls else {},
            **more,
        )

    thread = threading.Thread(
        target=asyncio.run,
        args=(main(),),
        daemon=True,
    )
    thread.start()
    assert up.wait(30)
    try:
        yield port_of(sock)
    finally:
        loop, stopping = hold[0]
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
    """Upload a table, as a person does."""
    form = {
        "namespace": namespace,
        "name": name,
        "head": "true",
        "partitions": "1",
    }
    form["meta"] = '{"delimiter": ",", "match_id_name": "id"}'
    file = {"file": ("t.csv", content, "text/csv")}
    answer = ask(gateway, "operator", "POST", "/v2/component/upload/file", data=form, files=file)
    assert answer.json()["code"] == 0, answer.text


def token_of(
    gateway: Gateway,
    role: Role,
    name: str = "",
) -> str:
    """Return the text of a new token."""
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
    """Store a job under way; return by party what this node's containers send with their messages.

    For the executor they have ended unlaunched, so that it leaves them alone; ``launched``: they run in the node's
    engine.
    """
    status = RunStatus.RUNNING if launched else RunStatus.SUCCESS
    reported = Reporting(TaskStatus.RUNNING if launched else TaskStatus.SUCCESS, OK)
    spec = a_spec(roles=roles, job_id=job_id)
    runs = {
        party.label: a_run(
            "a",
            status,
            party,
            run_id=uuid4().hex + uuid4().hex,
            token=uuid4().hex,
            name=f"bfia-{uuid4().hex}",
            task_id=f"task_{job_id}",
            reporting=reported,
            owner=gateway.owner if launched else "",
            launch=OK if launched else Call(),
        )
        for party in spec.parties_at(spec.scheduler)
    }
    for run in runs.values() if launched else ():
        gateway.engine.launch(
            LaunchSpec(
                run.name,
                run.image,
                {},
                {"bfia.node": ME, "bfia.installation": gateway.installation},
            )
        )
    assert gateway.store.local_jobs.add(
        a_local_job(*runs.values(), spec=spec, node=spec.scheduler), "flow"
    )
    return {
        label: {
            "x-ptp-session-id": session_id(job_id),
            "x-ptp-token": gateway.run_tokens.issue(run.token),
        }
        for label, run in runs.items()
    }


def routes_of(app: Any) -> Iterator[APIRoute]:
    """Yield every path of a listener's application, whatever is before it."""
    while not isinstance(app, FastAPI):
        inner = getattr(app, "_app", None) or getattr(app, "app", None)
        app = inner or inspect.getclosurevars(app).nonlocals["app"]
    for route in app.routes:
        inner = getattr(getattr(route, "original_router", None), "routes", (route,))
        yield from (one for one in inner if isinstance(one, APIRoute))
