"""The clauses of the container contract, as rows. A further one is a row here and a function in `judging`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from gateway.conformance.evidence import Evidence, Finding, Trace, failed, not_shown, ok

# Judges what was seen of a component, clause by clause. Pure.
#
# One cause fails one clause: what cannot be told because of it is ``not shown`` in the others.

LONGEST_LINE = 1024 * 1024
"""bytes of one line of the log"""
_NO_SUCCESS = "its parties did not get to the end together"


def starts(seen: Evidence) -> Finding:
    """The engine brings every party up."""
    alike: dict[str, list[str]] = {}
    for trace in seen.together.traces:
        if not trace.started:
            alike.setdefault(trace.end.removeprefix(trace.party), []).append(trace.party)
    if alike:
        return failed("; ".join(", ".join(parties) + end for end, parties in alike.items()))
    return ok(f"{_parties(seen.together.traces)} started")


def works(seen: Evidence) -> Finding:
    """All parties come to their end together."""
    if not all(t.started for t in seen.together.traces):
        return not_shown("it did not start")
    if seen.best.worked:
        return ok(f"{_parties(seen.best.traces)} succeeded with what the environment told")
    hint = f"; nothing could be made up for {', '.join(seen.lacks)}" if seen.lacks else ""
    return failed(seen.best.end + hint)


def optional_omitted(seen: Evidence) -> Finding:
    """Optional parameters may be absent."""
    optional = [p.name for p in seen.component.parameters if p.optional]
    if not optional:
        return not_shown("it has no optional parameter")
    if seen.together.worked or (seen.known_only is not None and seen.known_only.worked):
        return ok(f"worked without {_some(optional)}")
    if seen.all_given is not None and seen.all_given.worked and seen.known_only is not None:
        return failed(f"works only if it is told the defaults of {_some(optional)}: {seen.known_only.end}")
    return not_shown(_NO_SUCCESS)


def unknown_parameter(seen: Evidence) -> Finding:
    """A parameter that the description does not know is read over."""
    if seen.together.worked:
        return ok("worked with a parameter that its description does not name")
    if seen.known_only is not None and seen.known_only.worked:
        return failed(f"works without it; with it: {seen.together.end}")
    return not_shown(_NO_SUCCESS)


def callback_sent(seen: Evidence) -> Finding:
    """Something arrives at the callback's address."""
    silent = [t.party for t in _ended(seen) if not t.heard.said and not t.heard.refused]
    if silent:
        return failed(f"nothing came from {', '.join(silent)}")
    return _all(seen, lambda t: ok(f"{t.party} told {_states(t)}") if t.heard.said else None)


def callback_form(seen: Evidence) -> Finding:
    """A gateway can read every callback."""
    if wrong := [f"{t.party}: {text}" for t in _ended(seen) for text in t.heard.refused]:
        return failed("; ".join(wrong[:3]))
    return _all(seen, lambda t: ok(f"{t.party}: {len(t.heard.said)} read") if t.heard.said else None)


def callback_address(seen: Evidence) -> Finding:
    """Callbacks come to the address as it was told, with its query."""
    wrong = [t.party for t in _ended(seen) if any(not s.address for s in t.heard.said)]
    if wrong:
        return failed(f"{', '.join(wrong)} used another path or left out the query")
    return _all(seen, lambda t: ok(f"{t.party} used it whole") if t.heard.said else None)


def callback_names(seen: Evidence) -> Finding:
    """Callbacks name the task and the role that the run was told."""
    wrong = []
    for trace in _ended(seen):
        for said in trace.heard.said:
            if said.task_id != trace.task_id:
                wrong.append(f"{trace.party} says task_id {said.task_id[:80]!r}, was told {trace.task_id!r}")
            if said.role not in (trace.party, trace.party.partition(".")[0]):
                wrong.append(f"{trace.party} says role {said.role[:80]!r}")
    if wrong:
        return failed("; ".join(list(dict.fromkeys(wrong))[:3]))
    return _all(seen, lambda t: ok(f"{t.party} names both") if t.heard.said else None)


def callback_running(seen: Evidence) -> Finding:
    """RUNNING is told before the end, if at all."""
    late = [t.party for t in _ended(seen) if t.told and t.heard.said[-1].status == "RUNNING"]
    if late:
        return failed(f"{', '.join(late)} told RUNNING after the end")
    otherwise = "told the end only" if any(t.told for t in _ended(seen)) else ""
    return _all(seen, lambda t: ok(f"{t.party} told it") if _told_running(t) else None, otherwise)


def callback_end(seen: Evidence) -> Finding:
    """Who reports at all reports the end, too."""
    wrong = []
    for trace in _ended(seen):
        if trace.heard.said and not trace.told:
            wrong.append(f"{trace.party} told {_states(trace)} and then nothing")
    if wrong:
        return failed("; ".join(wrong))
    return _all(seen, lambda t: ok(f"{t.party} told {t.told}") if t.told else None)


def exit_code(seen: Evidence) -> Finding:
    """A success ends with code 0."""
    wrong = [f"{t.party} ended with code {t.code}" for t in _ended(seen) if t.worked and t.code != 0]
    if wrong:
        return failed("; ".join(wrong) + " after a success")
    return _all(seen, lambda t: ok(f"{t.party} ended with code {t.code}") if t.worked else None)


def result_code(seen: Evidence) -> Finding:
    """A result code that is told is one of those that the description explains."""
    told = [(t, t.result_code) for t in (*seen.best.traces, *seen.without_data) if t.result_code]
    meanings = {r.code: r.message for r in seen.component.results}
    listed = ", ".join(meanings) or "none"
    if wrong := [f"{t.party} told {code[:80]!r}" for t, code in told if code not in meanings]:
        return failed(f"{'; '.join(dict.fromkeys(wrong))}; the description lists {listed}")
    shown = dict.fromkeys(f"{t.party} told {code} ({meanings[code]})" for t, code in told)
    return ok("; ".join(shown)) if shown else not_shown("it tells none, which is allowed")


def failure_told(seen: Evidence) -> Finding:
    """A run that cannot read its input fails, and says so."""
    if not seen.component.inputs:
        return not_shown("it has no input")
    wrong, shown = [], []
    for trace in seen.without_data:
        if trace.was_stopped or not trace.started:
            continue
        if trace.code == 0 or trace.told == "SUCCESS":
            wrong.append(trace.end)
        shown.append(f"{trace.party} ended with code {trace.code}{f', told {trace.told}' if trace.told else ''}")
    if wrong:
        return failed("its input holds nothing, and yet " + "; ".join(wrong))
    return ok("; ".join(shown)) if shown else not_shown("no party ended for want of its input")


def stdout_log(seen: Evidence) -> Finding:
    """The log comes on standard output, as lines of text."""
    wrong = []
    for trace in _ended(seen):
        if not trace.stdout.strip():
            wrong.append(f"{trace.party} wrote nothing to standard output")
            continue
        try:
            trace.stdout.decode("utf-8")
        except UnicodeDecodeError:
            wrong.append(f"what {trace.party} wrote is no UTF-8")
        if any(len(line) > LONGEST_LINE for line in trace.stdout.splitlines()):
            wrong.append(f"{trace.party} wrote a line of more than {LONGEST_LINE} bytes")
    if wrong:
        return failed("; ".join(wrong))
    return _all(seen, lambda t: ok(f"{t.party}: {len(t.stdout.splitlines())} lines"))


def log_files(seen: Evidence) -> Finding:
    """Log files, if any, lie where config.log.path says."""
    files = [f"{t.party}: {_some(t.log_files)}" for t in _ended(seen) if t.log_files]
    return ok("; ".join(files)) if files else not_shown("it writes none, which is allowed")


def outputs_written(seen: Evidence) -> Finding:
    """Every output lies at the address that was told, at least at one party."""
    if not seen.component.outputs:
        return not_shown("it has no output")
    if not seen.best.worked:
        return not_shown(_NO_SUCCESS)
    traces = seen.best.traces
    names = [o.name for o in seen.component.outputs]
    gone = [name for name in names if not any(t.outputs[name].there for t in traces)]
    if gone:
        elsewhere = [f"{t.party} wrote {_some(t.strays)} instead" for t in traces if t.strays]
        return failed("; ".join([f"nothing at the address of {', '.join(gone)}", *elsewhere]))
    partly = [f"{n} not at {t.party}" for t in traces for n in names if not t.outputs[n].there]
    return ok(f"{', '.join(names)} written{f' ({_some(partly)})' if partly else ''}")


def output_form(seen: Evidence) -> Finding:
    """What is written has the form that the description tells first."""
    written = [(t.party, n, w) for t in seen.best.traces for n, w in t.outputs.items() if w.there]
    if wrong := [f"{name} of {party} {w.form}" for party, name, w in written if w.form]:
        return failed("; ".join(wrong))
    return ok(f"{len(written)} read") if written else not_shown("nothing was written where told")


def only_there(seen: Evidence) -> Finding:
    """Nothing else in the storage is written."""
    if not seen.best.worked:
        return not_shown(_NO_SUCCESS)
    if outputs_written(seen).result == "failed":
        return not_shown("the outputs are not where they belong")
    if wrong := [f"{t.party} wrote {_some(t.strays)}" for t in seen.best.traces if t.strays]:
        return failed("; ".join(wrong))
    return ok("nothing else can be written" if seen.confined else "nothing else was written")


def inputs_untouched(seen: Evidence) -> Finding:
    """Inputs are as they were."""
    if not seen.component.inputs or not any(t.started for t in seen.best.traces):
        return not_shown("there was no input")
    if wrong := [f"{t.party} changed {_some(t.changed)}" for t in seen.best.traces if t.changed]:
        return failed("; ".join(wrong))
    if not seen.best.worked:
        return not_shown(_NO_SUCCESS)
    return ok("cannot be changed" if seen.confined else "are as they were")


def channel_session(seen: Evidence) -> Finding:
    """Messages go through the channel under the session and the token that were told."""
    spoken = [(t, s) for t in _ended(seen) for s in t.heard.spoken]
    wrong = [
        f"{t.party} used session {s.session[:80]!r} for {s.operation}" for t, s in spoken if s.session != t.session
    ]
    wrong += [
        f"{t.party} sent no config.token, or another, with {s.operation}" for t, s in spoken if s.token != t.token
    ]
    if wrong:
        return failed("; ".join(list(dict.fromkeys(wrong))[:3]))
    if not spoken:
        return not_shown("it does not use the channel")
    return ok(f"{len(spoken)} requests by {_parties([t for t in _ended(seen) if t.heard.spoken])}")


def own_paths(seen: Evidence) -> Finding:
    """Nothing is asked of the gateway but the channel and the callback."""
    if wrong := [f"{t.party}: {_some(t.heard.strange)}" for t in _ended(seen) if t.heard.strange]:
        return failed("; ".join(wrong))
    asked = any(t.heard.said or t.heard.spoken for t in _ended(seen))
    return ok("nothing else was asked") if asked else not_shown("nothing was asked")


def sigterm(seen: Evidence) -> Finding:
    """A run that is told to end does so by itself, within the grace."""
    stopped = [t for t in seen.alone if t.was_stopped]
    wrong = [f"{t.party} had to be killed after {t.stop_seconds:.0f} s" for t in stopped if t.killed]
    wrong += [f"{t.party} told SUCCESS" for t in stopped if not t.killed and t.told == "SUCCESS"]
    if wrong:
        return failed("; ".join(wrong))
    if not stopped:
        return not_shown("it ended before it could be told to")
    return ok("; ".join(f"{t.party} ended after {t.stop_seconds:.1f} s with code {t.code}" for t in stopped))


def _ended(seen: Evidence) -> list[Trace]:
    """Return the parties of the trial that shows most, where it shows how a run ends by itself."""
    return [t for t in seen.best.traces if t.started and not t.was_stopped] if seen.best.worked else []


def _all(seen: Evidence, look: Callable[[Trace], Finding | None], otherwise: str = "") -> Finding:
    """Join what is shown of every party; not shown where some party shows nothing."""
    traces = _ended(seen)
    if not traces:
        return not_shown(_NO_SUCCESS)
    found = [look(trace) for trace in traces]
    if any(f is None for f in found):
        mute = ", ".join(t.party for t, f in zip(traces, found, strict=True) if f is None)
        return not_shown(f"{mute} {otherwise or 'told nothing'}")
    return ok("; ".join(f.seen for f in found if f is not None))


def _states(trace: Trace) -> str:
    """Return what was told, in its order; what was told again and again, such as RUNNING, once."""
    told = [(status, len(list(again))) for status, again in groupby(said.status for said in trace.heard.said)]
    return _some((f"{status} ({times} times)" if times > 1 else status for status, times in told), 5)


def _told_running(trace: Trace) -> bool:
    return any(said.status == "RUNNING" for said in trace.heard.said)


def _parties(traces: Iterable[Trace]) -> str:
    return ", ".join(trace.party for trace in traces)


def _some(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


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
        starts,
    ),
    Clause(
        "works",
        "3.3, 3.4",
        "With what `system.*`, `config.*` and `runtime.*` tell, all parties come to a successful end together.",
        "Read the last lines above. Dotted names cannot be exported from a shell: read them from the process's "
        "environment. Give data that fits with --data, values with --parameter.",
        works,
    ),
    Clause(
        "optional-omitted",
        "3.2",
        "A parameter that is optional may be absent; the component applies its own default.",
        "Apply the default inside, or register the parameter with optional false.",
        optional_omitted,
    ),
    Clause(
        "unknown-parameter",
        "3.4",
        "A `runtime.component.parameter.*` that the description does not name is read over.",
        "Read the parameters that you know by their names; do not refuse others.",
        unknown_parameter,
    ),
    Clause(
        "callback-sent",
        "3.5",
        "The component reports its state to `system.callback`.",
        "POST {task_id, status, role} as JSON to the address in system.callback. Where nothing comes, some "
        "gateways go by the exit code, and others take it for a failure.",
        callback_sent,
    ),
    Clause(
        "callback-form",
        "3.5",
        "A callback is a JSON object whose status is RUNNING, SUCCESS or FAILED.",
        "Send the fields as texts, and one of the three words.",
        callback_form,
    ),
    Clause(
        "callback-address",
        "3.5",
        "Callbacks go to the address as it was told, with its query.",
        "Use system.callback as it is; do not build the address from parts.",
        callback_address,
    ),
    Clause(
        "callback-names",
        "3.5",
        "A callback names the task of `config.task_id` and the role of `config.self_role` (`guest` or `guest.0`).",
        "Copy both from the environment.",
        callback_names,
    ),
    Clause(
        "callback-running",
        "3.5",
        "RUNNING is reported before the final state.",
        "Report RUNNING once, at the beginning.",
        callback_running,
    ),
    Clause(
        "callback-end",
        "3.5",
        "A component that reports RUNNING reports its end, too.",
        "Report SUCCESS or FAILED as the last step before the exit.",
        callback_end,
    ),
    Clause(
        "exit-code",
        "3.5",
        "A success ends with exit code 0.",
        "Exit with 0 after SUCCESS, with a code above 0 after FAILED.",
        exit_code,
    ),
    Clause(
        "result-code",
        "3.2",
        "A result code, told in a callback or in the last line of the log as JSON, is one of those in `result`.",
        "List each code that the component tells under result, as text, with what it means.",
        result_code,
    ),
    Clause(
        "failure-told",
        "3.5",
        "A run that cannot do its work ends with a code above 0 and does not report SUCCESS.",
        "Treat an input that is missing or empty as a failure.",
        failure_told,
        WITHOUT_DATA,
    ),
    Clause(
        "stdout-log",
        "3.6",
        "The log comes on standard output, as lines of UTF-8 text.",
        "Print the log line by line and flush it.",
        stdout_log,
    ),
    Clause(
        "log-files",
        "3.6",
        "Log files lie in `config.log.path`.",
        "Write them there and nowhere else; none at all is fine.",
        log_files,
    ),
    Clause(
        "output-written",
        "3.4",
        "Every declared output lies at the address in `runtime.component.output.*`, at one party at least.",
        "Write <storage>/<namespace>/<name>/data_0 (or a plain file <name>), with both names as they were told.",
        outputs_written,
    ),
    Clause(
        "output-form",
        "3.2, 4",
        "An output can be read, in the format that the description names first.",
        "Write what dataFormat says first, readable for all users.",
        output_form,
    ),
    Clause(
        "output-only-there",
        "4",
        "Nothing is written into the storage but the outputs.",
        "Use a temporary folder of the container for all else.",
        only_there,
    ),
    Clause(
        "input-untouched",
        "4",
        "Inputs are left as they are.",
        "Open inputs for reading only.",
        inputs_untouched,
    ),
    Clause(
        "channel-session",
        "transport 2",
        "Messages go through `system.transport` with the session and the token that were told.",
        "Send config.session_id and config.token in x-ptp-session-id and x-ptp-token.",
        channel_session,
    ),
    Clause(
        "own-paths",
        "3.3",
        "Nothing is asked of the gateway but the channel and the callback.",
        "Leave all else to the platform: a gateway's other paths are not open to containers.",
        own_paths,
    ),
    Clause(
        "sigterm",
        "3.5",
        "A run that is told to end (SIGTERM) does so by itself, within the grace.",
        "Handle SIGTERM also while waiting for a partner; start it with exec, so that it gets the signal.",
        sigterm,
        STOPPED,
    ),
)
"""Every clause, in the order in which a report lists them."""


def table(clauses: Iterable[Clause] = CLAUSES) -> str:
    """Return the clauses as a Markdown table."""
    lines = ["| Clause | Section | What a component keeps | If it does not |", "|---|---|---|---|"]
    lines += [f"| `{c.name}` | {c.section} | {c.says} | {c.remedy.replace('<', '&lt;')} |" for c in clauses]
    return "\n".join(lines)
