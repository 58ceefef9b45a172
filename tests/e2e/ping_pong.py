"""A component: guest and host pass a number to and fro; the host by gRPC where it is told so.

What got no answer by HTTP is asked again under the same name, so that no message is lost or comes twice.

Where the host ``may_read`` only once a file is there, the guest sends one number and exits.
"""

import base64
import http.client
import json
import os
import time
import urllib.request
import uuid

told = dict(os.environ)
role = told["config.self_role"]
peer = {"guest.0": "host.0", "host.0": "guest.0"}[role]
token = {"x-ptp-token": told["config.token"]}
me, other = (told[f"config.node_id.{r}"] for r in (role, peer))


def ask(
    path: str,
    target: str,
    **body: object,
) -> dict[str, str]:
    name = {"push": "x-ptp-message-id", "pop": "x-ptp-pop-id"}[path]
    request = urllib.request.Request(
        f"http://{told['system.transport']}/v1/interconn/chan/{path}",
        json.dumps(body).encode(),
        {
            "content-type": "application/json",
            "x-ptp-session-id": told["config.session_id"],
            "x-ptp-target-node-id": target,
            name: uuid.uuid4().hex,
            **token,
        },
    )
    said = asked(request)
    while said["code"] in ("E0000000607", "E0000000700"):
        time.sleep(0.1)
        said = asked(request)
    assert said["code"] == "E0000000000", said
    return said


def asked(request: urllib.request.Request) -> dict[str, str]:
    end = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return dict(json.load(answer))
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def ask_by_grpc(
    path: str,
    target: str,
    **body: object,
) -> dict[str, str]:
    import grpc

    from adapter.bfia.channel.ptp_pb2 import PopInbound, PushInbound, TransportOutbound

    if "payload" in body:
        message = PushInbound(topic=body["topic"], payload=base64.b64decode(str(body["payload"])))
    else:
        message = PopInbound(**body)
    named = {
        "x-ptp-session-id": told["config.session_id"],
        "x-ptp-target-node-id": target,
        **token,
    }
    with grpc.insecure_channel(told["system.transport"]) as channel:
        call = channel.unary_unary(f"/org.ppc.ptp.PrivateTransferTransport/{path}")
        answer = TransportOutbound.FromString(
            call(message.SerializeToString(), metadata=list(named.items()))
        )
    assert answer.code == "E0000000000", answer
    return {"content": base64.b64encode(answer.payload).decode()}


if role == "host.0" and told.get("runtime.component.parameter.rpc") == "True":
    ask = ask_by_grpc


def send(number: int) -> None:
    ask("push", other, topic=f"to {peer}", payload=base64.b64encode(str(number).encode()).decode())


def receive() -> int:
    return int(base64.b64decode(ask("pop", me, topic=f"to {role}", timeout=60_000)["content"]))


may_read = told.get("runtime.component.parameter.may_read", "")
for number in range(int(told["runtime.component.parameter.rounds"])):
    while may_read and role == "host.0" and not os.path.exists(may_read):
        time.sleep(0.1)
    if may_read:
        send(number) if role == "guest.0" else receive()
    elif role == "guest.0":
        send(number)
        assert receive() == number
        time.sleep(0.05)
    else:
        send(receive())
callback = json.dumps(
    {
        "task_id": told["config.task_id"],
        "role": role,
        "status": "SUCCESS",
    }
).encode()
asked(
    urllib.request.Request(told["system.callback"], callback, {"content-type": "application/json"})
)
