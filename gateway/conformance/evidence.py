"""The observations of a component's trials as plain values, which are judged without running it."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum

from gateway.domain.execution import runs
from gateway.domain.execution.runs import result_of
from provider_registry.model import Component

KILLED = 9  # the number of SIGKILL
_LAST_LINES = 5  # of a run's output, which a report quotes
_LINE_LENGTH = 300  # characters of each such line
_TEXT_LENGTH = 80  # characters of a topic or session id in a report
_PROBLEM_LIMIT = 3  # of each kind, in a summary of the channel
# Codes after which the same request may succeed later: the receiving node is away, its mailbox is
# full.
_TRANSIENT_CODES = ("E0000000607", "E0000000700")


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
    """Return the finding that nothing was observed by which the clause could be judged."""
    return Finding(Result.NOT_SHOWN, observation)


@dataclass(frozen=True)
class StateReport:
    """One callback, as a gateway reads it."""

    status: str
    task_id: str
    role: str
    address: bool  # True if it used the complete address, with the query
    result_code: str = ""


@dataclass
class ChannelCall:
    """One request to the channel, with its response."""

    operation: str  # push, pop, peek or release
    session: str
    token: str
    target: str = ""  # the receiving node
    topic: str | None = None  # None if the body cannot be read
    code: str = ""  # of the response; empty while it waits
    message: str = ""
    content: bool = False  # True if the response carried a message

    @property
    def succeeded(self) -> bool:
        """True if the gateway accepted the request, with or without a message."""
        return self.code == "E0000000000"


@dataclass
class Requests:
    """Every request of one party to its gateway."""

    reports: list[StateReport] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # messages about refused callbacks
    channel_calls: list[ChannelCall] = field(default_factory=list)
    # Method and path of requests to addresses that are not for containers.
    other_paths: list[str] = field(default_factory=list)


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
    code: int | None = None  # the exit code; None: it has not exited
    signal: int | None = None
    oom_killed: bool = False  # True if it used more memory than the sandbox allows
    was_stopped: bool = False  # True if it ran until it was stopped
    stop_seconds: float = 0.0  # from the stop to the exit
    stdout: bytes = b""
    stderr: bytes = b""
    log_files: tuple[str, ...] = ()
    # The fault of format of each written output; empty without one.
    outputs: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # outputs that were not written
    strays: tuple[str, ...] = ()  # other files that it wrote into the storage
    changed: tuple[str, ...] = ()  # inputs with another content afterwards
    # The beginning of each written output.
    beginnings: Mapping[str, str] = field(default_factory=dict)

    def short(self, topic: str) -> str:
        """Return a topic as a report quotes it: cut, and without the long id of the task."""
        return repr(topic.replace(self.task_id, "<task_id>")[:_TEXT_LENGTH])

    @property
    def started(self) -> bool:
        """Whether the component's own program ran.

        A script without its interpreter has ended before that, with one of `runs.NEVER_BEGAN`.
        """
        if self.not_started:
            return False
        if self.code not in runs.NEVER_BEGAN:
            return True
        return bool(self.requests.reports or self.requests.channel_calls or self.stdout)

    @property
    def reported(self) -> str:
        """The last final state that a callback reported: SUCCESS or FAILED; "" for none."""
        for report in reversed(self.requests.reports):
            if report.status in ("SUCCESS", "FAILED"):
                return report.status
        return ""

    @property
    def result_code(self) -> str:
        """The last result code of a callback, or else of the log's last line; "" for none."""
        for report in reversed(self.requests.reports):
            if report.result_code:
                return report.result_code
        return result_of(self.stdout.splitlines())[0]

    @property
    def ended(self) -> bool:
        """Whether it ran, and ended by itself."""
        return self.started and self.code is not None and not self.was_stopped

    @property
    def no_callback(self) -> bool:
        """Whether it exited with code 0 and reported no end; a success if no output is missing."""
        return self.ended and not self.reported and self.code == 0

    @property
    def worked(self) -> bool:
        """Whether a gateway would take the run for a success."""
        if self.ended and self.reported == "SUCCESS":
            return True
        return self.no_callback and not self.missing

    @property
    def killed(self) -> bool:
        """Whether it ended by SIGKILL, which engines report as a signal or as an exit code."""
        return self.signal == KILLED or self.code == 128 + KILLED

    @property
    def end(self) -> str:
        """The end of the run as a clause, such as "guest.0 ended with code 1, reported FAILED"."""
        if self.not_started:
            return f"{self.party} did not start: {self.not_started}"
        last_words = self._last_words()
        if not self.started and self.code is not None:
            meaning = runs.meaning(self.code)
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
        """Return the last lines of the error output, or else of the output, to be appended.

        Returns "" if it printed nothing.
        """
        for stream in (self.stderr, self.stdout):
            text = stream.decode("utf-8", "replace").strip()
            lines = [line[-_LINE_LENGTH:] for line in text.splitlines()[-_LAST_LINES:]]
            if len(lines) == 1:
                return f"; its last line: {lines[0]}"
            if lines:
                return "; its last lines:\n" + "\n".join(lines)
        return ""


@dataclass(frozen=True)
class Trial:
    """One way to run a component, with the observations of each party."""

    traces: tuple[Trace, ...]

    @property
    def worked(self) -> bool:
        """Whether there were parties, and all succeeded."""
        return bool(self.traces) and all(trace.worked for trace in self.traces)

    @property
    def end(self) -> str:
        """The ends of all parties, see `Trace.end`."""
        return "; ".join(trace.end for trace in self.traces)


@dataclass(frozen=True)
class Evidence:
    """All trials of one component; None for a trial that was not needed."""

    component: Component
    # All parties with made-up data, the required parameters and one unknown to the description.
    together: Trial
    # The same without the unknown parameter; only if the first did not work.
    known_only: Trial | None = None
    # The same with the defaults of all optional parameters; only if the second did not work either.
    all_given: Trial | None = None
    # Each party without its partners, stopped while it runs.
    alone: tuple[Trace, ...] = ()
    # All parties, with empty inputs.
    without_data: tuple[Trace, ...] = ()
    confined: bool = False  # True if runs can write only into their outputs
    lacks: tuple[str, ...] = ()  # inputs that could not be made up, such as models
    made_up: bool = False  # True if the user gave no table

    @property
    def best(self) -> Trial:
        """The trial to judge by: the first that worked, or else the last one."""
        trials = [self.together, self.known_only, self.all_given]
        existing = [trial for trial in trials if trial is not None]
        for trial in existing:
            if trial.worked:
                return trial
        return existing[-1]


# ---------------------------------------------------------------- problems on the channel


@dataclass(frozen=True)
class _Mailbox:
    """One topic at the party that its messages are sent to."""

    receiver: str
    topic: str


def refused_requests(traces: Sequence[Trace]) -> list[str]:
    """Return the last permanent refusal of each kind of request of each party, as texts."""
    problems: dict[tuple[str, str, str], str] = {}
    for trace, call in _calls(traces):
        if _is_refused(call):
            request = call.operation
            if call.topic:
                request += f" of topic {trace.short(call.topic)}"
            text = f"{trace.party}'s {request} was refused: {call.code} {call.message}".strip()
            problems[trace.party, call.operation, call.code] = text
    return list(problems.values())


def _is_refused(call: ChannelCall) -> bool:
    """Return whether a request was refused for good; one without a code still waits."""
    if not call.code or call.succeeded:
        return False
    return call.code not in _TRANSIENT_CODES


def foreign_requests(traces: Sequence[Trace]) -> list[str]:
    """Return each kind of request with a session or token of another run, which a node refuses."""
    problems = []
    for trace, call in _calls(traces):
        if call.session != trace.session:
            session = repr(call.session[:_TEXT_LENGTH])
            problems.append(f"{trace.party} used session {session} for {call.operation}")
        if call.token != trace.token:
            text = f"{trace.party} sent no config.token, or another, with {call.operation}"
            problems.append(text)
    return list(dict.fromkeys(problems))


def _calls(traces: Sequence[Trace]) -> Iterator[tuple[Trace, ChannelCall]]:
    """Yield every request to the channel with its party's trace."""
    for trace in traces:
        for call in trace.requests.channel_calls:
            yield trace, call


def unsent_topics(traces: Sequence[Trace]) -> list[str]:
    """Return the topics for which a party waited in vain, as texts that name a likely mistake."""
    senders = _senders(traces)
    read = _read_mailboxes(traces)
    problems = []
    for trace in traces:
        until = _end_of_partners(trace, traces)
        for topic in _awaited_topics(trace):
            mailbox = _Mailbox(trace.party, topic)
            if mailbox in read or mailbox in senders:
                continue
            text = f"{trace.party} waits for topic {trace.short(topic)}, which received no message"
            problems.append(f"{text}{until}{_likely_mistake(trace, topic, senders, read)}")
    return problems


def _awaited_topics(trace: Trace) -> list[str]:
    """Return the topics that a party popped messages of, each once."""
    pops = [call for call in trace.requests.channel_calls if call.operation == "pop"]
    topics = [call.topic for call in pops if call.topic is not None]
    return list(dict.fromkeys(topics))


def _end_of_partners(trace: Trace, traces: Sequence[Trace]) -> str:
    """Return that partners ended while a party was still waiting, to be appended; else ""."""
    if not trace.was_stopped:
        return ""
    partners = [partner.party for partner in traces if partner.ended and partner is not trace]
    if not partners:
        return ""
    return f" before {', '.join(partners)} ended"


def _likely_mistake(
    trace: Trace,
    topic: str,
    senders: Mapping[_Mailbox, str],
    read: Set[_Mailbox],
) -> str:
    """Return why a party's topic got no message, to be appended; "" without an idea.

    It was sent to another party, or an unread topic of the party has a similar name. ``senders``
    and ``read`` are the mailboxes that got messages, and the ones that were read.
    """
    for mailbox, sender in senders.items():
        if mailbox.topic == topic:
            return f": {sender} sent it to {mailbox.receiver} (x-ptp-target-node-id)"
    unclaimed = []
    for mailbox in senders:
        if mailbox.receiver == trace.party and mailbox not in read:
            unclaimed.append(mailbox.topic)
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
    """Return the topics whose messages were never read, as texts."""
    read = _read_mailboxes(traces)
    problems = []
    for mailbox, sender in _senders(traces).items():
        if mailbox not in read:
            topic = traces[0].short(mailbox.topic)
            problems.append(
                f"no party reads topic {topic}, which {sender} sent to {mailbox.receiver}"
            )
    return problems


def is_waiting(requests: Requests) -> bool:
    """Return whether a party waits for a message.

    It waits during a request for one, and after it has asked twice for the same one in vain.
    """
    calls = requests.channel_calls[-2:]
    if not calls:
        return False
    last = calls[-1]
    is_reading = last.operation in ("pop", "peek")
    if not is_reading or last.content:
        return False
    is_unanswered = not last.code
    if is_unanswered:
        return True
    before = calls[0]
    is_second_try = len(calls) == 2 and before.operation == last.operation
    return is_second_try and before.topic == last.topic and not before.content


def channel_summary(traces: Sequence[Trace]) -> str:
    """Return why the parties do not end, by the channel, to be appended; "" if it shows nothing."""
    problems = []
    for find_problems in (refused_requests, unsent_topics, unclaimed_topics):
        problems += find_problems(traces)[:_PROBLEM_LIMIT]
    if not problems:
        return ""
    return f"; on the channel: {'; '.join(problems)}"


def _senders(traces: Sequence[Trace]) -> dict[_Mailbox, str]:
    """Return the last sender to each mailbox."""
    party_of = {trace.node: trace.party for trace in traces}
    senders = {}
    for trace in traces:
        for call in _accepted_calls(trace, "push"):
            receiver = party_of.get(call.target, call.target)
            senders[_Mailbox(receiver, call.topic or "")] = trace.party
    return senders


def _read_mailboxes(traces: Sequence[Trace]) -> set[_Mailbox]:
    """Return the mailboxes that a message was read from."""
    return {
        _Mailbox(trace.party, call.topic or "")
        for trace in traces
        for call in _accepted_calls(trace, "pop", "peek")
        if call.content
    }


def _accepted_calls(trace: Trace, *operations: str) -> Iterator[ChannelCall]:
    """Yield a party's successful requests with one of these operations."""
    for call in trace.requests.channel_calls:
        is_requested = call.operation in operations
        if is_requested and call.succeeded:
            yield call
