"""Bare FastAPI applications: the floors of `status_all` and of `create_all`.

`python -m tools.bench.bare DATABASE PORT [NEXT]` serves them on loopback. The floor of `create_all`
stores the body and commits, then passes the body on to the application at the URL ``NEXT``, if
there is one, and responds after its response.
"""

import sqlite3
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

PATH = "/status"
CREATE_PATH = "/create"
_COLUMNS = ("job_id", "job_status", "outcome")
_TIMEOUT = 60.0  # seconds of a request to the next application


class Database:
    """A database with one ended job, with a connection for each thread that uses it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._of_thread = threading.local()
        self._writing = threading.Lock()  # writers of one process need not wait for the file
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "CREATE TABLE job (job_id TEXT PRIMARY KEY, job_status TEXT, outcome TEXT)"
            )
            connection.execute("INSERT INTO job VALUES ('job-1', 'FINISHED', 'SUCCEEDED')")

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the state of a job."""
        query = "SELECT job_id, job_status, outcome FROM job WHERE job_id = ?"
        row = self._connection().execute(query, (job_id,)).fetchone()
        return dict(zip(_COLUMNS, row, strict=True))

    def add(self, job_id: str, body: str) -> None:
        """Store a job and commit."""
        with self._writing, self._connection() as connection:
            connection.execute("INSERT INTO job VALUES (?, 'READY', ?)", (job_id, body))

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this thread, which waits for other writers."""
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = sqlite3.connect(self._file, timeout=_TIMEOUT)
            # As at a gateway's node: a commit waits for the log alone at a checkpoint.
            self._of_thread.connection.execute("PRAGMA synchronous=NORMAL")
        connection: sqlite3.Connection = self._of_thread.connection
        return connection


def app(file: str, next_url: str = "") -> FastAPI:
    """Create the database, and return the application.

    ``next_url``: where bodies are passed on to; empty: nowhere.
    """
    database = Database(file)

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False) as client:
            application.state.client = client
            yield

    application = FastAPI(lifespan=lifespan)

    @application.get(PATH)
    def status(job_id: str) -> dict[str, Any]:
        return {
            "code": 0,
            "msg": "success",
            "data": database.job(job_id),
        }

    @application.post(CREATE_PATH)
    async def create(request: Request, job: dict[str, Any]) -> dict[str, Any]:
        body = await request.body()
        job_id = f"job-{uuid4().hex}"
        await run_in_threadpool(database.add, job_id, body.decode())
        if next_url:
            client: httpx.AsyncClient = application.state.client
            response = await client.post(next_url, content=body, headers=_JSON)
            response.raise_for_status()
        return {
            "code": 0,
            "msg": "success",
            "data": {"job_id": job_id, "tasks": len(job)},
        }

    return application


_JSON = {"content-type": "application/json"}


if __name__ == "__main__":
    uvicorn.run(
        app(*sys.argv[1:2], *sys.argv[3:]),
        port=int(sys.argv[2]),
        log_level="warning",
        access_log=False,
    )
