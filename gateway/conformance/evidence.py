"""What a trial has seen of a component: values only, so that judging them needs nothing running."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import partial

from gateway.domain.execution import runs
from gateway.domain.execution.runs import result_of
from provider_registry.model import Component

KILLED = 9
_LAST_LINES = 5


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
    remedy: str = ""
    """what to do in this case; empty: what the clause says"""


ok = partial(Finding, Result.OK)
failed = partial(Finding, Result.FAILED)
not_shown = partial(Finding, Result.NOT_SHOWN)
"""nothing was seen by which a clause could be judged"""


@dataclass(frozen=True)
class StateReport:
    """One callback, as a gateway reads it."""

    status: str
    task_id: str
    role: str
    address: bool
    """it came to the whole given address, the query included"""
    result_code: str = ""


@dataclass
class ChannelCall:
    """One request to the channel, and once it is answered what came of it."""

    operation: str
    """push, pop, peek or release"""
    session: str
    token: str
    target: str = ""
    """the node that it names"""
    topic: str | None = None
    """None where its body cannot be read"""
    code: str = ""
    """empty while it waits"""
    message: str = ""
    content: bool = False
    """a message came with the answer"""

    @property
    def succeeded(self) -> bool:
        """Whether the gateway did what it asked for, be it without a message."""
        return self.code == "E0000000000"


@dataclass
class Requests:
    """Every request of one party to its gateway."""

    reports: list[StateReport] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """callbacks that a gateway does not accept, with its message"""
    channel_calls: list[ChannelCall] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """method and path of what containers have no business to request"""


@dataclass(frozen=True)
class Trace:
    """All that was seen of one party in one trial."""

    party: str
    task_id: str
    session: str
    token: str
    node: str = ""
    requests: Requests = field(default_factory=Requests)
    not_started: str = ""
    """the engine's reason and words, where the run could not be started"""
    code: int | None = None
    """the exit code; None: it has not exited"""
    signal: int | None = None
    oom_killed: bool = False
    """it used more memory than the sandbox allows"""
    was_stopped: bool = False
    """it ran until it was stopped"""
    stop_seconds: float = 0.0
    """how long it took to exit after that"""
    stdout: bytes = b""
    stderr: bytes = b""
    log_files: tuple[str, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    """those that were written, each with what is wrong with its form; empty for nothing"""
    missing: tuple[str, ...] = ()
    """outputs that were not written"""
    strays: tuple[str, ...] = ()
    """what else it wrote into the storage"""
    changed: tuple[str, ...] = ()
    """inputs that are not as they were"""
    shown: Mapping[str, str] = field(default_factory=dict)
    """the beginning of each output that was written"""

    def short(self, topic: str) -> str:
        """Return a topic quoted, as a report shows it: without the long id of the task."""
        return repr(topic.replace(self.task_id, "<task_id>")[:80])

    @property
    def started(self) -> bool:
        """Whether the component's own program ran; an interpreter that is missing ends a script before that."""
        silent = not self.requests.reports and not self.requests.channel_calls and not self.stdout
        return not self.not_started and not (self.code in runs.NEVER_BEGAN and silent)

    @property
    def reported(self) -> str:
        """The final state that it reported; empty for none."""
        finals = [s.status for s in self.requests.reports if s.status in ("SUCCESS", "FAILED")]
        return finals[-1] if finals else ""

    @property
    def result_code(self) -> str:
        """The result code that it reported, in a callback or else in its last line; empty for none."""
        codes = [s.result_code for s in self.requests.reports if s.result_code]
        return codes[-1] if codes else result_of(self.stdout.splitlines())[0]

    @property
    def ended(self) -> bool:
        """Whether it ran, and ended by itself."""
        return self.started and self.code is not None and not self.was_stopped

    @property
    def no_callback(self) -> bool:
        """Whether it exited with code 0 and reported no end; a success where no output is missing."""
        return self.ended and not self.reported and self.code == 0

    @property
    def worked(self) -> bool:
        """Whether a gateway takes the run for a success."""
        return (self.ended and self.reported == "SUCCESS") or (
            self.no_callback and not self.missing
        )

    @property
    def killed(self) -> bool:
        """Whether it ended by SIGKILL, given as a signal or as an exit code."""
        return self.signal == KILLED or self.code == 128 + KILLED

    @property
    def end(self) -> str:
        """Say in words how it ended."""
        if self.not_started:
            return f"{self.party} did not start: {self.not_started}"
        if not self.started and self.code is not None:
            meaning = runs.meaning(self.code)
            return (
                f"{self.party} did not start: exit code {self.code}, {meaning}{self._last_words()}"
            )
        how = (
            "was still running and was stopped"
            if self.was_stopped
            else f"ended with code {self.code}"
        )
        if self.oom_killed:
            return f"{self.party} used more memory than it may (OOM_KILLED){self._last_words()}"
        state = f", reported {self.reported}" if self.reported else ", reported no final state"
        return f"{self.party} {how}{state}{self._last_words()}"

    def _last_words(self) -> str:
        for stream in (self.stderr, self.stdout):
            lines = stream.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
            if lines:
                shown = "\n".join(line[-300:] for line in lines)
                return (
                    f"; its last lines:\n{shown}" if len(lines) > 1 else f"; its last line: {shown}"
                )
        return ""


@dataclass(frozen=True)
class Trial:
    """One way in which a component was run, with what came of it at each party."""

    traces: tuple[Trace, ...]

    @property
    def worked(self) -> bool:
        """Whether every party ended well; not so where there was none."""
        return bool(self.traces) and all(trace.worked for trace in self.traces)

    @property
    def end(self) -> str:
        """How each party ended, for a sentence."""
        return "; ".join(trace.end for trace in self.traces)


@dataclass(frozen=True)
class Evidence:
    """All trials of one component. One that was not made, or was not needed, is None."""

    component: Component
    together: Trial
    """all parties with made-up data, with the required parameters and one that the description does not know"""
    known_only: Trial | None = None
    """the same without the unknown parameter; made where the first did not work"""
    all_given: Trial | None = None
    """the same with the defaults of all optional parameters; made where the second did not work either"""
    alone: tuple[Trace, ...] = ()
    """each party without its partners, stopped while it runs"""
    without_data: tuple[Trace, ...] = ()
    """all parties, where their inputs hold nothing"""
    confined: bool = False
    """its runs can write into their outputs and nowhere else in the storage"""
    lacks: tuple[str, ...] = ()
    """inputs that could not be made up, such as models"""
    made_up: bool = False
    """no table was given"""

    @property
    def best(self) -> Trial:
        """The trial that shows most: the first that worked, else the last."""
        tried = [t for t in (self.together, self.known_only, self.all_given) if t is not None]
        return next((t for t in tried if t.worked), tried[-1])


# ------------------------------------------- the channel: what was refused, never sent, never read

_PASSING = ("E0000000607", "E0000000700")
"""codes after which the same request is sent again: the other node is away, too much is unread"""
_SHOWN = 3


def refused(traces: Sequence[Trace]) -> list[str]:
    """Return each kind of request that was refused for good, the last of its kind."""
    found: dict[tuple[str, str, str], str] = {}
    for trace in traces:
        for call in trace.requests.channel_calls:
            if call.code and not call.succeeded and call.code not in _PASSING:
                text = f"{trace.party}'s {_named(trace, call)} was refused: {call.code} {call.message}".strip()
                found[trace.party, call.operation, call.code] = text
    return list(found.values())


def alien(traces: Sequence[Trace]) -> list[str]:
    """Return each kind of request with another session or token than the given one, which a node refuses."""
    found = []
    for trace in traces:
        for call in trace.requests.channel_calls:
            if call.session != trace.session:
                found.append(
                    f"{trace.party} used session {call.session[:80]!r} for {call.operation}"
                )
            if call.token != trace.token:
                found.append(
                    f"{trace.party} sent no config.token, or another, with {call.operation}"
                )
    return list(dict.fromkeys(found))


def unsent(traces: Sequence[Trace]) -> list[str]:
    """Return the topics that a party waited for and got nothing on, each with what may have been meant."""
    sent, read = _sent(traces), _read(traces)
    found = []
    for trace in traces:
        ended = [other.party for other in traces if other.ended and other is not trace]
        until = f" before {', '.join(ended)} ended" if trace.was_stopped and ended else ""
        waited = [
            c for c in trace.requests.channel_calls if c.operation == "pop" and c.topic is not None
        ]
        for topic in dict.fromkeys(c.topic or "" for c in waited):
            if (trace.party, topic) in read or (trace.party, topic) in sent:
                continue
            elsewhere = [to for to, name in sent if name == topic]
            waiting = [name for to, name in sent if to == trace.party and (to, name) not in read]
            text = f"{trace.party} waits for topic {trace.short(topic)}, which received no message{until}"
            if elsewhere:
                text += f": {sent[elsewhere[0], topic]} sent it to {elsewhere[0]} (x-ptp-target-node-id)"
            elif meant := get_close_matches(topic, waiting, n=1, cutoff=0.5):
                text += f"; did you mean {trace.short(meant[0])}, which {sent[trace.party, meant[0]]} sent to it?"
            found.append(text)
    return found


def unclaimed(traces: Sequence[Trace]) -> list[str]:
    """Return the topics with messages that were never read."""
    sent, read, short = _sent(traces), _read(traces), traces[0].short
    left = [at for at in sent if at not in read]
    return [f"no party reads topic {short(at[1])}, which {sent[at]} sent to {at[0]}" for at in left]


def waits(requests: Requests) -> bool:
    """Tell whether a party is asking for a message, or has asked twice, and none has come."""
    calls = requests.channel_calls[-2:]
    if not calls or calls[-1].operation not in ("pop", "peek") or calls[-1].content:
        return False
    asked = [(call.operation, call.topic, call.content) for call in calls]
    return not calls[-1].code or (len(asked) > 1 and asked[0] == asked[1])


def summary(traces: Sequence[Trace]) -> str:
    """Return in a line what keeps the parties from ending; empty where the channel shows nothing."""
    found = [text for of in (refused, unsent, unclaimed) for text in of(traces)[:_SHOWN]]
    return f"; on the channel: {'; '.join(found)}" if found else ""


def _sent(traces: Sequence[Trace]) -> dict[tuple[str, str], str]:
    """Return (party that it was sent to, topic) -> who sent it."""
    party_of = {trace.node: trace.party for trace in traces}
    return {
        (party_of.get(call.target, call.target), call.topic or ""): trace.party
        for trace in traces
        for call in _accepted(trace, "push")
    }


def _read(traces: Sequence[Trace]) -> set[tuple[str, str]]:
    return {
        (trace.party, call.topic or "")
        for trace in traces
        for call in (*_accepted(trace, "pop"), *_accepted(trace, "peek"))
        if call.content
    }


def _accepted(trace: Trace, operation: str) -> Iterator[ChannelCall]:
    yield from (c for c in trace.requests.channel_calls if c.operation == operation and c.succeeded)


def _named(trace: Trace, call: ChannelCall) -> str:
    return call.operation + (f" of topic {trace.short(call.topic)}" if call.topic else "")
