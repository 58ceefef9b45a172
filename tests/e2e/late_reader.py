"""A component for one test: the guest sends and exits at once; the host reads once it may."""

import base64
import json
import os
import time
import urllib.request

told = dict(os.environ)
role = told["config.self_role"]
peer = {"guest.0": "host.0", "host.0": "guest.0"}[role]


def ask(path: str, target: str, **body: object) -> dict[str, str]:
    request = urllib.request.Request(
        f"http://{told['system.transport']}/v1/interconn/chan/{path}",
        json.dumps(body).encode(),
        {
            "content-type": "application/json",
            "x-ptp-session-id": told["config.session_id"],
            "x-ptp-token": told["config.token"],
            "x-ptp-target-node-id": target,
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


me, other = (told[f"config.node_id.{r}"] for r in (role, peer))
if role == "guest.0":
    said = ask("push", other, topic="late", payload=base64.b64encode(b"still here").decode())
    assert said["code"] == "E0000000000", said
else:
    while not os.path.exists(told["runtime.component.parameter.may_read"]):
        time.sleep(0.1)
    got = ask("pop", me, topic="late", timeout=5000)
    assert base64.b64decode(got["content"]) == b"still here", got
callback = json.dumps({"task_id": told["config.task_id"], "role": role, "status": "SUCCESS"}).encode()
urllib.request.urlopen(
    urllib.request.Request(told["system.callback"], callback, {"content-type": "application/json"}), timeout=60
).read()
