"""The clauses of the container contract, as rows. A further one is a row here and a function in `judging`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.conformance import judging
from gateway.conformance.evidence import Evidence, Finding

TOGETHER = "together"
"""all parties against each other"""
STOPPED = "stopped"
"""each party without its partners, told to end"""
WITHOUT_DATA = "without data"
"""all parties, with inputs that hold nothing"""


@dataclass(frozen=True)
class Clause:
    """One thing that a component keeps or breaks."""

    name: str
    """stable; scripts may rely on it"""
    section: str
    """of the component layer's standard"""
    says: str
    remedy: str
    """what a vendor does where it is broken"""
    judge: Callable[[Evidence], Finding]
    shown_by: str = TOGETHER
    """which trial shows it"""


CLAUSES = (
    Clause(
        "starts",
        "3.3",
        "The container starts without arguments; all it has to know is in its environment.",
        "Have the image on this machine (docker pull, docker build), built for its architecture; let the image's "
        "own command read the environment; have the interpreter that a script's first line names in the image.",
        judging.starts,
    ),
    Clause(
        "works",
        "3.3, 3.4",
        "With what `system.*`, `config.*` and `runtime.*` tell, all parties come to a successful end together.",
        "Read the last lines above. Dotted names cannot be exported from a shell: read them from the process's "
        "environment. Give data that fits with --data, values with --parameter.",
        judging.works,
    ),
    Clause(
        "optional-omitted",
        "3.2",
        "A parameter that is optional may be absent; the component applies its own default.",
        "Apply the default inside, or register the parameter with optional false.",
        judging.optional_omitted,
    ),
    Clause(
        "unknown-parameter",
        "3.4",
        "A `runtime.component.parameter.*` that the description does not name is read over.",
        "Read the parameters that you know by their names; do not refuse others.",
        judging.unknown_parameter,
    ),
    Clause(
        "callback-sent",
        "3.5",
        "The component reports its state to `system.callback`.",
        "POST {task_id, status, role} as JSON to the address in system.callback. Where nothing comes, some "
        "gateways go by the exit code, and others take it for a failure.",
        judging.callback_sent,
    ),
    Clause(
        "callback-form",
        "3.5",
        "A callback is a JSON object whose status is RUNNING, SUCCESS or FAILED.",
        "Send the fields as texts, and one of the three words.",
        judging.callback_form,
    ),
    Clause(
        "callback-address",
        "3.5",
        "Callbacks go to the address as it was told, with its query.",
        "Use system.callback as it is; do not build the address from parts.",
        judging.callback_address,
    ),
    Clause(
        "callback-names",
        "3.5",
        "A callback names the task of `config.task_id` and the role of `config.self_role` (`guest` or `guest.0`).",
        "Copy both from the environment.",
        judging.callback_names,
    ),
    Clause(
        "callback-running",
        "3.5",
        "RUNNING is reported before the final state.",
        "Report RUNNING once, at the beginning.",
        judging.callback_running,
    ),
    Clause(
        "callback-end",
        "3.5",
        "A component that reports RUNNING reports its end, too.",
        "Report SUCCESS or FAILED as the last step before the exit.",
        judging.callback_end,
    ),
    Clause(
        "exit-code",
        "3.5",
        "A success ends with exit code 0.",
        "Exit with 0 after SUCCESS, with a code above 0 after FAILED.",
        judging.exit_code,
    ),
    Clause(
        "result-code",
        "3.2",
        "A result code, told in a callback or in the last line of the log as JSON, is one of those in `result`.",
        "List each code that the component tells under result, as text, with what it means.",
        judging.result_code,
    ),
    Clause(
        "failure-told",
        "3.5",
        "A run that cannot do its work ends with a code above 0 and does not report SUCCESS.",
        "Treat an input that is missing or empty as a failure.",
        judging.failure_told,
        WITHOUT_DATA,
    ),
    Clause(
        "stdout-log",
        "3.6",
        "The log comes on standard output, as lines of UTF-8 text.",
        "Print the log line by line and flush it.",
        judging.stdout_log,
    ),
    Clause(
        "log-files",
        "3.6",
        "Log files lie in `config.log.path`.",
        "Write them there and nowhere else; none at all is fine.",
        judging.log_files,
    ),
    Clause(
        "output-written",
        "3.4",
        "Every declared output lies at the address in `runtime.component.output.*`, at one party at least.",
        "Write <storage>/<namespace>/<name>/data_0 (or a plain file <name>), with both names as they were told.",
        judging.outputs_written,
    ),
    Clause(
        "output-form",
        "3.2, 4",
        "An output can be read, in the format that the description names first.",
        "Write what dataFormat says first, readable for all users.",
        judging.output_form,
    ),
    Clause(
        "output-only-there",
        "4",
        "Nothing is written into the storage but the outputs.",
        "Use a temporary folder of the container for all else.",
        judging.only_there,
    ),
    Clause(
        "input-untouched",
        "4",
        "Inputs are left as they are.",
        "Open inputs for reading only.",
        judging.inputs_untouched,
    ),
    Clause(
        "channel-session",
        "transport 2",
        "Messages go through `system.transport` with the session and the token that were told.",
        "Send config.session_id and config.token in x-ptp-session-id and x-ptp-token.",
        judging.channel_session,
    ),
    Clause(
        "own-paths",
        "3.3",
        "Nothing is asked of the gateway but the channel and the callback.",
        "Leave all else to the platform: a gateway's other paths are not open to containers.",
        judging.own_paths,
    ),
    Clause(
        "sigterm",
        "3.5",
        "A run that is told to end (SIGTERM) does so by itself, within the grace.",
        "Handle SIGTERM also while waiting for a partner; start it with exec, so that it gets the signal.",
        judging.sigterm,
        STOPPED,
    ),
)
"""Every clause, in the order in which a report lists them."""


def table(clauses: Iterable[Clause] = CLAUSES) -> str:
    """Return the clauses as a Markdown table."""
    lines = ["| Clause | Section | What a component keeps | If it does not |", "|---|---|---|---|"]
    lines += [f"| `{c.name}` | {c.section} | {c.says} | {c.remedy.replace('<', '&lt;')} |" for c in clauses]
    return "\n".join(lines)
