"""The observations of a component's trials, as plain values: judging them needs nothing running."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import partial

from gateway.domain.execution import runs
from gateway.domain.execution.runs import result_of
from provider_registry.model import Component

KILLED = 9  # the number of SIGKILL
_LAST_LINES = 5
_LINE_LENGTH = 300  # characters of each of them
_TEXT_LENGTH = 80  # characters of a topic or session id in a report
_PROBLEM_LIMIT = 3  # of each kind, in a summary of the channel
# Codes after which the same request may succeed later: the receiving node is away, its mailbox is
# full.
_TRANSIENT_CODES = ("E0000000607", "E0000000700")


class Result(StrEnum):
    """Whether a component keeps a clause."""

    OK = "ok"
    FAILED = "failed"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True)
class Finding:
    """A result, and the observation behind it."""

    result: Result
    seen: str = ""
    remedy: str = ""  # the advice for this case; empty: the clause's


ok = partial(Finding, Result.OK)
failed = partial(Finding, Result.FAILED)
not_shown = partial(Finding, Result.NOT_SHOWN)  # no observation to judge the clause by


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
    others: list[str] = field(default_factory=list)


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
        """Return a topic quoted, as a report shows it: without the long id of the task."""
        return repr(topic.replace(self.task_id, "<task_id>")[:_TEXT_LENGTH])

    @property
    def started(self) -> bool:
        """True if the component's own program ran.

        A script without its interpreter ends before that.
        """
        if self.not_started:
            return False
        if self.code not in runs.NEVER_BEGAN:
            return True
        return bool(self.requests.reports or self.requests.channel_calls or self.stdout)

    @property
    def reported(self) -> str:
        """The reported final state; empty for none."""
        for report in reversed(self.requests.reports):
            if report.status in ("SUCCESS", "FAILED"):
                return report.status
        return ""

    @property
    def result_code(self) -> str:
        """The last result code of a callback, else that of the log's last line; empty for none."""
        for report in reversed(self.requests.reports):
            if report.result_code:
                return report.result_code
        return result_of(self.stdout.splitlines())[0]

    @property
    def ended(self) -> bool:
        """True if it ran and ended by itself."""
        return self.started and self.code is not None and not self.was_stopped

    @property
    def no_callback(self) -> bool:
        """True if it exited with code 0 and reported no end; a success if no output is missing."""
        return self.ended and not self.reported and self.code == 0

    @property
    def worked(self) -> bool:
        """True if a gateway takes the run for a success."""
        if self.ended and self.reported == "SUCCESS":
            return True
        return self.no_callback and not self.missing

    @property
    def killed(self) -> bool:
        """True if it ended by SIGKILL, reported as a signal or as an exit code."""
        return self.signal == KILLED or self.code == 128 + KILLED

    @property
    def end(self) -> str:
        """How the run ended, in words."""
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
        """True if there were parties and all succeeded."""
        return bool(self.traces) and all(trace.worked for trace in self.traces)

    @property
    def end(self) -> str:
        """How each party ended, for a sentence."""
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
        """The trial to judge by: the first that worked, else the last."""
        trials = [self.together]
        for trial in (self.known_only, self.all_given):
            if trial is not None:
                trials.append(trial)
        for trial in trials:
            if trial.worked:
                return trial
        return trials[-1]


# ---------------------------------------------------------------- problems on the channel


@dataclass(frozen=True)
class _Mailbox:
    """One topic at the party that its messages are sent to."""

    receiver: str
    topic: str


def refused_requests(traces: Sequence[Trace]) -> list[str]:
    """Return the last permanent refusal of each kind of request."""
    problems: dict[tuple[str, str, str], str] = {}
    for trace in traces:
        for call in trace.requests.channel_calls:
            if not call.code or call.succeeded or call.code in _TRANSIENT_CODES:
                continue
            request = call.operation
            if call.topic:
                request += f" of topic {trace.short(call.topic)}"
            text = f"{trace.party}'s {request} was refused: {call.code} {call.message}".strip()
            problems[trace.party, call.operation, call.code] = text
    return list(problems.values())


def foreign_requests(traces: Sequence[Trace]) -> list[str]:
    """Return each kind of request with a session or token of another run, which a node refuses."""
    problems = []
    for trace in traces:
        for call in trace.requests.channel_calls:
            if call.session != trace.session:
                session = repr(call.session[:_TEXT_LENGTH])
                problems.append(f"{trace.party} used session {session} for {call.operation}")
            if call.token != trace.token:
                text = f"{trace.party} sent no config.token, or another, with {call.operation}"
                problems.append(text)
    return list(dict.fromkeys(problems))


def unsent_topics(traces: Sequence[Trace]) -> list[str]:
    """Return the topics on which a party waited in vain, each with the probably intended one."""
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
    topics = []
    for call in trace.requests.channel_calls:
        if call.operation == "pop" and call.topic is not None and call.topic not in topics:
            topics.append(call.topic)
    return topics


def _end_of_partners(trace: Trace, traces: Sequence[Trace]) -> str:
    """Return which partners ended while a party was still waiting, as the end of a sentence."""
    partners = [partner.party for partner in traces if partner.ended and partner is not trace]
    if trace.was_stopped and partners:
        return f" before {', '.join(partners)} ended"
    return ""


def _likely_mistake(
    trace: Trace,
    topic: str,
    senders: Mapping[_Mailbox, str],
    read: Set[_Mailbox],
) -> str:
    """Return who sent the topic elsewhere, else the unclaimed topic with the most similar name."""
    for mailbox, sender in senders.items():
        if mailbox.topic == topic:
            return f": {sender} sent it to {mailbox.receiver} (x-ptp-target-node-id)"
    unclaimed = []
    for mailbox in senders:
        if mailbox.receiver == trace.party and mailbox not in read:
            unclaimed.append(mailbox.topic)
    similar = get_close_matches(topic, unclaimed, n=1, cutoff=0.5)
    if not similar:
        return ""
    sender = senders[_Mailbox(trace.party, similar[0])]
    return f"; did you mean {trace.short(similar[0])}, which {sender} sent to it?"


def unclaimed_topics(traces: Sequence[Trace]) -> list[str]:
    """Return the topics whose messages were never read."""
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
    """True while a party waits for a message, or after it asked twice for the same and got none."""
    calls = requests.channel_calls[-2:]
    if not calls:
        return False
    last = calls[-1]
    if last.operation not in ("pop", "peek") or last.content:
        return False
    if not last.code:
        return True
    if len(calls) == 1:
        return False
    before = calls[0]
    return (before.operation, before.topic) == (last.operation, last.topic) and not before.content


def channel_summary(traces: Sequence[Trace]) -> str:
    """Return in a line what keeps the parties from ending; empty if the channel shows nothing."""
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
    mailboxes = set()
    for trace in traces:
        for call in _accepted_calls(trace, "pop", "peek"):
            if call.content:
                mailboxes.add(_Mailbox(trace.party, call.topic or ""))
    return mailboxes


def _accepted_calls(trace: Trace, *operations: str) -> Iterator[ChannelCall]:
    for call in trace.requests.channel_calls:
        if call.operation in operations and call.succeeded:
            yield call
