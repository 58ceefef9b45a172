"""A component: guest and host send each other a number in turns, the host by gRPC if told so.

It runs as a container: all values come from its environment. A request without a response is
repeated under the same id, so that no message is lost or comes twice. Parameters:

* ``rounds``: how many numbers go to the host and back
* ``size``: the bytes of each message, which is padded with blanks
* ``rpc``: whether the host speaks gRPC
* ``may_read``: a file; the host reads once it exists, and the guest exits after it sent its numbers
"""

import base64
import http.client
import json
import os
import time
import urllib.request
import uuid

PARAMETER = "runtime.component.parameter."
SUCCESS = "E0000000000"
# The peer is unreachable, or has no capacity.
TEMPORARY_CODES = ("E0000000607", "E0000000700")
# Headers with the id under which a request is repeated.
ID_HEADERS = {
    "push": "x-ptp-message-id",
    "pop": "x-ptp-pop-id",
}
PEER_ROLES = {
    "guest.0": "host.0",
    "host.0": "guest.0",
}

environment = dict(os.environ)
role = environment["config.self_role"]
peer_role = PEER_ROLES[role]
node = environment[f"config.node_id.{role}"]
peer_node = environment[f"config.node_id.{peer_role}"]


def channel_headers(target: str) -> dict[str, str]:
    return {
        "x-ptp-session-id": environment["config.session_id"],
        "x-ptp-target-node-id": target,
        "x-ptp-token": environment["config.token"],
    }


def post(request: urllib.request.Request) -> dict[str, str]:
    """Send a request, repeatedly if there is no response within two minutes; return its JSON."""
    end = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                return dict(json.load(response))
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def call_by_http(
    verb: str,
    target: str,
    **body: object,
) -> dict[str, str]:
    """Push or pop by HTTP; return the response."""
    headers = channel_headers(target) | {
        "content-type": "application/json",
        ID_HEADERS[verb]: uuid.uuid4().hex,
    }
    request = urllib.request.Request(
        f"http://{environment['system.transport']}/v1/interconn/chan/{verb}",
        json.dumps(body).encode(),
        headers,
    )
    response = post(request)
    while response["code"] in TEMPORARY_CODES:
        time.sleep(0.1)
        response = post(request)
    assert response["code"] == SUCCESS, response
    return response


def call_by_grpc(
    verb: str,
    target: str,
    **body: object,
) -> dict[str, str]:
    """Push or pop by gRPC; return the content of the response in base64."""
    # Imported here, as containers that speak HTTP run without these packages.
    import grpc

    from adapter.bfia.channel.ptp_pb2 import PopInbound, PushInbound, TransportOutbound

    if verb == "push":
        message = PushInbound(
            topic=body["topic"],
            payload=base64.b64decode(str(body["payload"])),
        )
    else:
        message = PopInbound(**body)
    with grpc.insecure_channel(environment["system.transport"]) as channel:
        call = channel.unary_unary(f"/org.ppc.ptp.PrivateTransferTransport/{verb}")
        metadata = list(channel_headers(target).items())
        response = TransportOutbound.FromString(
            call(
                message.SerializeToString(),
                metadata=metadata,
            )
        )
    assert response.code == SUCCESS, response
    return {"content": base64.b64encode(response.payload).decode()}


call = call_by_http
if role == "host.0" and environment.get(f"{PARAMETER}rpc") == "True":
    call = call_by_grpc


def send(number: int) -> None:
    text = str(number).ljust(size)
    payload = base64.b64encode(text.encode()).decode()
    call(
        "push",
        peer_node,
        topic=f"to {peer_role}",
        payload=payload,
    )


def receive() -> int:
    response = call(
        "pop",
        node,
        topic=f"to {role}",
        timeout=60_000,
    )
    return int(base64.b64decode(response["content"]))


def play_ping_pong(rounds: int) -> None:
    """Send numbers to the host and back."""
    for number in range(rounds):
        if role == "guest.0":
            send(number)
            assert receive() == number
            time.sleep(0.05)
        else:
            send(receive())


def play_one_way(rounds: int, may_read: str) -> None:
    """Send numbers to the host, which reads them once the file exists."""
    for number in range(rounds):
        if role == "guest.0":
            send(number)
            continue
        while not os.path.exists(may_read):
            time.sleep(0.1)
        receive()


size = int(environment.get(f"{PARAMETER}size", 0))
rounds = int(environment[f"{PARAMETER}rounds"])
may_read = environment.get(f"{PARAMETER}may_read", "")
if may_read:
    play_one_way(rounds, may_read)
else:
    play_ping_pong(rounds)
report = {
    "task_id": environment["config.task_id"],
    "role": role,
    "status": "SUCCESS",
}
post(
    urllib.request.Request(
        environment["system.callback"],
        json.dumps(report).encode(),
        {"content-type": "application/json"},
    )
)
