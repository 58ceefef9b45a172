"""The clauses of the container contract: each with its text, and a pure function that judges what was seen.

One cause fails one clause: what cannot be judged because of it is ``not shown`` in the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import cleandoc
from itertools import groupby

from gateway.conformance import evidence
from gateway.conformance.evidence import Evidence, Finding, Trace, failed, not_shown, ok

TOGETHER = "together"
"""all parties against each other"""
STOPPED = "stopped"
"""each party without its partners, sent SIGTERM"""
WITHOUT_DATA = "without data"
"""all parties, with nothing at their inputs' addresses"""

LONGEST_LINE = 1024 * 1024
"""bytes of one line of the log"""
_NO_SUCCESS = "its parties did not get to the end together"

Judge = Callable[[Evidence], Finding]


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
    judge: Judge
    shown_by: str = TOGETHER
    """which trial shows it"""


_CLAUSES: list[Clause] = []


def _clause(
    name: str,
    section: str,
    shown_by: str = TOGETHER,
) -> Callable[[Judge], Judge]:
    """Add a clause, whose judge's docstring says what a component keeps, then what to do if it does not."""

    def add(judge: Judge) -> Judge:
        says, _, remedy = cleandoc(judge.__doc__ or "").partition("\n\n")
        _CLAUSES.append(Clause(name, section, _one_line(says), _one_line(remedy), judge, shown_by))
        return judge

    return add


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


@_clause("starts", "3.3")
def _starts(seen: Evidence) -> Finding:
    """The container starts without arguments; all it needs is in its environment.

    Have the image on this machine (docker pull, docker build), built for its architecture; let the image's
    own command read the environment; have the interpreter that a script's first line names in the image.
    """
    alike: dict[str, list[str]] = {}
    for trace in seen.together.traces:
        if not trace.started:
            alike.setdefault(trace.end.removeprefix(trace.party), []).append(trace.party)
    if alike:
        return failed("; ".join(", ".join(parties) + end for end, parties in alike.items()))
    return ok(f"{_parties(seen.together.traces)} started")


@_clause("works", "3.3, 3.4")
def _works(seen: Evidence) -> Finding:
    """With `system.*`, `config.*` and `runtime.*`, all parties succeed together.

    Dotted names cannot be exported from a shell: read them from the process's environment. Give data that fits
    with --data, values with --parameter.
    """
    if not all(t.started for t in seen.together.traces):
        return not_shown("it did not start")
    if seen.best.worked:
        return ok(f"{_parties(seen.best.traces)} succeeded")
    hint = f"; nothing could be made up for {', '.join(seen.lacks)}" if seen.lacks else ""
    return failed(seen.best.end + evidence.summary(seen.best.traces) + hint, _first_step(seen))


def _first_step(seen: Evidence) -> str:
    """Return what to do first about parties that do not succeed together; empty where nothing points to it."""
    traces = seen.best.traces
    if seen.lacks:
        return f"give {', '.join(seen.lacks)} by --data ROLE.INPUT=FILE"
    if evidence.alien(traces):
        return "send config.session_id and config.token as they are given"
    if evidence.refused(traces):
        return "correct the request to the channel that was refused"
    if large := [trace.party for trace in traces if trace.oom_killed]:
        return f"find what {', '.join(large)} needs so much memory for, or allow more by --memory"
    if failing := [trace.party for trace in traces if trace.code and not trace.was_stopped]:
        own = (
            "; their tables were made up, so give yours by --data ROLE=FILE.csv"
            if seen.made_up
            else ""
        )
        return f"find the cause in the last lines of {', '.join(failing)}{own}"
    if evidence.unsent(traces):
        return (
            "push what is waited for, under the same topic, with x-ptp-target-node-id of who waits"
        )
    if any(trace.no_callback for trace in traces):
        return "report SUCCESS as the last step before the exit, or write all outputs"
    hung = [trace.party for trace in traces if trace.was_stopped]
    return f"find what {', '.join(hung)} waits for, or give more time by --timeout" if hung else ""


@_clause("optional-omitted", "3.2")
def _optional_omitted(seen: Evidence) -> Finding:
    """A parameter that is optional may be absent; the component applies its own default.

    Apply the default inside, or register the parameter with optional false.
    """
    optional = [p.name for p in seen.component.parameters if p.optional]
    if not optional:
        return not_shown("it has no optional parameter")
    if seen.together.worked or (seen.known_only is not None and seen.known_only.worked):
        return ok(f"worked without {_some(optional)}")
    if seen.all_given is not None and seen.all_given.worked and seen.known_only is not None:
        return failed(f"works only with the defaults of {_some(optional)}: {seen.known_only.end}")
    return not_shown(_NO_SUCCESS)


@_clause("unknown-parameter", "3.4")
def _unknown_parameter(seen: Evidence) -> Finding:
    """A `runtime.component.parameter.*` that the description does not name is ignored.

    Read the parameters that you know by their names; do not refuse others.
    """
    if seen.together.worked:
        return ok("worked with a parameter that its description does not name")
    if seen.known_only is not None and seen.known_only.worked:
        return failed(f"works without it; with it: {seen.together.end}")
    return not_shown(_NO_SUCCESS)


@_clause("callback-sent", "3.5")
def _callback_sent(seen: Evidence) -> Finding:
    """The component reports its state to `system.callback`.

    POST {task_id, status, role} as JSON to the address in system.callback. Without one, some gateways go by
    the exit code, and others take it for a failure.
    """
    silent = [t.party for t in _ended(seen) if not t.requests.reports and not t.requests.refused]
    wrong = [f"no callback from {', '.join(silent)}"] if silent else []
    return _unless(wrong, _reported(seen, lambda t: f"{t.party} reported {_states(t)}"))


@_clause("callback-form", "3.5")
def _callback_form(seen: Evidence) -> Finding:
    """A callback is a JSON object whose status is RUNNING, SUCCESS or FAILED.

    Send the fields as texts, and one of the three words.
    """
    wrong = [f"{t.party}: {text}" for t in seen.best.traces for text in t.requests.refused]
    return _unless(wrong, _reported(seen, lambda t: f"{t.party}: {len(t.requests.reports)} read"))


@_clause("callback-address", "3.5")
def _callback_address(seen: Evidence) -> Finding:
    """Callbacks go to the given address, with its query.

    Use system.callback as it is; do not build the address from parts.
    """
    wrong = [t.party for t in seen.best.traces if any(not s.address for s in t.requests.reports)]
    if wrong:
        return failed(f"{', '.join(wrong)} used another path or omitted the query")
    return _reported(seen, lambda t: f"{t.party} used it as given")


@_clause("callback-names", "3.5")
def _callback_names(seen: Evidence) -> Finding:
    """A callback names the task of `config.task_id` and the role of `config.self_role` (`guest` or
    `guest.0`).

    Copy both from the environment.
    """
    wrong = []
    for trace in seen.best.traces:
        for report in trace.requests.reports:
            if report.task_id != trace.task_id:
                wrong.append(
                    f"{trace.party} has task_id {report.task_id[:80]!r}, expected {trace.task_id!r}"
                )
            if report.role not in (trace.party, trace.party.partition(".")[0]):
                wrong.append(f"{trace.party} has role {report.role[:80]!r}")
    return _unless(wrong, _reported(seen, lambda t: f"{t.party} names both"))


@_clause("callback-running", "3.5")
def _callback_running(seen: Evidence) -> Finding:
    """RUNNING is reported before the final state.

    Report RUNNING once, at the beginning.
    """
    late = [
        t.party for t in _ended(seen) if t.reported and t.requests.reports[-1].status == "RUNNING"
    ]
    if late:
        return failed(f"{', '.join(late)} reported RUNNING after the end")
    silent = (
        "never reported RUNNING: a gateway shows such a run as running once its container is up"
    )
    otherwise = silent if any(t.reported for t in _ended(seen)) else "reported nothing"

    def running(trace: Trace) -> str:
        reported = any(report.status == "RUNNING" for report in trace.requests.reports)
        return f"{trace.party} reported it" if reported else ""

    return _all(seen, running, otherwise)


@_clause("callback-end", "3.5")
def _callback_end(seen: Evidence) -> Finding:
    """A component that reports RUNNING reports its end, too.

    Report SUCCESS or FAILED as the last step before the exit.
    """
    wrong = [
        f"{t.party} exited with code 0, without a report and without its outputs {', '.join(t.missing)}"
        for t in seen.best.traces
        if t.no_callback and t.missing
    ]
    flagged = "reported no end: a node takes exit code 0 with all outputs for SUCCESS and flags it no_callback, "
    flagged += "unless limits.exit_without_report says fails"
    return _unless(
        wrong, _all(seen, lambda t: t.reported and f"{t.party} reported {t.reported}", flagged)
    )


@_clause("exit-code", "3.5")
def _exit_code(seen: Evidence) -> Finding:
    """A success exits with code 0.

    Exit with 0 after SUCCESS, with a code above 0 after FAILED.
    """
    wrong = [
        f"{t.party} ended with code {t.code} after a success"
        for t in _ended(seen)
        if t.worked and t.code != 0
    ]
    return _unless(
        wrong, _all(seen, lambda t: f"{t.party} ended with code {t.code}" if t.worked else "")
    )


@_clause("result-code", "3.2", shown_by=WITHOUT_DATA)
def _result_code(seen: Evidence) -> Finding:
    """A result code, in a callback or in the last line of the log as JSON, is one of those in `result`.

    List each code that the component reports under result, as text, with its meaning.
    """
    codes = [(t, t.result_code) for t in (*seen.best.traces, *seen.without_data) if t.result_code]
    meanings = seen.component.results
    listed = ", ".join(meanings) or "none"
    if wrong := [f"{t.party} reported {code[:80]!r}" for t, code in codes if code not in meanings]:
        return failed(f"{'; '.join(dict.fromkeys(wrong))}; the description lists {listed}")
    shown = dict.fromkeys(f"{t.party} reported {code} ({meanings[code]})" for t, code in codes)
    return ok("; ".join(shown)) if shown else not_shown("it reports none, which is allowed")


@_clause("failure-told", "3.5", shown_by=WITHOUT_DATA)
def _failure_reported(seen: Evidence) -> Finding:
    """A run that cannot do its work ends with a code above 0 and does not report SUCCESS.

    Treat an input that is missing or empty as a failure.
    """
    if not seen.component.inputs:
        return not_shown("it has no input")
    hungry = [trace for trace in seen.without_data if trace.ended]
    wrong = [trace.end for trace in hungry if trace.code == 0 or trace.reported == "SUCCESS"]
    if wrong:
        return failed("its input is missing, and yet " + "; ".join(wrong))
    shown = (
        f"{t.party} ended with code {t.code}{f', reported {t.reported}' if t.reported else ''}"
        for t in hungry
    )
    return ok("; ".join(shown)) if hungry else not_shown("no party ended for lack of input")


@_clause("stdout-log", "3.6")
def _stdout_log(seen: Evidence) -> Finding:
    """The log comes on standard output, as lines of UTF-8 text.

    Print the log line by line and flush it.
    """
    wrong = []
    for trace in _ended(seen):
        if not trace.stdout.strip():
            wrong.append(f"{trace.party} wrote nothing to standard output")
        try:
            trace.stdout.decode("utf-8")
        except UnicodeDecodeError:
            wrong.append(f"what {trace.party} wrote is not UTF-8")
        if any(len(line) > LONGEST_LINE for line in trace.stdout.splitlines()):
            wrong.append(f"{trace.party} wrote a line of more than {LONGEST_LINE} bytes")
    return _unless(wrong, _all(seen, lambda t: f"{t.party}: {len(t.stdout.splitlines())} lines"))


@_clause("log-files", "3.6")
def _log_files(seen: Evidence) -> Finding:
    """Log files lie in `config.log.path`.

    Write them there and nowhere else; none at all is fine.
    """
    files = [f"{t.party}: {_some(t.log_files)}" for t in _ended(seen) if t.log_files]
    return ok("; ".join(files)) if files else not_shown("it writes none, which is allowed")


@_clause("output-written", "3.4")
def _outputs_written(seen: Evidence) -> Finding:
    """Every declared output lies at the address in `runtime.component.output.*`, at one party at least.

    Write <storage>/<namespace>/<name>/data_0 (or a plain file <name>), with both names as given.
    """
    if not seen.component.outputs:
        return not_shown("it has no output")
    if not seen.best.worked:
        return not_shown(_NO_SUCCESS)
    traces = seen.best.traces
    names = [o.name for o in seen.component.outputs]
    gone = [name for name in names if all(name not in t.outputs for t in traces)]
    if gone:
        elsewhere = [f"{t.party} wrote {_some(t.strays)} instead" for t in traces if t.strays]
        return failed("; ".join([f"nothing at the address of {', '.join(gone)}", *elsewhere]))
    partly = [f"{n} not at {t.party}" for t in traces for n in names if n not in t.outputs]
    return ok(f"{', '.join(names)} written{f' ({_some(partly)})' if partly else ''}")


@_clause("output-form", "3.2, 4")
def _output_form(seen: Evidence) -> Finding:
    """An output can be read, in the format that the description names first.

    Write what dataFormat says first, readable for all users; beside a table's data_0 the file metadata, a JSON
    object with count and column_info.
    """
    written = [(t.party, *output) for t in seen.best.traces for output in t.outputs.items()]
    shown = (
        ok(f"{len(written)} read")
        if written
        else not_shown("nothing was written at the given addresses")
    )
    return _unless((f"{name} of {party} {wrong}" for party, name, wrong in written if wrong), shown)


@_clause("output-only-there", "4")
def _only_there(seen: Evidence) -> Finding:
    """Nothing is written into the storage but the outputs.

    Use a temporary folder of the container for all else.
    """
    if not seen.best.worked:
        return not_shown(_NO_SUCCESS)
    if _outputs_written(seen).result == "failed":
        return not_shown("the outputs are not where they belong")
    wrong = [f"{t.party} wrote {_some(t.strays)}" for t in seen.best.traces if t.strays]
    return _unless(
        wrong, ok("nothing else can be written" if seen.confined else "nothing else was written")
    )


@_clause("input-untouched", "4")
def _inputs_untouched(seen: Evidence) -> Finding:
    """Inputs are left as they are.

    Open inputs for reading only.
    """
    if not seen.component.inputs or not any(t.started for t in seen.best.traces):
        return not_shown("there was no input")
    wrong = [f"{t.party} changed {_some(t.changed)}" for t in seen.best.traces if t.changed]
    shown = ok("cannot be changed" if seen.confined else "are as they were")
    return _unless(wrong, shown if seen.best.worked else not_shown(_NO_SUCCESS))


@_clause("channel-session", "transport 2")
def _channel_session(seen: Evidence) -> Finding:
    """Messages go through `system.transport` with the given session and token.

    Send config.session_id and config.token in x-ptp-session-id and x-ptp-token.
    """
    calls = [(t, s) for t in seen.best.traces for s in t.requests.channel_calls]
    by = ", ".join(dict.fromkeys(t.party for t, _ in calls))
    return _unless(
        evidence.alien(seen.best.traces),
        ok(f"{len(calls)} requests by {by}") if calls else not_shown("it does not use the channel"),
    )


@_clause("channel-accepted", "transport 2")
def _channel_accepted(seen: Evidence) -> Finding:
    """Every request to the channel is accepted: its target is a node of the job, its body has one of the forms.

    Name the receiver's config.node_id.<party> in x-ptp-target-node-id; send the Content-Type of the form that
    the body has.
    """
    traces = [t for t in seen.best.traces if t.started]
    pushes = sum(
        c.operation == "push" and c.succeeded for t in traces for c in t.requests.channel_calls
    )
    asked = any(t.requests.channel_calls for t in traces)
    if evidence.alien(traces):
        return not_shown("a node refuses another session or token")
    return _unless(
        evidence.refused(traces),
        ok(f"{pushes} messages were taken") if asked else not_shown("it does not use the channel"),
    )


@_clause("channel-topics", "transport 2")
def _channel_topics(seen: Evidence) -> Finding:
    """What one party waits for, another sends to it under the same topic.

    Build the topic of a message in one place, for sender and receiver alike, from the task and both parties.
    """
    traces = [t for t in seen.best.traces if t.started]
    if not any(c.topic is not None for t in traces for c in t.requests.channel_calls):
        return not_shown("it names no topic on the channel")
    if not seen.best.worked and (missing := evidence.unsent(traces)):
        return failed("; ".join(missing[:3]))
    left = evidence.unclaimed(traces)
    return (
        ok("; ".join(left[:3]) or "every message was read")
        if seen.best.worked
        else not_shown(_NO_SUCCESS)
    )


@_clause("own-paths", "3.3")
def _own_paths(seen: Evidence) -> Finding:
    """Nothing of the gateway is used but the channel and the callback.

    Leave everything else to the platform: a gateway's other paths are closed to containers.
    """
    wrong = [
        f"{t.party}: {_some(t.requests.others)}" for t in seen.best.traces if t.requests.others
    ]
    asked = any(t.requests.reports or t.requests.channel_calls for t in seen.best.traces)
    return _unless(wrong, ok("nothing else was used") if asked else not_shown("it sent no request"))


@_clause("sigterm", "3.5", shown_by=STOPPED)
def _sigterm(seen: Evidence) -> Finding:
    """A run that gets SIGTERM exits by itself, within the grace period.

    Handle SIGTERM also while waiting for a partner; start it with exec, so that it gets the signal.
    """
    stopped = [t for t in seen.alone if t.was_stopped]
    wrong = [
        f"{t.party} had to be killed after {t.stop_seconds:.0f} s" for t in stopped if t.killed
    ]
    wrong += [
        f"{t.party} reported SUCCESS" for t in stopped if not t.killed and t.reported == "SUCCESS"
    ]
    ends = (f"{t.party} ended after {t.stop_seconds:.1f} s with code {t.code}" for t in stopped)
    return _unless(
        wrong, ok("; ".join(ends)) if stopped else not_shown("it ended before it could be stopped")
    )


CLAUSES = tuple(_CLAUSES)
"""Every clause, in the order in which a report lists them."""


def _ended(seen: Evidence) -> list[Trace]:
    """Return the parties of the trial that shows most, where it shows how a run ends by itself."""
    return [t for t in seen.best.traces if t.ended] if seen.best.worked else []


def _unless(wrong: Iterable[str], kept: Finding) -> Finding:
    """Find that a clause is broken by the first few things that are wrong; with none, ``kept``."""
    found = list(dict.fromkeys(wrong))
    return failed("; ".join(found[:3])) if found else kept


def _all(
    seen: Evidence,
    look: Callable[[Trace], str],
    otherwise: str = "reported nothing",
) -> Finding:
    """Join what every party shows; not shown where some party shows nothing."""
    found = {trace.party: look(trace) for trace in _ended(seen)}
    if not found:
        return not_shown(_NO_SUCCESS)
    if mute := [party for party, shown in found.items() if not shown]:
        return not_shown(f"{', '.join(mute)} {otherwise}")
    return ok("; ".join(found.values()))


def _reported(seen: Evidence, look: Callable[[Trace], str]) -> Finding:
    return _all(seen, lambda trace: look(trace) if trace.requests.reports else "")


def _states(trace: Trace) -> str:
    """Return the reported states in their order; a repeated one, such as RUNNING, once."""
    states = [
        (status, len(list(same)))
        for status, same in groupby(report.status for report in trace.requests.reports)
    ]
    return _some(
        (f"{status} ({times} times)" if times > 1 else status for status, times in states), 5
    )


def _parties(traces: Iterable[Trace]) -> str:
    return ", ".join(trace.party for trace in traces)


def _some(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
