"""The clauses of the container contract: each with its text, and a function that judges evidence.

One cause breaks one clause; other clauses that cannot be judged because of it are ``not shown``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc

from gateway.conformance.evidence import (
    Evidence,
    Finding,
    Result,
    Trace,
    accepted_calls,
    channel_calls,
    channel_summary,
    failed,
    foreign_requests,
    not_shown,
    ok,
    refused_requests,
    unclaimed_topics,
    unsent_topics,
)
from gateway.domain.lists import listed

# The trials that show a clause.
TOGETHER = "together"  # all parties with each other
STOPPED = "stopped"  # each party without its partners, sent SIGTERM
WITHOUT_DATA = "without data"  # all parties, with nothing at their inputs' addresses

LONGEST_LINE = 1024 * 1024  # bytes of one line of the log
_PROBLEM_LIMIT = 3  # problems that a finding names
_NO_SUCCESS = "its parties did not get to the end together"

Judge = Callable[[Evidence], Finding]


@dataclass(frozen=True)
class Clause:
    """One rule of the contract."""

    name: str  # stable; scripts may rely on it
    # Its section in the standard of the component layer; with ``transport`` before the number, in
    # that of the transport layer.
    section: str
    says: str  # its text
    remedy: str  # the vendor's next step if it is broken
    judge: Judge
    shown_by: str = TOGETHER  # the trial that shows it


_CLAUSES: list[Clause] = []


def _clause(
    name: str,
    section: str,
    shown_by: str = TOGETHER,
) -> Callable[[Judge], Judge]:
    """Register the decorated function as the judge of a clause.

    Its docstring holds the clause's text and, after an empty line, the remedy: users see both.
    ``shown_by`` is the trial that a judgement needs.
    """

    def add(judge: Judge) -> Judge:
        says, _, remedy = cleandoc(judge.__doc__ or "").partition("\n\n")
        _CLAUSES.append(Clause(name, section, _one_line(says), _one_line(remedy), judge, shown_by))
        return judge

    return add


def _one_line(text: str) -> str:
    """Return a paragraph of a docstring as one line."""
    return text.replace("\n", " ")


@_clause("starts", "3.3")
def _starts(evidence: Evidence) -> Finding:
    """The container starts without arguments; all it needs is in its environment.

    Have the image on this machine (docker pull, docker build), built for its architecture; let the
    image's own command read the environment; have the interpreter that a script's first line names
    in the image.
    """
    # Parties that ended in the same way are named together.
    parties_by_ending: dict[str, list[str]] = {}
    for trace in evidence.together.traces:
        if not trace.started:
            ending = trace.end.removeprefix(trace.party)
            parties_by_ending.setdefault(ending, []).append(trace.party)
    if parties_by_ending:
        endings = [", ".join(parties) + end for end, parties in parties_by_ending.items()]
        return failed("; ".join(endings))
    return ok(f"{_parties(evidence.together.traces)} started")


@_clause("works", "3.3, 3.4")
def _works(evidence: Evidence) -> Finding:
    """With `system.*`, `config.*` and `runtime.*`, all parties succeed together.

    Dotted names cannot be exported from a shell: read them from the process's environment. Give
    data that fits with --data, values with --parameter.
    """
    together = evidence.together
    if len(together.started) < len(together.traces):
        return not_shown("it did not start")
    best = evidence.best
    if best.worked:
        return ok(f"{_parties(best.traces)} succeeded")
    text = best.end + channel_summary(best.traces)
    if evidence.lacks:
        text += f"; nothing could be made up for {', '.join(evidence.lacks)}"
    return failed(text, _first_step(evidence))


def _first_step(evidence: Evidence) -> str:
    """Return the vendor's first step if the parties do not succeed together; "" without a hint."""
    traces = evidence.best.traces
    oom_killed = [trace for trace in traces if trace.oom_killed]
    ended = [trace for trace in traces if not trace.was_stopped]
    failing = [trace for trace in ended if trace.code]
    unreported = [trace for trace in traces if trace.exited_unreported]
    hung = [trace for trace in traces if trace.was_stopped]
    find_cause = f"find the cause in the last lines of {_parties(failing)}"
    if evidence.made_up:
        find_cause += "; their tables were made up, so give yours by --data ROLE=FILE.csv"
    # Symptoms with their hints. The first symptom counts: it often causes the ones after it.
    hints: list[tuple[Sequence[object], str]] = [
        (evidence.lacks, f"give {', '.join(evidence.lacks)} by --data ROLE.INPUT=FILE"),
        (
            foreign_requests(traces),
            "send config.session_id and config.token as they are given",
        ),
        (
            refused_requests(traces),
            "correct the request to the channel that was refused",
        ),
        (
            oom_killed,
            f"find what {_parties(oom_killed)} needs so much memory for, or allow more by --memory",
        ),
        (failing, find_cause),
        (
            unsent_topics(traces),
            "push what is waited for, under the same topic, with x-ptp-target-node-id of who waits",
        ),
        (
            unreported,
            "report SUCCESS as the last step before the exit, or write all outputs",
        ),
        (hung, f"find what {_parties(hung)} waits for, or give more time by --timeout"),
    ]
    return next((hint for symptom, hint in hints if symptom), "")


@_clause("optional-omitted", "3.2")
def _optional_omitted(evidence: Evidence) -> Finding:
    """A parameter that is optional may be absent; the component applies its own default.

    Apply the default inside, or register the parameter with optional false.
    """
    optional = [parameter.name for parameter in evidence.component.parameters if parameter.optional]
    if not optional:
        return not_shown("it has no optional parameter")
    if not evidence.best.worked:
        return not_shown(_NO_SUCCESS)
    # The trial `all_given` is made only after the trials without the defaults have failed.
    if evidence.best is evidence.all_given:
        without_optional = evidence.known_only or evidence.together
        return failed(f"works only with the defaults of {listed(optional)}: {without_optional.end}")
    return ok(f"worked without {listed(optional)}")


@_clause("unknown-parameter", "3.4")
def _unknown_parameter(evidence: Evidence) -> Finding:
    """A `runtime.component.parameter.*` that the description does not name is ignored.

    Read the parameters that you know by their names; do not refuse others.
    """
    # `known_only` is the trial without the unknown parameter, made after `together` has failed.
    if evidence.best is evidence.known_only and evidence.best.worked:
        return failed(f"works without it; with it: {evidence.together.end}")
    if evidence.together.worked:
        return ok("worked with a parameter that its description does not name")
    return not_shown(_NO_SUCCESS)


@_clause("callback-sent", "3.5")
def _callback_sent(evidence: Evidence) -> Finding:
    """The component reports its state to `system.callback`.

    POST {task_id, status, role} as JSON to the address in system.callback. Without one, some
    gateways go by the exit code, and others take it for a failure.
    """
    successes = _successes(evidence)
    without_report = [trace for trace in successes if not trace.requests.reports]
    # A refused callback breaks the clause callback-form instead.
    silent = [trace for trace in without_report if not trace.requests.refused]
    if silent:
        return failed(f"no callback from {_parties(silent)}")
    return _if_all_reported(evidence, "{0.party} reported {0.states_in_words}")


@_clause("callback-form", "3.5")
def _callback_form(evidence: Evidence) -> Finding:
    """A callback is a JSON object whose status is RUNNING, SUCCESS or FAILED.

    Send the fields as texts, and one of the three words.
    """
    problems = []
    for trace in evidence.best.traces:
        problems += [f"{trace.party}: {text}" for text in trace.requests.refused]
    finding = _if_all_reported(evidence, "{0.party}: {0.report_count} read")
    return _failed_or(problems, finding)


@_clause("callback-address", "3.5")
def _callback_address(evidence: Evidence) -> Finding:
    """Callbacks go to the given address, with its query.

    Use system.callback as it is; do not build the address from parts.
    """
    wrong = [trace for trace in evidence.best.traces if not trace.requests.keeps_address]
    if wrong:
        return failed(f"{_parties(wrong)} used another path or omitted the query")
    return _if_all_reported(evidence, "{0.party} used it as given")


@_clause("callback-names", "3.5")
def _callback_names(evidence: Evidence) -> Finding:
    """A callback names the task of `config.task_id` and the role of `config.self_role` (`guest` or
    `guest.0`).

    Copy both from the environment.
    """
    problems = []
    for trace in evidence.best.traces:
        for report in trace.requests.reports:
            if report.task_id != trace.task_id:
                task_id = report.task_id[:80]
                problems.append(
                    f"{trace.party} has task_id {task_id!r}, expected {trace.task_id!r}"
                )
            if report.role not in (trace.party, trace.party.partition(".")[0]):
                problems.append(f"{trace.party} has role {report.role[:80]!r}")
    finding = _if_all_reported(evidence, "{0.party} names both")
    return _failed_or(problems, finding)


@_clause("callback-running", "3.5")
def _callback_running(evidence: Evidence) -> Finding:
    """RUNNING is reported before the final state.

    Report RUNNING once, at the beginning.
    """
    successes = _successes(evidence)
    with_end = [trace for trace in successes if trace.reported]  # these reported their end
    late = [trace for trace in with_end if trace.states[-1] == "RUNNING"]
    if late:
        return failed(f"{_parties(late)} reported RUNNING after the end")
    # A success without RUNNING does not break the clause, which is then `not shown`.
    without_running = [trace.party for trace in successes if "RUNNING" not in trace.states]
    lack = "reported nothing"
    if with_end:
        lack = (
            "never reported RUNNING: a gateway shows such a run as running once its container is up"
        )
    return _ok_unless_lacking(
        evidence,
        "{0.party} reported it",
        without_running,
        lack,
    )


@_clause("callback-end", "3.5")
def _callback_end(evidence: Evidence) -> Finding:
    """A component that reports RUNNING reports its end, too.

    Report SUCCESS or FAILED as the last step before the exit.
    """
    problems = []
    for trace in evidence.best.traces:
        if trace.exited_unreported and trace.missing:
            missing = ", ".join(trace.missing)
            problems.append(
                f"{trace.party} exited with code 0, without a report and without its outputs "
                f"{missing}"
            )
    without_end = [trace.party for trace in _successes(evidence) if not trace.reported]
    lack = (
        "reported no end: a node takes exit code 0 with all outputs for SUCCESS and flags it "
        "no_callback, unless limits.exit_without_report says fails"
    )
    finding = _ok_unless_lacking(
        evidence,
        "{0.party} reported {0.reported}",
        without_end,
        lack,
    )
    return _failed_or(problems, finding)


@_clause("exit-code", "3.5")
def _exit_code(evidence: Evidence) -> Finding:
    """A success exits with code 0.

    Exit with 0 after SUCCESS, with a code above 0 after FAILED.
    """
    problems = []
    for trace in _successes(evidence):
        if trace.code != 0:
            problems.append(f"{trace.party} ended with code {trace.code} after a success")
    finding = _ok_unless_lacking(evidence, "{0.party} ended with code {0.code}")
    return _failed_or(problems, finding)


@_clause("result-code", "3.2", shown_by=WITHOUT_DATA)
def _result_code(evidence: Evidence) -> Finding:
    """A result code, in a callback or in the last line of the log as JSON, is one of those in
    `result`.

    List each code that the component reports under result, as text, with its meaning.
    """
    meanings = evidence.component.results
    problems = []
    texts = []
    for trace in (*evidence.best.traces, *evidence.without_data):
        code = trace.result_code
        if code in meanings:
            texts.append(f"{trace.party} reported {code} ({meanings[code]})")
        elif code:
            problems.append(f"{trace.party} reported {code[:80]!r}")
    if problems:
        known_codes = ", ".join(meanings) or "none"
        return failed(f"{'; '.join(dict.fromkeys(problems))}; the description lists {known_codes}")
    return _ok_or(texts, not_shown("it reports none, which is allowed"))


@_clause("failure-told", "3.5", shown_by=WITHOUT_DATA)
def _failure_reported(evidence: Evidence) -> Finding:
    """A run that cannot do its work ends with a code above 0 and does not report SUCCESS.

    Treat an input that is missing or empty as a failure.
    """
    if not evidence.component.inputs:
        return not_shown("it has no input")
    ended = [trace for trace in evidence.without_data if trace.ended]
    problems = []
    texts = []
    for trace in ended:
        if trace.code == 0 or trace.reported == "SUCCESS":
            problems.append(trace.end)
        text = f"{trace.party} ended with code {trace.code}"
        if trace.reported:
            text += f", reported {trace.reported}"
        texts.append(text)
    if problems:
        return failed("its input is missing, and yet " + "; ".join(problems))
    return _ok_or(texts, not_shown("no party ended for lack of input"))


@_clause("stdout-log", "3.6")
def _stdout_log(evidence: Evidence) -> Finding:
    """The log comes on standard output, as lines of UTF-8 text.

    Print the log line by line and flush it.
    """
    problems: list[str] = []
    for trace in _successes(evidence):
        problems += _log_problems(trace)
    finding = _ok_unless_lacking(evidence, "{0.party}: {0.log_line_count} lines")
    return _failed_or(problems, finding)


def _log_problems(trace: Trace) -> Iterator[str]:
    """Yield the faults of a party's log: it is empty, is not UTF-8, or has a very long line.

    A line counts as very long if it has more than `LONGEST_LINE` bytes.
    """
    if not trace.stdout.strip():
        yield f"{trace.party} wrote nothing to standard output"
    try:
        trace.stdout.decode("utf-8")
    except UnicodeDecodeError:
        yield f"what {trace.party} wrote is not UTF-8"
    longest_line = max(trace.stdout.splitlines(), key=len, default=b"")
    if len(longest_line) > LONGEST_LINE:
        yield f"{trace.party} wrote a line of more than {LONGEST_LINE} bytes"


@_clause("log-files", "3.6")
def _log_files(evidence: Evidence) -> Finding:
    """Log files lie in `config.log.path`.

    Write them there and nowhere else; none at all is fine.
    """
    texts = [
        f"{trace.party}: {listed(trace.log_files)}"
        for trace in _successes(evidence)
        if trace.log_files
    ]
    return _ok_or(texts, not_shown("it writes none, which is allowed"))


@_clause("output-written", "3.4")
def _outputs_written(evidence: Evidence) -> Finding:
    """Every declared output lies at the address in `runtime.component.output.*`, at one party at
    least.

    Write <storage>/<namespace>/<name>/data_0 (or a plain file <name>), with both names as given.
    """
    names = [output.name for output in evidence.component.outputs]
    if not names:
        return not_shown("it has no output")
    if not evidence.best.worked:
        return not_shown(_NO_SUCCESS)
    traces = evidence.best.traces
    missing = set(names).difference(*(trace.outputs for trace in traces))
    if missing:
        in_order = sorted(missing, key=names.index)
        text = f"nothing at the address of {', '.join(in_order)}"
        stray_texts = _stray_texts(traces, " instead")
        return failed("; ".join([text, *stray_texts]))
    partly_missing = [
        f"{name} not at {trace.party}"
        for trace in traces
        for name in names
        if name not in trace.outputs
    ]
    text = f"{', '.join(names)} written"
    if partly_missing:
        text += f" ({listed(partly_missing)})"
    return ok(text)


def _stray_texts(traces: Iterable[Trace], suffix: str = "") -> list[str]:
    """Return a text for each party that wrote files outside of its outputs.

    A text names the first three files, by their paths below the storage, and ends with ``suffix``.
    """
    return [
        f"{trace.party} wrote {listed(trace.strays)}{suffix}" for trace in traces if trace.strays
    ]


@_clause("output-form", "3.2, 4")
def _output_form(evidence: Evidence) -> Finding:
    """An output can be read, in the format that the description names first.

    Write what dataFormat says first, readable for all users; beside a table's data_0 the file
    metadata, a JSON object with count and column_info.
    """
    problems = []
    count = 0
    for trace in evidence.best.traces:
        for name, problem in trace.outputs.items():
            count += 1
            if problem:
                problems.append(f"{name} of {trace.party} {problem}")
    if not count:
        return not_shown("nothing was written at the given addresses")
    return _failed_or(problems, ok(f"{count} read"))


@_clause("output-only-there", "4")
def _only_there(evidence: Evidence) -> Finding:
    """Nothing is written into the storage but the outputs.

    Use a temporary folder of the container for all else.
    """
    if not evidence.best.worked:
        return not_shown(_NO_SUCCESS)
    if _outputs_written(evidence).result is Result.FAILED:
        return not_shown("the outputs are not where they belong")
    finding = ok("nothing else was written")
    if evidence.confined:
        finding = ok("nothing else can be written")
    return _failed_or(_stray_texts(evidence.best.traces), finding)


@_clause("input-untouched", "4")
def _inputs_untouched(evidence: Evidence) -> Finding:
    """Inputs are left as they are.

    Open inputs for reading only.
    """
    traces = evidence.best.traces
    if not evidence.component.inputs or not evidence.best.started:
        return not_shown("there was no input")
    problems = [
        f"{trace.party} changed {listed(trace.changed)}" for trace in traces if trace.changed
    ]
    finding = ok("are as they were")
    if evidence.confined:
        finding = ok("cannot be changed")
    if not evidence.best.worked:
        finding = not_shown(_NO_SUCCESS)
    return _failed_or(problems, finding)


@_clause("channel-session", "transport 2")
def _channel_session(evidence: Evidence) -> Finding:
    """Messages go through `system.transport` with the given session and token.

    Send config.session_id and config.token in x-ptp-session-id and x-ptp-token.
    """
    traces = evidence.best.traces
    users = [trace for trace in traces if trace.requests.channel_calls]
    if not users:
        return not_shown("it does not use the channel")
    count = len(channel_calls(users))
    return _failed_or(
        foreign_requests(traces),
        ok(f"{count} requests by {_parties(users)}"),
    )


@_clause("channel-accepted", "transport 2")
def _channel_accepted(evidence: Evidence) -> Finding:
    """Every request to the channel is accepted: its target is a node of the job, its body has one
    of the forms.

    Name the receiver's config.node_id.<party> in x-ptp-target-node-id; send the Content-Type of the
    form that the body has.
    """
    traces = evidence.best.started
    if foreign_requests(traces):
        return not_shown("a node refuses another session or token")
    if not channel_calls(traces):
        return not_shown("it does not use the channel")
    pushes = accepted_calls(traces, "push")
    return _failed_or(
        refused_requests(traces),
        ok(f"{len(pushes)} messages were taken"),
    )


@_clause("channel-topics", "transport 2")
def _channel_topics(evidence: Evidence) -> Finding:
    """What one party waits for, another sends to it under the same topic.

    Build the topic of a message in one place, for sender and receiver alike, from the task and both
    parties.
    """
    traces = evidence.best.started
    topics = {call.topic for _, call in channel_calls(traces)}
    if topics <= {None}:  # no request, or none whose topic could be read
        return not_shown("it names no topic on the channel")
    if not evidence.best.worked:
        return _failed_or(
            unsent_topics(traces),
            not_shown(_NO_SUCCESS),
        )
    # Messages that no party reads are named in the finding, but break no clause.
    unclaimed = unclaimed_topics(traces)
    return _ok_or(
        unclaimed[:_PROBLEM_LIMIT],
        ok("every message was read"),
    )


@_clause("own-paths", "3.3")
def _own_paths(evidence: Evidence) -> Finding:
    """Nothing of the gateway is used but the channel and the callback.

    Leave everything else to the platform: a gateway's other paths are closed to containers.
    """
    problems = []
    finding = not_shown("it sent no request")
    for trace in evidence.best.traces:
        requests = trace.requests
        if requests.other_paths:
            problems.append(f"{trace.party}: {listed(requests.other_paths)}")
        if requests.reports or requests.channel_calls:
            finding = ok("nothing else was used")
    return _failed_or(problems, finding)


@_clause("sigterm", "3.5", shown_by=STOPPED)
def _sigterm(evidence: Evidence) -> Finding:
    """A run that gets SIGTERM exits by itself, within the grace period.

    Handle SIGTERM also while waiting for a partner; start it with exec, so that it gets the signal.
    """
    killed = []
    successful = []
    endings = []
    for trace in evidence.stopped:
        if not trace.was_stopped:  # it ended by itself before SIGTERM was sent
            continue
        if trace.killed:
            killed.append(f"{trace.party} had to be killed after {trace.stop_seconds:.0f} s")
        elif trace.reported == "SUCCESS":
            successful.append(f"{trace.party} reported SUCCESS")
        endings.append(
            f"{trace.party} ended after {trace.stop_seconds:.1f} s with code {trace.code}"
        )
    finding = _ok_or(endings, not_shown("it ended before it could be stopped"))
    return _failed_or([*killed, *successful], finding)


# Every clause, in the order of a report.
CLAUSES = tuple(_CLAUSES)


def _successes(evidence: Evidence) -> Sequence[Trace]:
    """Return the traces of all parties in the trial `Evidence.best`, if all of them succeeded.

    Empty otherwise: the observations of a failed trial would show only what made it fail.
    """
    if not evidence.best.worked:
        return ()
    return evidence.best.traces


def _failed_or(problems: Iterable[str], finding: Finding) -> Finding:
    """Return the finding that a clause is broken; without a problem, ``finding`` instead.

    The observation names the first `_PROBLEM_LIMIT` problems, each once.
    """
    distinct = list(dict.fromkeys(problems))
    if not distinct:
        return finding
    return failed("; ".join(distinct[:_PROBLEM_LIMIT]))


def _ok_or(texts: Iterable[str], finding: Finding) -> Finding:
    """Return the finding that a clause is kept; without a text, ``finding`` instead.

    The observation consists of the texts, each once.
    """
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return finding
    return ok("; ".join(distinct))


def _if_all_reported(evidence: Evidence, pattern: str) -> Finding:
    """Return the finding that a clause is kept, if every party sent a callback.

    Otherwise the finding is ``not shown``. ``pattern`` is the text for each party, as in
    `_ok_unless_lacking`.
    """
    silent = [trace.party for trace in _successes(evidence) if not trace.requests.reports]
    return _ok_unless_lacking(
        evidence,
        pattern,
        silent,
        "reported nothing",
    )


def _ok_unless_lacking(
    evidence: Evidence,
    pattern: str,
    lacking: Sequence[str] = (),
    lack: str = "",
) -> Finding:
    """Return the finding that a clause is kept, with a text for each party.

    ``pattern`` is the text for `str.format`; its only argument is the party's `Trace`. The finding
    is ``not shown`` if the parties did not all succeed, or if some of them lack the observation:
    ``lacking`` names these parties, and ``lack`` says what they did instead.
    """
    successes = _successes(evidence)
    if not successes:
        return not_shown(_NO_SUCCESS)
    if lacking:
        return not_shown(f"{', '.join(lacking)} {lack}")
    texts = [pattern.format(trace) for trace in successes]
    return ok("; ".join(texts))


def _parties(traces: Iterable[Trace]) -> str:
    """Return the names of parties in one line, such as "guest.0, host.0"."""
    return ", ".join(trace.party for trace in traces)
