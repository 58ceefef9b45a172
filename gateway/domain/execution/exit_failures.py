"""Why a container failed, in the words that every party of the job sees.

The Docker daemon may have ended the container. A container survives the death of its daemon, but a
daemon that starts again without live-restore ends the container by SIGTERM or SIGKILL, or does not
know how the container ended (exit code 255). A daemon that is shut down first refuses requests,
then ends its containers, and only then closes its connections. In these cases the engine has
failed, not the container.
"""

import shlex
from datetime import timedelta

from gateway.domain.run import Exit, Run
from gateway.domain.spec import Failure
from gateway.domain.states import TaskStatus

NEVER_BEGAN = (126, 127)  # exit codes of a command that could not be executed

# Exit codes of a container whose daemon died: unknown, SIGKILL, SIGTERM.
_DAEMON_EXIT_CODES = (255, 137, 143)
# Time that Docker gives its containers to end when Docker is shut down. A container that exited
# longer than this before its engine became silent was not ended by the engine.
_DAEMON_GRACE = timedelta(seconds=15)
# Signals that end programs without enough memory: abort, bus error, kill, segmentation fault.
_OUT_OF_MEMORY_SIGNALS = (6, 7, 9, 11)
# A program that a signal ended has this number plus the signal's number as its exit code.
_BY_SIGNAL = 128
# Exit codes with a meaning by convention.
_MEANINGS = {
    126: (
        "the program to run exists and cannot be executed: a file without the permission, "
        "or one that was built for another kind of machine"
    ),
    127: (
        "the program to run was not found: one that the image does not have, "
        "such as the interpreter in a script's first line or the program behind env"
    ),
}


def exit_failure(run: Run, job_id: str) -> Failure:
    """Return why the container failed, in the words that every party of the job sees.

    The reason is the first that applies:

    - REPORTED_FAILED: the container reported a failure, and its exit code is 0 or not known;
    - OOM_KILLED: the kernel killed the container for lack of memory;
    - ENGINE_DOWN: the container ended because its engine died or restarted;
    - EXIT_<code>, such as EXIT_1: any other exit code.
    """
    result = _result_in_words(run)
    reported_text = result or _pointer_to_log(run, job_id)
    exit_ = run.exit
    if exit_ is None:
        return Failure("REPORTED_FAILED", reported_text)
    code = exit_.code
    if code == 0:
        reason = "REPORTED_FAILED"
        text = reported_text
    elif exit_.oom_killed:
        reason = "OOM_KILLED"
        text = result or "the container used more memory than it may"
    elif _ended_with_engine(run, exit_):
        reason = "ENGINE_DOWN"
        text = f"the container engine went away and took the container along (exit code {code})"
    else:
        reason = f"EXIT_{code}"
        text = _exit_in_words(run, exit_, result)
    return Failure(reason, text, exit_code=code)


def _result_in_words(run: Run) -> str:
    """Return the reported result code and its message for a sentence; empty if neither came.

    If a code came without a message, the message is the one that the vendor registered for it.
    """
    report = run.container_report
    message = report.result_message or run.software.results.get(report.result_code, "")
    if not report.result_code:
        return message
    code = f"result code {report.result_code}"
    if not message:
        return code
    return f"{code}: {message}"


def _pointer_to_log(run: Run, job_id: str) -> str:
    """Return the message for a failure without one: the command that shows the log."""
    arguments = [job_id, "--task", run.task_name, "--party", run.party.label]
    look = shlex.join(["bfia-gateway", "job", "logs", *arguments])
    return f"the container reported FAILED; its node has the log: {look}"


def _exit_in_words(
    run: Run,
    exit_: Exit,
    result: str,
) -> str:
    """Describe an exit code other than 0, its usual meaning, and the reported result."""
    sentences = [_exit_code_in_words(run, exit_)]
    if not run.container_report.status:  # a program that has reported anything did start
        sentences.append(exit_meaning(exit_.code))
    is_memory_signal = exit_.code - _BY_SIGNAL in _OUT_OF_MEMORY_SIGNALS
    if is_memory_signal and run.limits.get("memory"):
        text = "its memory is limited, and programs that get no more memory often end in this way"
        sentences.append(text)
    sentences.append(result)
    return "; ".join(filter(None, sentences))


def _exit_code_in_words(run: Run, exit_: Exit) -> str:
    """Describe an exit code with the signal that caused it and the last report before it."""
    text = f"exit code {exit_.code}"
    if exit_.signal:
        text += f" by signal {exit_.signal}"
    reported_status = run.container_report.status
    if reported_status:
        text += f" after it reported {reported_status}"
    return text


def exit_meaning(code: int) -> str:
    """Return the meaning that an exit code has by convention; empty for a code without one."""
    return _MEANINGS.get(code, "")


def _ended_with_engine(run: Run, exit_: Exit) -> bool:
    """Return whether the container exited because its engine died or restarted.

    The engine was silent, the container has not reported a failure, the exit code is one that a
    daemon causes, and the container did not exit long before the silence.
    """
    if run.away_at is None or run.container_report.status is TaskStatus.FAILED:
        return False
    if exit_.code not in _DAEMON_EXIT_CODES:
        return False
    return exit_.finished_at is None or exit_.finished_at >= run.away_at - _DAEMON_GRACE
