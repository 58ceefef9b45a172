"""The floor of `status_all`: a bare FastAPI path that responds from one indexed SELECT.

`python -m tools.bench.bare DATABASE PORT` serves it on loopback.
"""

import sqlite3
import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI

PATH = "/status"
_COLUMNS = ("job_id", "job_status", "outcome")


def app(database: str) -> FastAPI:
    """Create a table with one job, and return the application that responds with its state."""
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE job (job_id TEXT PRIMARY KEY, job_status TEXT, outcome TEXT)"
        )
        connection.execute("INSERT INTO job VALUES ('job-1', 'FINISHED', 'SUCCEEDED')")
    of_thread = threading.local()  # a connection serves only the thread that opened it
    application = FastAPI()

    @application.get(PATH)
    def status(job_id: str) -> dict[str, Any]:
        if not hasattr(of_thread, "connection"):
            of_thread.connection = sqlite3.connect(database)
        query = "SELECT job_id, job_status, outcome FROM job WHERE job_id = ?"
        row = of_thread.connection.execute(query, (job_id,)).fetchone()
        return {
            "code": 0,
            "msg": "success",
            "data": dict(zip(_COLUMNS, row, strict=True)),
        }

    return application


if __name__ == "__main__":
    uvicorn.run(
        app(sys.argv[1]),
        port=int(sys.argv[2]),
        log_level="warning",
        access_log=False,
    )
