"""Counts what a request crosses: our files, and round trips to the database.

`python -m tools.crossings` builds one node in this process (memory engine, SQLite), submits a job
that it schedules itself, has its container report, and prints for each how many of our files had a
function called and how many statements were sent.
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
from gateway.domain.states import TaskStatus
from gateway.store.records import Records
from provider_registry.registration import provider_from_request
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration
from tests.inprocess import ME, settings
from tests.memory_engine import MemoryEngine, Script

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(
    f"{ROOT / room}{os.sep}"
    for room in ("gateway", "adapter", "engines", "provider_registry", "route_table")
)
ROUTERS = ("operator_router.<locals>.create_all", "container_router.<locals>.task_callback")
_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")


@dataclass
class Crossing:
    """What one request crossed."""

    name: str
    files: set[str] = field(default_factory=set)
    statements: list[str] = field(default_factory=list)

    @property
    def round_trips(self) -> int:
        """Return the number of statements, those that only open or close a transaction left out."""
        return sum(not text.startswith(_CONTROL) for text in self.statements)


class Recorder:
    """Records calls of our functions, and statements, in the threads that a request waits for.

    What it causes in lanes and loops is not counted. Recording begins when the router's function is
    called: what the listeners do with every request before that is the same for all of them.
    """

    def __init__(self) -> None:
        self._next: Crossing | None = None
        self._now: Crossing | None = None
        self._until: CodeType | None = None

    def install(self) -> None:
        """Watch this thread and those that it starts."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        """Watch no further thread, and this one no more."""
        threading.setprofile(None)
        sys.setprofile(None)

    @contextmanager
    def recording(self, name: str, until: CodeType | None = None) -> Iterator[Crossing]:
        """Record the request of the block until it is answered, or until a function returns."""
        self._until = until
        self._next = found = Crossing(name)
        try:
            yield found
        finally:
            self._next = self._now = None

    def executed(
        self,
        _conn: Any,
        _cursor: Any,
        text: str,
        *_: Any,
    ) -> None:
        """Note a statement; a listener of SQLAlchemy's ``before_cursor_execute``."""
        if self._now is not None and _waited_for():
            self._now.statements.append(text)

    def _profile(
        self,
        frame: FrameType,
        event: str,
        _argument: Any,
    ) -> None:
        if self._next is not None and event == "call" and frame.f_code.co_qualname in ROUTERS:
            self._now, self._next = self._next, None
        if self._now is None or event not in ("call", "return") or not _waited_for():
            return
        if event == "call" and frame.f_code.co_filename.startswith(OURS) and not _resumed(frame):
            self._now.files.add(os.path.relpath(frame.f_code.co_filename, ROOT))
        if event == "return" and frame.f_code is self._until:
            self._now = None


def _resumed(frame: FrameType) -> bool:
    """Tell whether a coroutine or generator goes on, by the operand of its instruction RESUME."""
    return bool(frame.f_code.co_code[frame.f_lasti + 1] & 3)


def _waited_for() -> bool:
    return threading.current_thread().name.startswith(("MainThread", "AnyIO"))


def measure(home: Path) -> list[Crossing]:
    """Submit a job of one task, have its run report, and return what each of the two crossed."""
    recorder = Recorder()
    recorder.install()
    try:
        return asyncio.run(_measure(home, recorder))
    finally:
        recorder.remove()


async def _measure(home: Path, recorder: Recorder) -> list[Crossing]:
    node = _node(home)
    sa.event.listen(
        node.services.foundation.store._engine, "before_cursor_execute", recorder.executed
    )
    try:
        async with _client(node, "operator") as platform, _client(node, "container") as container:
            first = await _submit(platform)
            await asyncio.to_thread(
                _launched, node, first
            )  # which pins the image, and so changes the provider
            await _submit(platform)  # so that what is made once and kept is there
            with recorder.recording(
                "create_all until the job is stored", Records.add.__code__
            ) as until_stored:
                await _submit(platform)
            with recorder.recording("create_all until it is answered") as whole:
                job_id = await _submit(platform)
            run = await asyncio.to_thread(_launched, node, job_id)
            token = node.services.foundation.run_tokens.issue(run.run_id)
            path = f"/v1/platform/schedule/task/callback?run={token}"
            with recorder.recording("a container's callback") as callback:
                report = {
                    "status": TaskStatus.SUCCESS,
                    "task_id": run.task_id,
                    "role": run.party.role,
                }
                answer = await container.post(path, json=report)
            assert answer.json()["code"] == 0, answer.text
        return [until_stored, whole, callback]
    finally:
        await asyncio.to_thread(node.stop)


def _node(home: Path) -> Gateway:
    images = {IMAGE: Script(code=None)}
    made = settings(home)
    node = Gateway(
        made,
        engine=lambda _, installation: MemoryEngine(
            node=ME,
            installation=installation,
            images=images,
        ),
    )
    node.services.registries.registry.register(provider_from_request(registration()))
    node.services.peers.broker.recover()
    return node


def _client(node: Gateway, listener: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=node.apps[listener], client=("127.0.0.1", 1))
    return httpx.AsyncClient(
        transport=transport,
        base_url="http://localhost",
        timeout=60,
    )


async def _submit(platform: httpx.AsyncClient) -> str:
    spec = a_spec(
        "a", {"guest": (ME,)}, initiator=ME, job_params={"common": {"sync_type": "callback"}}
    )
    body = create_body(spec, PROFILES["spec"])
    del body["job_id"]
    answer = await platform.post("/v1/platform/schedule/job/create_all", json=body)
    assert answer.json()["code"] == 0, answer.text
    return str(answer.json()["data"]["job_id"])


def _launched(
    node: Gateway,
    job_id: str,
    seconds: float = 30.0,
) -> Any:
    """Return the job's run once its container is up, which has been reported and recorded."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        node.services.scheduling.scheduler.advance(job_id)
        node.services.runs.executor.advance(job_id)
        local = node.services.foundation.store.local_jobs.find(job_id)
        if local and local.runs and local.runs[0].reporting.status is TaskStatus.RUNNING:
            return local.runs[0]
        time.sleep(0.02)
    raise TimeoutError(f"no run of {job_id} is up")


def main() -> None:
    """Print the figures, and with ``--list`` what they count."""
    with tempfile.TemporaryDirectory() as folder:
        for crossing in measure(Path(folder)):
            print(
                f"{crossing.name:40}{len(crossing.files):5} files{crossing.round_trips:5} round trips"
            )
            if "--list" in sys.argv:
                print(*(f"    {name}" for name in sorted(crossing.files)), sep="\n")
                print(
                    *("    " + " ".join(text.split())[:150] for text in crossing.statements),
                    sep="\n",
                )


if __name__ == "__main__":
    main()
