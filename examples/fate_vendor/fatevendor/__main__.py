"""Runs one task: variables and CSV files in, FATE's components, outputs and callbacks."""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import urllib.request
from multiprocessing import forkserver
from pathlib import Path

from fatevendor.task import Task, TaskFailed, Unusable, read_task

CALLBACK_TRIES = 60
RESULT_CODES = {"SUCCESS": "00000000", "FAILED": "99999999"}
STOPPED = 143  # exit code after SIGTERM
LONGEST_FOLDER = 60  # characters of a folder for a socket


def main() -> int:
    """Run the task; return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(STOPPED))
    try:
        task = read_task(os.environ)
    except Unusable as error:
        for problem in error.problems:
            print("error", problem, flush=True)
        return 2
    start_workers()
    report(task, "RUNNING", tries=1)
    # Imported late, as it takes seconds.
    from fatevendor.execution import execute  # noqa: PLC0415

    try:
        with tempfile.TemporaryDirectory() as scratch:
            execute(task, Path(scratch))
    except TaskFailed as error:
        print("error", error, flush=True)
        report(task, "FAILED", tries=3, message=str(error))
        return 1
    except Exception:
        traceback.print_exc()
        report(task, "FAILED", tries=3)
        return 1
    report(task, "SUCCESS")
    return 0


def start_workers() -> None:
    """Start the process from which FATE's workers are forked; it imports FATE meanwhile.

    A fork of this process would hang, as it has gRPC's threads.
    """
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["fate.arch.dataframe", "fatevendor.restricted"])
    # The path of its socket has at most 107 bytes, which a deep folder would exceed.
    folder = tempfile.gettempdir()
    if len(folder) > LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
    forkserver.ensure_running()
    tempfile.tempdir = folder


def report(task: Task, status: str, tries: int = CALLBACK_TRIES, message: str = "") -> None:
    """Send a callback, repeatedly if the gateway is being restarted."""
    body = {"task_id": task.id, "role": task.self_role, "status": status}
    if status in RESULT_CODES:
        body["result_code"] = RESULT_CODES[status]
    if message:
        body["result_message"] = message
    request = urllib.request.Request(
        task.callback,
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    for attempt in range(tries):
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except OSError as error:
            print("warning", f"callback {status}, attempt {attempt + 1}: {error}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    os._exit(exit_code)  # without waiting for FATE's workers
