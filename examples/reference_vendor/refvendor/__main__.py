"""The image's entry point: environment in, component run, outputs and a report out.

Exit codes: 0 success, 1 failure, 2 bad parameters or environment, 3 a peer or the transport gave no answer in
time, 4 storage, 143 terminated. The last line on stdout is a JSON object with ``result_code``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

from refvendor import PROVIDER, VERSION
from refvendor.channel import Deadline
from refvendor.components import REGISTRY
from refvendor.contract import BadParameters, Component, VendorError
from refvendor.env import Environment, read
from refvendor.log import JsonLog
from refvendor.registration import as_text, registration
from refvendor.report import FAILURE_CODE, SUCCESS_CODE, Reporter
from refvendor.selftest import selftest
from refvendor.storage import open_storage
from refvendor.transport import ChannelNet

TERMINATED = 143
_TERMINATION_SECONDS = 2.0


class Terminated(BaseException):
    """The platform asked the process to end."""


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Do what the command line asks; without arguments run the component that the environment names."""
    options = _parser().parse_args(arguments)
    if options.registration:
        sys.stdout.write(as_text(registration()))
        return 0
    log = JsonLog()
    if options.selftest:
        return selftest(log)
    return _serve(environ, log)


def _serve(environ: Mapping[str, str], log: JsonLog) -> int:
    """Run the component in a thread of its own, so that a signal is heard at any moment."""
    run = _Run(environ, log)
    signal.signal(signal.SIGTERM, _terminate)
    worker = threading.Thread(
        target=run.work,
        name="component",
        daemon=True,
    )
    try:
        worker.start()
        run.done.wait()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker.join()  # the interpreter must not end while a thread is about to
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        run.terminated()
    return run.exit_code


class _Run:
    """One run of one component."""

    def __init__(self, environ: Mapping[str, str], log: JsonLog) -> None:
        self._environ = environ
        self._log = log
        self._ending = threading.Lock()
        self._reporter = Reporter(
            environ.get("system.callback", ""),
            environ.get("config.task_id", ""),
            environ.get("config.self_role", ""),
            log,
        )
        self.done = threading.Event()
        self.exit_code = 1

    def work(self) -> None:
        """Run to the end and report; sets ``exit_code`` and ``done``."""
        error: BaseException | None = None
        try:
            self._run()
        except BaseException as caught:
            error = caught
        with self._ending:
            self._end(error)
            self.done.set()

    def terminated(self) -> NoReturn:
        """End immediately, and report it to the platform unless the run has already reported its end."""
        free = self._ending.acquire(timeout=_TERMINATION_SECONDS)
        if self.done.is_set():
            os._exit(self.exit_code)
        if free:
            self._log("warning", "terminated by the platform")
            self._reporter.failed("terminated by SIGTERM", seconds=_TERMINATION_SECONDS)
            fields = {
                "status": "FAILED",
                "result_code": FAILURE_CODE,
                "exit_code": TERMINATED,
            }
            self._log.finish("error", "run ended", **fields)
        os._exit(TERMINATED)

    def _run(self) -> None:
        environment = read(self._environ)
        task = environment.task
        self._log.copy_to(
            environment.log_path, f"{task.task_id}-{task.me}.log", task=task.task_id, party=task.me
        )
        component = _component(environment)
        self._log(
            "info",
            "run started",
            component=task.component,
            provider=PROVIDER,
            version=VERSION,
        )
        self._reporter.running()
        io = open_storage(
            environment.storage,
            environment.inputs,
            environment.outputs,
            f"{task.component} of {task.me}",
        )
        net = ChannelNet(
            task,
            environment.transport,
            session=environment.session_id,
            token=environment.token,
            trace=environment.trace_id,
            institutions=environment.institutions,
            deadline=Deadline(environment.deadline),
            log=self._log,
            form=environment.form,
        )
        try:
            component(task, io, net, self._log)
        finally:
            net.close()

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.exit_code = 0
            self._reporter.succeeded()
            self._log.finish(
                "info",
                "run ended",
                status="SUCCESS",
                result_code=SUCCESS_CODE,
                exit_code=0,
            )
            return
        named = isinstance(error, VendorError)
        self.exit_code = error.exit_code if isinstance(error, VendorError) else 1
        code = error.result_code if isinstance(error, VendorError) else FAILURE_CODE
        # What is not a named failure may quote data, so its words stay in this party's log.
        message = str(error) if named else f"internal error: {type(error).__name__}"
        if not named:
            trace = "".join(traceback.format_exception(error))
            self._log("error", "component failed unexpectedly", trace=trace)
        self._reporter.failed(message, code)
        fields = {
            "status": "FAILED",
            "result_code": code,
            "exit_code": self.exit_code,
            "result_message": message,
        }
        self._log.finish("error", "run ended", **fields)


def _component(environment: Environment) -> Component:
    task = environment.task
    roles = REGISTRY.get(task.component)
    if roles is None:
        raise BadParameters(
            f"runtime.component.name: must be one of {', '.join(REGISTRY)}, got {task.component!r}"
        )
    if task.role not in roles:
        raise BadParameters(
            f"config.self_role: {task.component} has the roles {', '.join(roles)}, got {task.role!r}"
        )
    return roles[task.role]


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refvendor",
        description="Runs the component named by runtime.component.name in the environment.",
        epilog="Exit codes: 0 success, 1 failure, 2 bad parameters or environment, 3 no answer from a peer or the "
        "transport in time, 4 storage, 143 terminated.",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--registration",
        action="store_true",
        help="print the body that registers this image with a platform",
    )
    group.add_argument(
        "--selftest",
        action="store_true",
        help="run every component on made-up data, all parties in this process",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
