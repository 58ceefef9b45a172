"""The observations of a component's trials as plain values, which are judged without running it."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from itertools import groupby

from gateway.domain.execution.exit_failures import NEVER_BEGAN, exit_meaning
from gateway.domain.execution.results import result_of
from gateway.domain.lists import listed
from provider_registry.model import Component

_SIGKILL = 9  # number of the signal
_LAST_LINES = 5  # lines at the end of a run's output that a report quotes
_LINE_LENGTH = 300  # characters that a report quotes of each of these lines
_TEXT_LENGTH = 80  # characters of a topic or session id in a report
_PROBLEM_LIMIT = 3  # problems of each kind in a summary of the channel
_SUCCESS_CODE = "E0000000000"
# Codes of requests that were not refused for good: after the last two codes, the same request may
# succeed later.
_CODES_WITHOUT_REFUSAL = (
    "",  # the request still waits
    _SUCCESS_CODE,
    "E0000000607",  # the receiving node is away
    "E0000000700",  # its mailbox is full
)


class Result(StrEnum):
    """The judgement of a component by one clause."""

    OK = "ok"
    FAILED = "failed"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class Finding:
    """A result, and the observation behind it."""

    result: Result
    seen: str = ""  # the observation, as a phrase
    remedy: str = ""  # the advice for this case; "": the clause's


def ok(observation: str) -> Finding:
    """Return the finding that a clause is kept."""
    return Finding(Result.OK, observation)


def failed(observation: str, remedy: str = "") -> Finding:
    """Return the finding that a clause is broken; ``remedy`` replaces the clause's advice."""
    return Finding(Result.FAILED, observation, remedy)


def not_shown(observation: str) -> Finding:
    """Return the finding that the observations do not suffice to judge the clause."""
    return Finding(Result.NOT_SHOWN, observation)


@dataclass(frozen=True)
class StateReport:
    """One callback, as a gateway reads it."""

    status: str
    task_id: str
    role: str
    # True if it went to the complete callback address of the environment, with the query
    used_full_address: bool
    result_code: str = ""


@dataclass
class ChannelCall:
    """One request to the channel, with its response."""

    operation: str  # push, pop, peek or release
    session: str
    token: str
    target: str = ""  # the receiving node
    topic: str | None = None  # None if the body cannot be read
    code: str = ""  # of the response; empty while the request waits for it
    message: str = ""
    has_message: bool = False  # True if the response carried a message

    @property
    def succeeded(self) -> bool:
        """True if the gateway accepted the request, with or without a message."""
        return self.code == _SUCCESS_CODE

    @property
    def was_refused(self) -> bool:
        """True if the gateway refused the request for good."""
        return self.code not in _CODES_WITHOUT_REFUSAL


@dataclass
class Requests:
    """Every request of one party to its gateway."""

    reports: list[StateReport] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # messages about refused callbacks
    channel_calls: list[ChannelCall] = field(default_factory=list)
    # Method and path of requests to addresses that are not for containers.
    other_paths: list[str] = field(default_factory=list)

    @property
    def keeps_address(self) -> bool:
        """True if every report used the complete callback address; also without any report."""
        return all(report.used_full_address for report in self.reports)


@dataclass(frozen=True)
class Trace:
    """The observations of one party in one trial."""

    party: str
    task_id: str
    session: str
    token: str
    node: str = ""
    requests: Requests = field(default_factory=Requests)
    not_started: str = ""  # the engine's reason and message, if the run could not be started
    engine_failure: str = ""  # the same, if the engine failed after it had started the run
    code: int | None = None  # the exit code; None: it has not exited
    signal: int | None = None  # number of the signal that ended it; None: none, or not reported
    oom_killed: bool = False  # True if it used more memory than the sandbox allows
    was_stopped: bool = False  # True if it ran until it was stopped
    stop_seconds: float = 0.0  # from the stop to the exit
    stdout: bytes = b""
    stderr: bytes = b""
    log_files: tuple[str, ...] = ()
    # The fault in the format of each written output, by the output's name; empty without one.
    outputs: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # names of outputs that were not written
    strays: tuple[str, ...] = ()  # other files that it wrote into the storage
    changed: tuple[str, ...] = ()  # names of inputs whose content the run has changed
    # The beginning of each written output, by the output's name.
    beginnings: Mapping[str, str] = field(default_factory=dict)

    def short(self, topic: str) -> str:
        """Return a topic as a report quotes it: cut, and without the long id of the task."""
        return repr(topic.replace(self.task_id, "<task_id>")[:_TEXT_LENGTH])

    @property
    def started(self) -> bool:
        """Whether the component's own program ran.

        A script without its interpreter ends before, with an exit code in `NEVER_BEGAN`.
        """
        if self.not_started:
            return False
        if self.engine_failure:
            return True
        signs_of_life = [
            self.code not in NEVER_BEGAN,  # also true without an exit
            self.requests.reports,
            self.requests.channel_calls,
            self.stdout,
        ]
        return any(signs_of_life)

    @property
    def states(self) -> tuple[str, ...]:
        """The states that the callbacks reported, in their order."""
        return tuple(report.status for report in self.requests.reports)

    @property
    def states_in_words(self) -> str:
        """The first five reported states in one line; a repetition in a row as a count."""
        texts = []
        for status, repetitions in groupby(self.states):
            times = len(list(repetitions))
            text = status
            if times > 1:
                text += f" ({times} times)"
            texts.append(text)
        return listed(texts, 5)

    @property
    def report_count(self) -> int:
        """The number of callbacks that could be read."""
        return len(self.requests.reports)

    @property
    def log_line_count(self) -> int:
        """The number of lines on standard output."""
        return len(self.stdout.splitlines())

    @property
    def reported(self) -> str:
        """The final state that a callback reported last: SUCCESS or FAILED; "" for none."""
        final_states = [state for state in self.states if state in ("SUCCESS", "FAILED")]
        return next(reversed(final_states), "")

    @property
    def result_code(self) -> str:
        """The last result code of a callback, or else of the log's last line; "" for none."""
        for report in reversed(self.requests.reports):
            if report.result_code:
                return report.result_code
        code, _message = result_of(self.stdout.splitlines())
        return code

    @property
    def ended(self) -> bool:
        """Whether the run started, and ended by itself; not whether it succeeded."""
        conditions = [
            self.started,
            not self.engine_failure,
            self.code is not None,
            not self.was_stopped,
        ]
        return all(conditions)

    @property
    def exited_unreported(self) -> bool:
        """Whether the run exited with code 0 and reported no final state.

        A gateway takes such a run for a success if no output is missing.
        """
        conditions = [
            self.ended,
            not self.reported,
            self.code == 0,
        ]
        return all(conditions)

    @property
    def worked(self) -> bool:
        """Whether a gateway would take the run for a success.

        A report of SUCCESS counts whatever the exit code; see also `exited_unreported`.
        """
        if self.exited_unreported:
            return not self.missing
        return self.ended and self.reported == "SUCCESS"

    @property
    def killed(self) -> bool:
        """Whether the run ended by SIGKILL.

        Engines report that as a signal, or as the exit code 128 + 9.
        """
        return self.signal == _SIGKILL or self.code == 128 + _SIGKILL

    @property
    def end(self) -> str:
        """The end of the run as a clause, such as "guest.0 ended with code 1, reported FAILED"."""
        if self.not_started:
            return f"{self.party} did not start: {self.not_started}"
        if self.engine_failure:
            return f"{self.party} started, then its engine failed: {self.engine_failure}"
        last_words = self._last_words()
        if not self.started:
            assert self.code is not None  # it is one of `NEVER_BEGAN`
            meaning = exit_meaning(self.code)
            return f"{self.party} did not start: exit code {self.code}, {meaning}{last_words}"
        if self.oom_killed:
            return f"{self.party} used more memory than it may (OOM_KILLED){last_words}"
        ending = f"ended with code {self.code}"
        if self.was_stopped:
            ending = "was still running and was stopped"
        state = "reported no final state"
        if self.reported:
            state = f"reported {self.reported}"
        return f"{self.party} {ending}, {state}{last_words}"

    def _last_words(self) -> str:
        """Return the last lines of the run's error output, or else of its output, as a text's end.

        Returns "" if the run printed nothing.
        """
        streams = (self.stderr, self.stdout)
        texts = [stream.decode("utf-8", "replace").strip() for stream in streams]
        printed_text = next(filter(None, texts), "")
        last_lines = printed_text.splitlines()[-_LAST_LINES:]
        if not last_lines:
            return ""
        lines = [line[-_LINE_LENGTH:] for line in last_lines]
        if len(lines) == 1:
            return f"; its last line: {lines[0]}"
        return "; its last lines:\n" + "\n".join(lines)


@dataclass(frozen=True)
class Trial:
    """One way to run a component, with the observations of each party."""

    traces: tuple[Trace, ...]

    @property
    def started(self) -> list[Trace]:
        """The parties whose own program ran, see `Trace.started`."""
        return [trace for trace in self.traces if trace.started]

    @property
    def worked(self) -> bool:
        """Whether all parties succeeded; False for a trial without parties."""
        results = {trace.worked for trace in self.traces}
        return results == {True}

    @property
    def end(self) -> str:
        """The ends of all parties, separated by semicolons; see `Trace.end`."""
        return "; ".join(trace.end for trace in self.traces)


@dataclass(frozen=True)
class Evidence:
    """All trials of one component; None or empty for a trial that was not made."""

    component: Component
    # All parties with the user's table or made-up data, the required parameters, and one parameter
    # that the description does not know.
    together: Trial
    # As `together`, without the unknown parameter; only if `together` did not work.
    known_only: Trial | None = None
    # As `known_only`, with the defaults of all optional parameters; only if `known_only` did not
    # work either.
    all_given: Trial | None = None
    # Each party without its partners, stopped while it runs.
    stopped: tuple[Trace, ...] = ()
    # All parties, with empty inputs.
    without_data: tuple[Trace, ...] = ()
    confined: bool = False  # True if runs can write only into their outputs
    lacks: tuple[str, ...] = ()  # inputs that could not be made up, such as models
    made_up: bool = False  # True if the user passed no table, so that the data are made up

    @property
    def best(self) -> Trial:
        """The trial to judge by: the first that worked, or else the last one."""
        trials = [self.together, self.known_only, self.all_given]
        existing = list(filter(None, trials))
        return next(
            (trial for trial in existing if trial.worked),
            existing[-1],
        )


# ---------------------------------------------------------------- problems on the channel


@dataclass(frozen=True)
class _Mailbox:
    """One topic at the party that its messages are sent to."""

    receiver: str
    topic: str


def refused_requests(traces: Sequence[Trace]) -> list[str]:
    """Return the last permanent refusal of each kind of request of each party, as texts.

    Requests of the same operation that were refused with the same code are of one kind.
    """
    problems: dict[tuple[str, str, str], str] = {}
    for trace, call in channel_calls(traces):
        if call.was_refused:
            request = call.operation
            if call.topic:
                request += f" of topic {trace.short(call.topic)}"
            text = f"{trace.party}'s {request} was refused: {call.code} {call.message}".strip()
            problems[trace.party, call.operation, call.code] = text
    return list(problems.values())


def foreign_requests(traces: Sequence[Trace]) -> list[str]:
    """Return each kind of request with a session or token of another run, which a node refuses.

    The texts quote a wrong session. They never quote a token, which is a secret.
    """
    problems = []
    for trace, call in channel_calls(traces):
        if call.session != trace.session:
            session = repr(call.session[:_TEXT_LENGTH])
            problems.append(f"{trace.party} used session {session} for {call.operation}")
        if call.token != trace.token:
            text = f"{trace.party} sent no config.token, or another, with {call.operation}"
            problems.append(text)
    return list(dict.fromkeys(problems))


def channel_calls(traces: Sequence[Trace]) -> list[tuple[Trace, ChannelCall]]:
    """Return every request of all parties to the channel, each with its party's trace.

    The parties keep their order, and so do the requests of each party.
    """
    return [(trace, call) for trace in traces for call in trace.requests.channel_calls]


def accepted_calls(
    traces: Sequence[Trace],
    *operations: str,
) -> list[tuple[Trace, ChannelCall]]:
    """Return the successful requests with one of some operations, with their parties' traces.

    The ``operations`` are named as in `ChannelCall`. A successful pop or peek need not have
    returned a message.
    """
    succeeded = [(trace, call) for trace, call in channel_calls(traces) if call.succeeded]
    return [(trace, call) for trace, call in succeeded if call.operation in operations]


def unsent_topics(traces: Sequence[Trace]) -> list[str]:
    """Return the topics for which a party waited in vain, as texts that name a likely mistake."""
    senders = _senders(traces)
    read = _read_mailboxes(traces)
    mailboxes_in_use = read | senders.keys()
    problems = []
    for trace in traces:
        until = _end_of_partners(trace, traces)
        for topic in _awaited_topics(trace):
            mailbox = _Mailbox(trace.party, topic)
            if mailbox in mailboxes_in_use:
                continue
            text = f"{trace.party} waits for topic {trace.short(topic)}, which received no message"
            problems.append(f"{text}{until}{_likely_mistake(trace, topic, senders, read)}")
    return problems


def _awaited_topics(trace: Trace) -> list[str]:
    """Return the topics whose messages a party tried to pop, each once.

    Requests whose topic cannot be read are left out.
    """
    pops = [call for call in trace.requests.channel_calls if call.operation == "pop"]
    topics = [call.topic for call in pops if call.topic is not None]
    return list(dict.fromkeys(topics))


def _end_of_partners(trace: Trace, traces: Sequence[Trace]) -> str:
    """Return a phrase for the end of a text: the partners that ended while a party still waited.

    Returns "" if the party was not stopped while waiting, or no partner had ended.
    """
    # A party that was stopped has not ended by itself, so it is not among these.
    partners = [partner.party for partner in traces if partner.ended]
    was_left_waiting = trace.was_stopped and partners
    if not was_left_waiting:
        return ""
    return f" before {', '.join(partners)} ended"


def _likely_mistake(
    trace: Trace,
    topic: str,
    senders: Mapping[_Mailbox, str],
    read: Set[_Mailbox],
) -> str:
    """Return why a party's topic probably got no message, as the end of a text; "" without an idea.

    The message was sent to the same topic of another party, or to another topic of this party whose
    name is similar and which nobody read. ``senders`` are the mailboxes that got messages, each
    with the party that sent them; ``read`` are the mailboxes that were read.
    """
    for mailbox, sender in senders.items():
        if mailbox.topic == topic:
            return f": {sender} sent it to {mailbox.receiver} (x-ptp-target-node-id)"
    pending = [mailbox for mailbox in senders if mailbox not in read]
    unclaimed = [mailbox.topic for mailbox in pending if mailbox.receiver == trace.party]
    similar = get_close_matches(
        topic,
        unclaimed,
        n=1,
        cutoff=0.5,
    )
    if not similar:
        return ""
    sender = senders[_Mailbox(trace.party, similar[0])]
    return f"; did you mean {trace.short(similar[0])}, which {sender} sent to it?"


def unclaimed_topics(traces: Sequence[Trace]) -> list[str]:
    """Return the topics whose messages were never read, as texts.

    Each text names the party that sent to the topic last, and the receiver.
    """
    read = _read_mailboxes(traces)
    unclaimed = {box: sender for box, sender in _senders(traces).items() if box not in read}
    problems = []
    for mailbox, sender in unclaimed.items():
        topic = traces[0].short(mailbox.topic)  # any trace does: all have the same task id
        problems.append(f"no party reads topic {topic}, which {sender} sent to {mailbox.receiver}")
    return problems


def is_waiting(requests: Requests) -> bool:
    """Return whether a party waits for a message.

    A party waits while its request to read a message has no response, and after two equal requests
    in a row that returned no message.
    """
    match requests.channel_calls[-2:]:
        case [*_, ChannelCall(operation="pop" | "peek", code="", has_message=False)]:
            return True
        case [first, ChannelCall(operation="pop" | "peek", has_message=False) as last]:
            first_request = (first.operation, first.topic, first.has_message)
            return first_request == (last.operation, last.topic, last.has_message)
    return False


def channel_summary(traces: Sequence[Trace]) -> str:
    """Return what the channel shows of why the parties do not end, as the end of a sentence.

    "" if it shows nothing.
    """
    problems = []
    for find_problems in (refused_requests, unsent_topics, unclaimed_topics):
        problems += find_problems(traces)[:_PROBLEM_LIMIT]
    if not problems:
        return ""
    return f"; on the channel: {'; '.join(problems)}"


def _senders(traces: Sequence[Trace]) -> dict[_Mailbox, str]:
    """Return the party that last sent a message to each mailbox.

    A mailbox belongs to a party, or to a wrong target: a node id without a party.
    """
    party_of = {trace.node: trace.party for trace in traces}
    senders = {}
    for trace, call in accepted_calls(traces, "push"):
        receiver = party_of.get(call.target, call.target)
        senders[_Mailbox(receiver, call.topic or "")] = trace.party
    return senders


def _read_mailboxes(traces: Sequence[Trace]) -> set[_Mailbox]:
    """Return the mailboxes from which their owner read a message, by pop or by peek."""
    return {
        _Mailbox(trace.party, call.topic or "")
        for trace, call in accepted_calls(traces, "pop", "peek")
        if call.has_message
    }
