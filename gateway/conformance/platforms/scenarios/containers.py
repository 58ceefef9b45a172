"""Clauses about a transport and the containers of its node (transport layer 2.2)."""

import time
from uuid import uuid4

from adapter.bfia.channel.codec import INVOKE, PUSH, SUCCESS
from adapter.bfia.channel.ptp_pb2 import (  # type: ignore[attr-defined]
    PopInbound,
    PushInbound,
)
from gateway.conformance.platforms.containers import (
    Container,
    take_messages,
    wait_for_message,
)
from gateway.conformance.platforms.findings import Exchange, Finding, assume, demand, holds
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.transport_answers import (
    TransportAnswer,
    assume_served,
    judge_delivery,
    judge_refusal,
    read_transport_answer,
)
from gateway.conformance.platforms.trial import Trial

_PROTOBUF = "application/x-protobuf"
_PAYLOAD = b"\x00conformance\xff"
_FIRST, _SECOND = b"first", b"second"
_POP_SECONDS = 5.0  # seconds for a message that was stored
_EMPTY_WAIT = 2.0  # seconds of a pop without a message
_EARLIEST = 1.0  # seconds; a pop that ends before has not waited
_UNKNOWN_NODE = "JG9999999999999999"  # in no job
_WRONG_TOKEN = "conformance-wrong-token"


def _new_topic() -> str:
    """Return a topic that no message has."""
    return f"conformance-{uuid4().hex}"


def _store(
    trial: Trial,
    topic: str,
    *payloads: bytes,
) -> Container:
    """Send messages to the container, as another node. Raises `CannotTry` if none is stored."""
    container = trial.container
    for payload in payloads:
        answer = read_transport_answer(_invoke(trial, container, topic, payload))
        assume(answer.code == SUCCESS, f"chan/invoke is refused: {answer.summary}")
    return container


def _invoke(
    trial: Trial,
    container: Container,
    topic: str,
    payload: bytes,
) -> Exchange:
    """Send a message to the node's transport, as the check's own transport."""
    push = PushInbound(topic=topic, payload=payload).SerializeToString()
    headers = {
        "content-type": _PROTOBUF,
        "x-ptp-version": "1",
        "x-ptp-tech-provider-code": "conformance",
        "x-ptp-trace-id": "conformance",
        "x-ptp-token": "conformance",
        "x-ptp-session-id": container.session,
        "x-ptp-source-node-id": trial.me,
        "x-ptp-target-node-id": trial.node.node_id,
        "x-ptp-uri": PUSH,
    }
    return trial.node.send(
        "POST",
        INVOKE,
        push,
        changes=headers,
    )


def _demand_message(answer: TransportAnswer, payload: bytes, what: str) -> None:
    """Raise `Broken` unless a response hands out a message."""
    demand(answer.code == SUCCESS, f"{what}: {answer.summary}")
    demand(bool(answer.content), f"{what}: no content")
    demand(answer.content == payload, f"{what}: the content is another one")


def _demand_nothing(answer: TransportAnswer, what: str) -> None:
    """Raise `Broken` unless a response is a success without content."""
    demand(answer.code == SUCCESS, f"{what}: {answer.summary}")
    demand(not answer.content, f"{what}: a message is handed out")


@tries("T-2.2-push")
def stores_messages_of_containers(trial: Trial) -> Finding:
    """A push for the node itself."""
    exchange = trial.container.push(_new_topic(), _PAYLOAD, trial.node.node_id)
    return judge_delivery(exchange, "a container's push")


@tries("T-2.2-pop")
def hands_messages_out_in_order(trial: Trial) -> Finding:
    """Two messages, each popped once."""
    topic = _new_topic()
    container = _store(trial, topic, _FIRST, _SECOND)
    for payload in (_FIRST, _SECOND):
        answer = container.pop(topic, _POP_SECONDS)
        assume_served(answer.exchange)
        _demand_message(answer, payload, f"pop of the {payload.decode()} message")
    _demand_nothing(container.pop(topic, _EARLIEST), "a third pop of two messages")
    return holds("two messages come in order, each once")


@tries("T-2.2-pop-empty")
def waits_for_messages(trial: Trial) -> Finding:
    """A pop without a message."""
    answer = trial.container.pop(_new_topic(), _EMPTY_WAIT)
    assume_served(answer.exchange)
    _demand_nothing(answer, "a pop without a message")
    seconds = answer.exchange.seconds
    text = f"a pop with a timeout of {_EMPTY_WAIT:g} s ends after {seconds:.1f} s"
    demand(seconds >= _EARLIEST, text)
    return holds(f"an empty success after {seconds:.1f} s")


@tries("T-2.2-peek")
def peeks_without_waiting(trial: Trial) -> Finding:
    """A peek with and without a message."""
    topic = _new_topic()
    started = time.monotonic()
    answer = trial.container.peek(topic)
    seconds = time.monotonic() - started
    assume_served(answer.exchange)
    _demand_nothing(answer, "a peek without a message")
    demand(seconds < _POP_SECONDS, f"a peek without a message takes {seconds:.1f} s")
    container = _store(trial, topic, _PAYLOAD)
    _demand_message(container.peek(topic), _PAYLOAD, "a peek of one message")
    return holds("a peek returns what there is, without waiting")


@tries("T-2.2-topics")
def separates_topics(trial: Trial) -> Finding:
    """A pop of another topic."""
    topic = _new_topic()
    container = _store(trial, topic, _PAYLOAD)
    answer = container.pop(_new_topic(), _EARLIEST)
    _demand_nothing(answer, "a pop of another topic")
    _demand_message(container.pop(topic, _POP_SECONDS), _PAYLOAD, "a pop of the message's topic")
    return holds("a message is handed out for its topic only")


@tries("T-2.2-release")
def releases_topics(trial: Trial) -> Finding:
    """The release of one of two topics."""
    released, other = _new_topic(), _new_topic()
    container = _store(trial, released, _FIRST)
    _store(trial, other, _SECOND)
    exchange = container.release(released)
    assume_served(exchange)
    judge_delivery(exchange, "release of a topic")
    _demand_nothing(container.peek(released), "a peek of a released topic")
    _demand_message(container.peek(other), _SECOND, "a peek of a topic that was not released")
    return holds("the messages of the topic are dropped, the others stay")


@tries("T-2.2-container-protobuf")
def serves_containers_in_protobuf(trial: Trial) -> Finding:
    """A push and a pop in protobuf."""
    push = PushInbound(topic=_new_topic(), payload=_PAYLOAD).SerializeToString()
    pushed = trial.container.send_content("push", push, _PROTOBUF)
    judge_delivery(pushed, "a container's push in protobuf")
    topic = _new_topic()
    _store(trial, topic, _PAYLOAD)
    pop = PopInbound(topic=topic, timeout=int(_POP_SECONDS * 1000)).SerializeToString()
    popped = trial.container.send_content(
        "pop",
        pop,
        _PROTOBUF,
        _POP_SECONDS,
    )
    _demand_message(read_transport_answer(popped), _PAYLOAD, "a pop in protobuf")
    return holds("a message is pushed and popped in protobuf")


@tries("T-2.2-inward")
def hands_out_messages_of_partners(trial: Trial) -> Finding:
    """A message that the check sends to a container of the node."""
    topic = _new_topic()
    container = _store(trial, topic, _PAYLOAD)
    popped = container.pop(topic, _POP_SECONDS)
    assume_served(popped.exchange)
    _demand_message(popped, _PAYLOAD, "a pop of a partner's message")
    return holds("a container pops the message, byte by byte as it was sent")


@tries("T-2.2-outward")
def delivers_messages_to_partners(trial: Trial) -> Finding:
    """A container's push for the check."""
    partner = trial.partner
    container = trial.container
    take_messages(partner)
    topic = _new_topic()
    exchange = container.push(topic, _PAYLOAD, trial.me)
    judge_delivery(exchange, "a container's push for another node")
    message = wait_for_message(
        partner,
        container.session,
        topic,
        seconds=trial.options.timeout,
    )
    partner.reset()
    demand(message is not None, "the push is a success, and no message arrives")
    assert message is not None
    demand(message.payload == _PAYLOAD, "the payload is not the one that was pushed")
    target = message.request.headers.get("x-ptp-target-node-id", "absent")
    demand(target == trial.me, f"x-ptp-target-node-id is {target}")
    source = message.request.headers.get("x-ptp-source-node-id", "absent")
    demand(source == trial.node.node_id, f"x-ptp-source-node-id is {source}")
    return holds(f"it arrives at {message.request.path}, with session, topic and payload")


@tries("T-2.2-refused")
def passes_refusals_on(trial: Trial) -> Finding:
    """A container's push for the check, which refuses it."""
    container = trial.container
    trial.partner.reset()
    exchange = container.push(_new_topic(), _PAYLOAD, trial.me)
    return judge_refusal(exchange, "a push that the other node refuses")


@tries("T-2.2-unknown")
def refuses_pushes_for_unknown_nodes(trial: Trial) -> Finding:
    """A container's push for a node that is in no job."""
    exchange = trial.container.push(_new_topic(), _PAYLOAD, _UNKNOWN_NODE)
    return judge_refusal(exchange, "a container's push for an unknown node")


@tries("T-2.2-token")
def demands_the_token(trial: Trial) -> Finding:
    """A push with a wrong token."""
    container = trial.container
    accepted = read_transport_answer(container.push(_new_topic(), _PAYLOAD, trial.node.node_id))
    assume(accepted.code == SUCCESS, f"a container's push is not stored: {accepted.summary}")
    exchange = container.push(
        _new_topic(),
        _PAYLOAD,
        trial.node.node_id,
        {"x-ptp-token": _WRONG_TOKEN},
    )
    return judge_refusal(exchange, "a push with a wrong token")


@tries("T-2.2-foreign")
def keeps_sessions_apart(trial: Trial) -> Finding:
    """A pop of a session that is not the container's."""
    container = trial.container
    foreign_session = f"session_{trial.open_job}"
    exchange = container.send(
        "pop",
        {"topic": _new_topic(), "timeout": 1},
        changes={"x-ptp-session-id": foreign_session},
    )
    return judge_refusal(exchange, "a pop of another job's session")
