"""Counts the cost of a request: the product's files that it enters, and the database's round trips.

`python -m tools.crossings` builds a node in this process (memory engine, SQLite), submits a job
that the node schedules itself, lets its container report, and prints the counts for each request.
With ``--list`` it prints the files and statements, too.
"""

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
import sqlalchemy as sa

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.bootstrap.node import Gateway
from gateway.domain.run import Run
from gateway.domain.states import TaskStatus
from gateway.store.records import Records
from provider_registry.registration import provider_from_request
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration
from tests.inprocess import ME, settings
from tests.memory_engine import MemoryEngine, Script

ROOT = Path(__file__).resolve().parents[1]
PRODUCT_FOLDERS = tuple(
    f"{ROOT / package}{os.sep}"
    for package in ("gateway", "adapter", "engines", "provider_registry", "route_table")
)
# The routers' functions of the measured requests.
ROUTERS = ("operator_router.<locals>.create_all", "container_router.<locals>.task_callback")
_CALLBACK = "/v1/platform/schedule/task/callback"
_TRANSACTION_STATEMENTS = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")
# Names of the threads that a request waits for; lanes and loops have other ones.
_REQUEST_THREADS = ("MainThread", "AnyIO")
_LISTED_LENGTH = 150  # characters of a statement in the list
_LAUNCH_TIMEOUT = 30.0  # seconds until a run has started
_POLL_INTERVAL = 0.02  # seconds


@dataclass
class Crossing:
    """The cost of one request."""

    name: str
    files: set[str] = field(default_factory=set)  # relative to the checkout
    statements: list[str] = field(default_factory=list)  # SQL, in the order of their execution

    @property
    def round_trips(self) -> int:
        """Return the number of statements except the ones that open or close a transaction."""
        queries = [text for text in self.statements if not text.startswith(_TRANSACTION_STATEMENTS)]
        return len(queries)


class Recorder:
    """Records the product's files and the statements that requests use, by profiling threads.

    Work that a request starts in lanes and loops, and does not wait for, does not count. Recording
    starts in the router's function: the listeners' work before it is the same for every request.
    """

    def __init__(self) -> None:
        self._pending: Crossing | None = None  # waits for the router's function
        self._current: Crossing | None = None  # is being recorded
        self._last_function: CodeType | None = None  # ends the recording by its return

    def install(self) -> None:
        """Profile this thread and the threads that start later."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        """Stop profiling this thread and new threads."""
        threading.setprofile(None)
        sys.setprofile(None)

    @contextmanager
    def recording(
        self,
        name: str,
        last_function: CodeType | None = None,
    ) -> Iterator[Crossing]:
        """Record the request of the block, until its response or until a function returns."""
        crossing = Crossing(name)
        self._last_function = last_function
        self._pending = crossing
        try:
            yield crossing
        finally:
            self._pending = None
            self._current = None

    def on_statement(
        self,
        _connection: Any,
        _cursor: Any,
        text: str,
        *_: Any,
    ) -> None:
        """Record a statement; a listener of SQLAlchemy's ``before_cursor_execute``."""
        if self._current is not None and _serves_request():
            self._current.statements.append(text)

    def _profile(
        self,
        frame: FrameType,
        event: str,
        _argument: Any,
    ) -> None:
        """Record a call or a return of a function; Python calls this for every one."""
        if event == "call":
            self._record_call(frame)
        elif event == "return" and frame.f_code is self._last_function and _serves_request():
            self._current = None

    def _record_call(self, frame: FrameType) -> None:
        """Record the file of a called function; the router's function starts the recording."""
        code = frame.f_code
        begins_request = self._pending is not None and code.co_qualname in ROUTERS
        if begins_request:
            self._current = self._pending
            self._pending = None
        if self._current is None or not _serves_request():
            return
        is_product = code.co_filename.startswith(PRODUCT_FOLDERS)
        if is_product and not _is_resumed(frame):
            self._current.files.add(os.path.relpath(code.co_filename, ROOT))


def _is_resumed(frame: FrameType) -> bool:
    """True if a coroutine or generator continues instead of being called.

    The operand of its instruction RESUME is 0 for a call only.
    """
    return bool(frame.f_code.co_code[frame.f_lasti + 1] & 3)


def _serves_request() -> bool:
    """True in a thread that a request waits for."""
    return threading.current_thread().name.startswith(_REQUEST_THREADS)


# ---------------------------------------------------------------- the measured requests


def measure(home: Path) -> list[Crossing]:
    """Submit jobs of one task at a node in a folder, and return the cost of each request.

    These are: the submission until the job is stored, the submission until its response, and the
    callback of a container.
    """
    recorder = Recorder()
    recorder.install()
    try:
        return asyncio.run(_measure(home, recorder))
    finally:
        recorder.remove()


async def _measure(home: Path, recorder: Recorder) -> list[Crossing]:
    node = _node(home)
    engine = node.services.foundation.store._engine
    sa.event.listen(engine, "before_cursor_execute", recorder.on_statement)
    try:
        async with _client(node, "operator") as platform, _client(node, "container") as container:
            await _warm_up(node, platform)
            with recorder.recording(
                "create_all until the job is stored", Records.add.__code__
            ) as until_stored:
                await _submit(platform)
            with recorder.recording("create_all until it is answered") as until_response:
                job_id = await _submit(platform)
            run = await asyncio.to_thread(_launched_run, node, job_id)
            with recorder.recording("a container's callback") as callback:
                await _report_success(node, container, run)
        return [until_stored, until_response, callback]
    finally:
        await asyncio.to_thread(node.stop)


async def _warm_up(node: Gateway, platform: httpx.AsyncClient) -> None:
    """Submit two jobs, so that the measured ones find all that a node makes once and keeps.

    The launch of the first one pins the image, which changes the provider.
    """
    job_id = await _submit(platform)
    await asyncio.to_thread(_launched_run, node, job_id)
    await _submit(platform)


def _node(home: Path) -> Gateway:
    """Return a node with a registered provider, which is not served."""
    images = {IMAGE: Script(code=None)}

    def memory_engine(_settings: Any, installation: str) -> MemoryEngine:
        return MemoryEngine(
            node=ME,
            installation=installation,
            images=images,
        )

    node = Gateway(settings(home), engine=memory_engine)
    node.services.registries.registry.register(provider_from_request(registration()))
    node.services.peers.broker.recover()
    return node


def _client(node: Gateway, listener: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(
        app=node.apps[listener],
        client=("127.0.0.1", 1),
    )
    return httpx.AsyncClient(
        transport=transport,
        base_url="http://localhost",
        timeout=60,
    )


async def _submit(platform: httpx.AsyncClient) -> str:
    """Submit a job of one task, and return the id that the node gave it."""
    spec = a_spec(
        "a", {"guest": (ME,)}, initiator=ME, job_params={"common": {"sync_type": "callback"}}
    )
    body = create_body(spec, PROFILES["spec"])
    del body["job_id"]
    response = await platform.post("/v1/platform/schedule/job/create_all", json=body)
    assert response.json()["code"] == 0, response.text
    return str(response.json()["data"]["job_id"])


async def _report_success(
    node: Gateway,
    container: httpx.AsyncClient,
    run: Run,
) -> None:
    """Send the callback with which a run's container reports that it succeeded."""
    token = node.services.foundation.run_tokens.issue(run.run_id)
    report = {
        "status": TaskStatus.SUCCESS,
        "task_id": run.task_id,
        "role": run.party.role,
    }
    response = await container.post(f"{_CALLBACK}?run={token}", json=report)
    assert response.json()["code"] == 0, response.text


def _launched_run(node: Gateway, job_id: str) -> Run:
    """Wait until the job's run is recorded as running, and return it. Raises `TimeoutError`."""
    end = time.monotonic() + _LAUNCH_TIMEOUT
    while time.monotonic() < end:
        node.services.scheduling.scheduler.advance(job_id)
        node.services.runs.executor.advance(job_id)
        local = node.services.foundation.store.local_jobs.find(job_id)
        if local and local.runs and local.runs[0].reporting.status is TaskStatus.RUNNING:
            return local.runs[0]
        time.sleep(_POLL_INTERVAL)
    raise TimeoutError(f"no run of {job_id} is up")


def main() -> None:
    """Print the counts, and with ``--list`` the files and statements."""
    with tempfile.TemporaryDirectory() as folder:
        for crossing in measure(Path(folder)):
            files = f"{len(crossing.files):5} files"
            print(f"{crossing.name:40}{files}{crossing.round_trips:5} round trips")
            if "--list" in sys.argv:
                _print_details(crossing)


def _print_details(crossing: Crossing) -> None:
    for name in sorted(crossing.files):
        print(f"    {name}")
    for text in crossing.statements:
        print(f"    {' '.join(text.split())[:_LISTED_LENGTH]}")


if __name__ == "__main__":
    main()
