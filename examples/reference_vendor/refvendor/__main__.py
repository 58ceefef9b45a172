"""The image's entry point: reads the environment, runs a component, writes outputs and reports the
result.

Exit codes: 0 success, 1 failure, 2 bad parameters or environment, 3 a peer or the transport gave no
answer in time, 4 storage, 143 terminated. The last line on stdout is a JSON object with
``result_code``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn

from nacl.signing import SigningKey

from refvendor import PROVIDER, VERSION
from refvendor.attestation import fetch_inputs, measurement_of
from refvendor.components import REGISTRY
from refvendor.contract import BadParameters, Component, Task, VendorError
from refvendor.env import Environment, read_environment
from refvendor.log import JsonLog
from refvendor.party_messages import ChannelNet
from refvendor.registration import as_text, registration
from refvendor.report import FAILURE_CODE, SUCCESS_CODE, Reporter
from refvendor.selftest import selftest
from refvendor.storage import open_storage
from refvendor.transport_calls import Deadline

TERMINATED = 143  # exit code after SIGTERM
TERMINATION_SECONDS = 2.0  # for the last report after SIGTERM


class Terminated(BaseException):
    """The platform asked the process to end."""


def main(
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run the command line and return the exit code; without options, run the component of the
    environment.
    """
    options = _parser().parse_args(arguments)
    if options.registration:
        sys.stdout.write(as_text(registration()))
        return 0
    if options.measurement:
        sys.stdout.write(f"{measurement_of(Path(__file__).parent)}\n")
        return 0
    log = JsonLog()
    if options.selftest:
        return selftest(log)
    return _run_in_thread(environ, log, options.software_attestation_key)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refvendor",
        description="Runs the component named by runtime.component.name in the environment.",
        epilog="Exit codes: 0 success, 1 failure, 2 bad parameters or environment, 3 no answer "
        "from a peer or the transport in time, 4 storage, 143 terminated.",
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
    group.add_argument(
        "--measurement",
        action="store_true",
        help="print the measurement of this code in software attestation reports",
    )
    parser.add_argument(
        "--software-attestation-key",
        type=Path,
        metavar="FILE",
        help="32 bytes that sign attestation reports in software, which prove no hardware",
    )
    return parser


def _run_in_thread(
    environ: Mapping[str, str],
    log: JsonLog,
    attestation_key: Path | None,
) -> int:
    """Run the component in another thread, so that this one can handle a signal at any moment."""
    run = ProcessRun(environ, log, attestation_key)
    signal.signal(signal.SIGTERM, _raise_terminated)
    worker = threading.Thread(
        target=run.work,
        name="component",
        daemon=True,
    )
    try:
        worker.start()
        run.done.wait()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker.join()  # the interpreter must not end before the thread does
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        run.terminate()
    return run.exit_code


def _raise_terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


class ProcessRun:
    """The run of one component in this process, from the environment to the last report."""

    def __init__(
        self,
        environ: Mapping[str, str],
        log: JsonLog,
        attestation_key: Path | None = None,
    ) -> None:
        """``attestation_key``: file of the key for attestation reports; None: there are none."""
        self.done = threading.Event()
        self.exit_code = 1
        self._environ = environ
        self._log = log
        self._attestation_key = attestation_key
        # Held by the thread that ends the run.
        self._ending = threading.Lock()
        self._reporter = Reporter(
            environ.get("system.callback", ""),
            environ.get("config.task_id", ""),
            environ.get("config.self_role", ""),
            log,
        )

    def work(self) -> None:
        """Run to the end and report; sets ``exit_code`` and ``done``."""
        error: BaseException | None = None
        try:
            self._run()
        except BaseException as caught:
            error = caught
        with self._ending:
            if error is None:
                self._succeed()
            elif isinstance(error, VendorError):
                self._fail(
                    str(error),
                    error.result_code,
                    error.exit_code,
                )
            else:
                self._fail_unexpectedly(error)
            self.done.set()

    def terminate(self) -> NoReturn:
        """End the process now, with a report unless the run is already reporting its end."""
        may_report = self._ending.acquire(timeout=TERMINATION_SECONDS)
        if self.done.is_set():
            os._exit(self.exit_code)
        if may_report:
            self._log("warning", "terminated by the platform")
            self._reporter.failed(
                "terminated by SIGTERM",
                seconds=TERMINATION_SECONDS,
            )
            self._log.finish(
                "error",
                "run ended",
                status="FAILED",
                result_code=FAILURE_CODE,
                exit_code=TERMINATED,
            )
        os._exit(TERMINATED)

    def _run(self) -> None:
        """Read the environment and run its component.

        Raises `VendorError` for failures with a known cause.
        """
        environment = read_environment(self._environ)
        task = environment.task
        log_name = f"{task.task_id}-{task.me}.log"
        self._log.copy_to(
            environment.log_path,
            log_name,
            task=task.task_id,
            party=task.me,
        )
        component = _find_component(task)
        self._log(
            "info",
            "run started",
            component=task.component,
            provider=PROVIDER,
            version=VERSION,
        )
        self._reporter.running()
        with self._inputs(environment) as (attested, input_url):
            self._run_component(component, attested, input_url)

    @contextmanager
    def _inputs(self, environment: Environment) -> Iterator[tuple[Environment, str]]:
        """Return the environment with the addresses of the inputs, and the URL of their storage.

        The URL is empty for the platform's storage. Inputs that the platform gives only to an
        attested run are fetched into a temporary folder.
        """
        key_file = self._attestation_key
        if not environment.attestation_url or key_file is None:
            yield environment, ""
            return
        with TemporaryDirectory() as folder:
            attested = fetch_inputs(
                environment.attestation_url,
                environment.attestation_binding,
                SigningKey(key_file.read_bytes()),
                Path(folder),
            )
            self._log("info", "attestation report verified", inputs=sorted(attested.inputs))
            task = replace(environment.task, inputs=tuple(attested.inputs))
            yield (
                replace(environment, task=task, inputs=attested.inputs),
                f"file://{attested.folder}",
            )

    def _run_component(
        self,
        component: Component,
        environment: Environment,
        input_url: str,
    ) -> None:
        """Connect a component to the platform's storage and transport, and run it.

        ``input_url``: the storage of the inputs; empty for the platform's.
        """
        task = environment.task
        io = open_storage(
            environment.storage,
            environment.inputs,
            environment.outputs,
            f"{task.component} of {task.me}",
            input_url,
        )
        net = ChannelNet(
            task,
            environment.transport,
            environment.session,
            Deadline(environment.deadline),
            self._log,
            form=environment.form,
        )
        try:
            component(task, io, net, self._log)
        finally:
            net.close()

    def _succeed(self) -> None:
        self.exit_code = 0
        self._reporter.succeeded()
        self._log.finish(
            "info",
            "run ended",
            status="SUCCESS",
            result_code=SUCCESS_CODE,
            exit_code=0,
        )

    def _fail_unexpectedly(self, error: BaseException) -> None:
        """Fail with the error's type only: its text may quote data, so it stays in this party's
        log.
        """
        trace = "".join(traceback.format_exception(error))
        self._log(
            "error",
            "component failed unexpectedly",
            trace=trace,
        )
        self._fail(
            f"internal error: {type(error).__name__}",
            FAILURE_CODE,
            exit_code=1,
        )

    def _fail(
        self,
        message: str,
        result_code: str,
        exit_code: int,
    ) -> None:
        self.exit_code = exit_code
        self._reporter.failed(message, result_code)
        self._log.finish(
            "error",
            "run ended",
            status="FAILED",
            result_code=result_code,
            exit_code=exit_code,
            result_message=message,
        )


def _find_component(task: Task) -> Component:
    """Return the function of the task's component and role.

    Raises `BadParameters` if there is none.
    """
    roles = REGISTRY.get(task.component)
    if roles is None:
        raise BadParameters(
            f"runtime.component.name: must be one of {', '.join(REGISTRY)}, got {task.component!r}"
        )
    if task.role not in roles:
        raise BadParameters(
            f"config.self_role: {task.component} has the roles {', '.join(roles)}, got "
            f"{task.role!r}"
        )
    return roles[task.role]


if __name__ == "__main__":
    sys.exit(main())
