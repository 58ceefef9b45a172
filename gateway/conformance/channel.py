"""What the parties of a trial did on the channel: what was refused, what nobody sent, what nobody read."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from gateway.conformance.evidence import ChannelCall, Requests, Trace

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


def unsent(traces: Sequence[Trace]) -> list[str]:
    """Return the topics that a party waited for and got nothing on, each with what may have been meant."""
    sent, read = _sent(traces), _read(traces)
    found = []
    for trace in traces:
        ended = [other.party for other in traces if other.ended and other is not trace]
        until = f" before {', '.join(ended)} ended" if trace.was_stopped and ended else ""
        waited = [c for c in trace.requests.channel_calls if c.operation == "pop" and c.topic is not None]
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
    """Return the topics to which something was sent and that nobody read."""
    sent, read, short = _sent(traces), _read(traces), traces[0].short
    left = [at for at in sent if at not in read]
    return [f"no party reads topic {short(at[1])}, which {sent[at]} sent to {at[0]}" for at in left]


def waiting(traces: Sequence[Trace]) -> str:
    """Return in one line the topics that parties wait for and those still unread; empty for none."""
    return "; ".join([*unsent(traces)[:_SHOWN], *unclaimed(traces)[:_SHOWN]])


def waits(requests: Requests) -> bool:
    """Tell whether a party is asking for a message, or has asked twice, and none has come."""
    calls = requests.channel_calls[-2:]
    if not calls or calls[-1].operation not in ("pop", "peek") or calls[-1].content:
        return False
    asked = [(call.operation, call.topic, call.content) for call in calls]
    return not calls[-1].code or (len(asked) > 1 and asked[0] == asked[1])


def summary(traces: Sequence[Trace]) -> str:
    """Return in a line what keeps the parties from ending; empty where the channel shows nothing."""
    found = "; ".join(filter(None, [*refused(traces)[:_SHOWN], waiting(traces)]))
    return f"; on the channel: {found}" if found else ""


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
