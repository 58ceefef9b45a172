"""Who may do what on the operators' listener, and what is written down of it, by name."""

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import yaml
from anyio import CapacityLimiter
from starlette.responses import PlainTextResponse
from starlette.types import Message

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.auth import RULES, Access, Role, Unauthenticated, digest, may, new_token
from gateway.bootstrap.node import Gateway
from gateway.domain.run import Reporting
from gateway.domain.spec import Call, CallState, Failure
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.errors import DatabaseAway
from gateway.http import guard as guards
from gateway.http.guard import MOST, Guard, Refusals
from gateway.language.catalogue import reasons
from tests import forks
from tests.builders import OK, a_job, a_local_job, a_run, a_spec
from tests.cleaning.ended import a_spec_of, ago, left_behind
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, PEER, ask, running, token_of

OWN = "0123456789abcdef0123"
NOW = datetime(2026, 11, 1, tzinfo=UTC)
SCHEDULE = "/v1/platform/schedule/job"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    engine = {
        "kind": "process",
        "process": {"images": {"example:1.0.0": {"command": ["/bin/sleep", "60"]}}},
    }
    home = tmp_path_factory.mktemp("node")
    (home / "routes.yml").write_text(f"{PEER}: {{host: 127.0.0.1, port: 9}}\n")
    with running(home, engine=engine, auth={"mode": "on", "token": OWN}) as gateway:
        yield gateway


def send(
    node: Gateway,
    method: str,
    path: str,
    token: str = OWN,
    **more: Any,
) -> Any:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return ask(node, "operator", method, path, headers=headers, **more)


def audited(node: Gateway, path: str) -> list[Any]:
    """Return what the audit has of changes below a path, the oldest first."""
    return [e for e in reversed(node.audit.list(limit=500)) if path in e.action]


def test_a_path_beyond_a_rule_does_not_pass_by_it():
    for path in (
        "/v2/component",
        "/v2/component/upload\n",
        "//v2/component/upload",
        "/V2/component/upload",
    ):
        assert not may(Role.PLATFORM, "POST", path)
    assert not may(Role.VIEWER, "POST", "/api/v1/jobs")
    assert all(roles for _, _, roles in RULES)


def test_a_token_is_kept_as_a_hash_and_ends_by_time_or_word():
    text, token = new_token("ann", Role.VIEWER, NOW, NOW + timedelta(days=1))
    assert text not in repr(token)
    assert token.digest == digest(text)
    assert len(text) > 40
    known = {token.digest: token}
    now = [NOW]
    access = Access(known.get, lambda: now[0], OWN)
    assert access.identify(text).name == "ann"
    assert access.identify(OWN).role is Role.ADMIN
    now[0] += timedelta(days=1)
    for said, reason in ((text, "TOKEN_EXPIRED"), ("other", "TOKEN_UNKNOWN"), ("", "NO_TOKEN")):
        with pytest.raises(Unauthenticated) as refused:
            access.identify(said)
        assert refused.value.reason == reason


def test_tokens_are_made_listed_and_revoked_and_the_node_obeys(tmp_path):
    (port,) = free_ports(1)
    listen = {"peer": {"bind": "127.0.0.1:0"}, "operator": {"bind": f"127.0.0.1:{port}"}}
    listen["container"] = listen["peer"]
    settings = {"listen": listen, "auth": {"mode": "on"}}
    config = tmp_path / "node.yml"
    database = {"url": f"sqlite:///{tmp_path / 'node' / 'gateway.db'}"}
    whole = {
        "node": {"id": ME},
        "engine": {"kind": "process"},
        "database": database,
        **settings,
    }
    config.write_text(yaml.safe_dump(whole))

    def cli(*words: str) -> Any:
        # the node here logs into what this process prints
        return forks.run(["token", *words, "--config", str(config)])

    with running(tmp_path / "node", **settings) as node:

        def status(
            method: str,
            path: str,
            token: str = "",
            **more: Any,
        ) -> tuple[int, str]:
            answer = send(node, method, path, token, **more)
            said = answer.json()
            return answer.status_code, (said.get("data") or {}).get("reason", "") if isinstance(
                said, dict
            ) else ""

        assert status("GET", "/api/v1/jobs") == (401, "NO_TOKEN")
        assert status("GET", "/health/live") == (200, "")
        assert status("GET", "/api/v1/jobs", "wrong") == (401, "TOKEN_UNKNOWN")
        made = cli("create", "ann", "--role", "admin")
        assert made.returncode == 0, made.stderr
        ann = made.stdout.strip()
        bob = json.loads(cli("create", "bob", "--role", "viewer", "--json").stdout)["token"]
        assert status("GET", "/api/v1/jobs", ann) == status("GET", "/api/v1/jobs", bob) == (200, "")
        route = {"json": {"route": {"url": "http://h"}, "author": "somebody else"}}
        assert status("PUT", f"/api/v1/routes/{PEER}", bob, **route) == (403, "NOT_AUTHORISED")
        assert status("PUT", f"/api/v1/routes/{PEER}", ann, **route) == (200, "")
        assert node.routes.history()[0].author == "ann"
        assert status("GET", "/api/v1/audit", bob) == (403, "NOT_AUTHORISED")
        listed = cli("list").stdout
        assert "ann" in listed
        assert "viewer" in listed
        assert ann not in listed
        assert cli("revoke", "bob").stdout == "1 revoked\n"
        wait_for(lambda: status("GET", "/api/v1/jobs", bob) == (401, "TOKEN_REVOKED"), 20)
        assert cli("revoke", "bob").returncode == 1
        created, _, revoked = audited(node, "token ")
        assert created.action == "token create"
        assert created.detail["after"]["role"] == "admin"
        assert "bfia_" not in json.dumps(created.detail)
        assert revoked.detail == {
            "before": {"token": "bob", "good": 1},
            "after": {"token": "bob", "good": 0},
        }


def test_a_refused_token_or_role_is_explained_in_the_readers_language(node):
    expired, of_expired = new_token("ann", Role.ADMIN, NOW, NOW)
    revoked, of_revoked = new_token("bob", Role.ADMIN, NOW)
    node.tokens.add(of_expired)
    node.tokens.add(replace(of_revoked, revoked_at=NOW))
    for token, reason, words in (
        ("", "NO_TOKEN", "管理员用 bfia-gateway token create 创建。"),
        ("other", "TOKEN_UNKNOWN", "未知令牌"),
        (expired, "TOKEN_EXPIRED", "ann 的令牌已于"),
        (revoked, "TOKEN_REVOKED", "bob 的令牌已被撤销"),
        (
            token_of(node, Role.VIEWER),
            "NOT_AUTHORISED",
            "viewer；GET /api/v1/audit 只对 admin 开放",
        ),
    ):
        headers = {"accept-language": "zh-CN"} | (
            {"authorization": f"Bearer {token}"} if token else {}
        )
        body = ask(node, "operator", "GET", "/api/v1/audit", headers=headers).json()
        assert body["data"]["reason"] == reason
        assert words in body["msg"]
        assert reasons()[reason].means["zh"] in body["msg"]
        assert body["msg"].count("Bearer") <= 1


def test_a_path_of_other_nodes_is_not_here_for_any_role(node):
    paths = ("/v1/interconn/schedule/job/create", "/v2/partner/job/create")
    for token, path in product((OWN, token_of(node, Role.VIEWER)), paths):
        answer = send(node, "POST", path, token, json={})
        assert answer.status_code == 404
        assert answer.json()["data"]["reason"] == "PATH_UNKNOWN"
        assert answer.json()["msg"].endswith("/job/create; other nodes use listen.peer")
        assert answer.json()["data"]["next_step"] == reasons()["PATH_UNKNOWN"].next_step["en"]


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        (
            "POST",
            "task/get_log",
            {
                "task_id": "zz",
                "start": 0,
                "log_level": "loud",
            },
            "INVALID",
        ),
        (
            "POST",
            "task/get_log",
            {
                "task_id": "zz",
                "start": 0,
                "log_level": "info",
            },
            "TASK_UNKNOWN",
        ),
        ("PUT", "task/get_log", {}, "METHOD_NOT_ALLOWED"),
        ("POST", "component/register", {}, "INVALID"),
    ],
)
def test_a_refusal_on_a_path_of_the_platform_has_a_next_step(node, method, path, body, reason):
    answer = send(node, method, f"/v1/platform/schedule/{path}", OWN, json=body).json()
    assert answer["data"]["reason"] == reason
    assert answer["data"]["next_step"] == reasons()[reason].next_step["en"]


def test_the_links_of_a_job_open_for_those_who_may_and_for_nobody_else(node):
    spec = a_spec("a", {"guest": (ME,), "host": (PEER,)}, job_id="job-1")
    run = a_run(
        "a",
        RunStatus.FAILED,
        spec.parties[0],
        launch=OK,
        failure=Failure("EXIT_3", "exit code 3", ME),
        collect=OK,
        reporting=Reporting(TaskStatus.FAILED),
    )
    local = a_local_job(run, status=JobStatus.FINISHED, closed=True)
    node.store.local_jobs.add(
        replace(local, spec=replace(spec, scheduler=PEER), node=ME), spec.flow_id
    )
    tokens = {role: token_of(node, role) for role in Role}

    def job(role: Role) -> Any:
        answer = send(node, "GET", "/api/v1/jobs/job-1", tokens[role])
        assert str(node.settings.state_dir) not in answer.text, "no path of the server"
        return answer.json()

    (shown,) = job(Role.PLATFORM)["runs"]
    assert "last_lines" in shown
    assert not shown["log"].startswith("file:")
    assert {role: send(node, "GET", shown["log"], tokens[role]).status_code for role in Role} == {
        Role.ADMIN: 200,
        Role.VENDOR: 200,
        Role.PLATFORM: 200,
        Role.VIEWER: 403,
    }
    (seen,) = job(Role.VIEWER)["runs"]
    assert seen["failure"]["reason"] == "EXIT_3"
    assert "last_lines" not in seen
    assert send(node, "GET", shown["log"], "").status_code == 401


def test_every_change_is_written_down_and_looking_is_not(node):
    send(node, "GET", "/api/v1/jobs")
    send(node, "PUT", "/api/v1/routes/JG7", json={"route": {"url": "http://h"}})
    send(node, "POST", f"{SCHEDULE}/stop_all", json={"job_id": "job-none"})
    send(node, "DELETE", "/api/v1/routes/JG404")
    put, stop, delete = (
        audited(node, word)[-1]
        for word in ("PUT /api/v1/routes/JG7", f"POST {SCHEDULE}/stop_all", "JG404")
    )
    assert [(e.who, e.status, e.code) for e in (put, stop, delete)] == [
        ("operator", 200, None),
        ("operator", 200, 404),
        ("operator", 404, 404),
    ]
    (change,) = put.detail["changes"]
    assert change["node"] == "JG7"
    assert change["before"] is None
    assert change["after"]["url"] == "http://h"
    assert "GET /api/v1/jobs" not in {e.action for e in node.audit.list(limit=500)}


def test_the_timeline_names_whoever_asked_for_a_change_of_a_job(node):
    li = token_of(node, Role.PLATFORM, "li")

    def post(
        path: str,
        body: Any,
        token: str = li,
    ) -> Any:
        return send(node, "POST", path, token, json=body).json()

    post("/v2/provider/register", A_PROVIDER, OWN)
    body = copy.deepcopy(A_JOB)
    body["config"]["initiator"] = {"role": "guest", "node_id": ME}
    body["config"]["role"] = {"guest": [ME], "host": [ME]}
    job_id = post(f"{SCHEDULE}/create_all", body)["data"]["job_id"]
    place = f"/api/v1/jobs/{job_id}"
    for word in ("suspend", "resume"):
        assert post(f"{place}/{word}", {})["suspended"] is (word == "suspend")
    assert post(f"{SCHEDULE}/stop_task", {"job_id": job_id, "task_name": "nothing"})["code"] == 404
    for _ in range(2):  # the second changes nothing, and nobody asked for anything by it
        assert post(f"{SCHEDULE}/stop_all", {"job_id": job_id}, OWN)["code"] == 0
    wait_for(lambda: node.store.jobs.get(job_id).status is JobStatus.FINISHED, 30, 0.02)
    again = post(f"{place}/rerun", {"from": "echo_1"})["job_id"]
    first = node.store.timeline(job_id)[0]
    assert first.event == "job PENDING"
    assert first.detail == {"user": "li"}
    told = [e for e in node.store.timeline(job_id) if e.side == "operator"]
    assert [(e.event, e.by) for e in told] == [
        ("suspend requested", "li"),
        ("resume requested", "li"),
        ("stop requested", "operator"),
        ("rerun requested", "li"),
    ]
    assert told[-1].detail == {"new_job": again}
    traces = {node.store.jobs.get(one).spec.trace_id for one in (job_id, again)}
    assert len(traces) == 2 and "" not in traces, "each job is followed by a trace id of its own"
    assert post(f"{SCHEDULE}/stop_all", {"job_id": again})["code"] == 0


async def breaking_off(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize(
    ("app", "happens"),
    [
        (
            PlainTextResponse("done", 201),
            ["http.response.start", "operator POST /x 201", "http.response.body"],
        ),
        (breaking_off, ["operator POST /x 500"]),
    ],
)
def test_a_change_is_in_the_log_before_its_answer_which_stands_without_it(app, happens, away):
    happened: list[str] = []

    async def send(message: Message) -> None:
        happened.append(message["type"])

    def record(
        at: datetime,
        who: str,
        action: str,
        status: int,
        *_: object,
    ) -> None:
        happened.append(f"{who} {action} {status}")
        if away:
            raise DatabaseAway("away")

    guard = Guard(app, None, record, lambda: NOW, CapacityLimiter(1))
    with suppress(ZeroDivisionError):
        anyio.run(
            guard,
            {
                "type": "http",
                "method": "POST",
                "path": "/x",
                "headers": [],
            },
            None,
            send,
        )
    assert happened == happens


def test_tokens_without_end_are_remembered_to_a_bound(monkeypatch):
    """Attack: each request has another token."""
    monkeypatch.setattr(guards, "CACHE_SIZE", 2)
    access = SimpleNamespace(identify=lambda token: token)
    guard = Guard(None, access, None, lambda: NOW, CapacityLimiter(1))  # type: ignore[arg-type]
    for number in range(9):
        headers = [(b"authorization", b"Bearer %d" % number)]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/x",
            "headers": headers,
        }
        assert anyio.run(guard._identify, scope) == f"{number}"
        assert len(guard._cache) <= 2


def test_cleaning_a_task_and_cancelling_what_waits_are_in_the_audit(node):
    left_behind(node, "job-clean", 5)
    waits = a_job(status=JobStatus.PENDING, spec=a_spec_of("job-waits"))
    later = Call(
        CallState.LOST,
        sent_at=ago(1),
        due_at=ago(-3600),
        tries=1,
    )
    nodes = {name: replace(part, create=later) for name, part in waits.nodes.items()}
    assert node.store.jobs.add(replace(waits, nodes=nodes, created_at=ago(1)), "flow")
    outputs, cancel = "/api/v1/jobs/job-clean/tasks/a/outputs", "/api/v1/jobs/cancel-waiting"
    for dry in (True, False):
        cleaned = send(node, "DELETE", outputs, params={"dry_run": str(dry).lower()}).json()
        assert {item["removed"] for item in cleaned["items"]} == {not dry}
        assert send(node, "POST", cancel, json={"dry_run": dry}).json() == {
            "dry_run": dry,
            "jobs": ["job-waits"],
        }
    names = [f"{item['kind']} {item['name']}" for item in cleaned["items"]]
    assert [(e.who, e.detail) for path in (outputs, cancel) for e in audited(node, path)] == [
        ("operator", {"dry_run": True}),
        ("operator", {"before": names, "after": None}),
        ("operator", {"dry_run": True}),
        ("operator", {"before": {"waiting": ["job-waits"]}, "after": {"waiting": []}}),
    ]
    asked = [(e.event, e.by) for e in node.store.timeline("job-waits") if e.side == "operator"]
    assert asked == [("cancellation requested", "operator")]


def test_whoever_is_not_let_in_is_in_the_audit_once(tmp_path):
    with running(tmp_path, auth={"mode": "on", "token": OWN}) as node:
        for _ in range(3):
            assert send(node, "GET", "/api/v1/jobs", "").status_code == 401
        send(node, "POST", "/api/v1/drain", "bfia_wrong", json={})
        wait_for(lambda: audited(node, "/drain"))
        assert [
            (e.who, e.action, e.status, e.detail["reason"]) for e in reversed(node.audit.list())
        ] == [
            ("somebody", "GET /api/v1/jobs", 401, "NO_TOKEN"),
            ("somebody", "POST /api/v1/drain", 401, "TOKEN_UNKNOWN"),
        ]
        assert node.audit.list()[0].detail["from"] == "127.0.0.1"


def test_a_flood_is_counted_and_not_written():
    now = NOW
    written: list[tuple[str, Mapping[str, Any]]] = []

    def add(
        at: datetime,
        who: str,
        action: str,
        status: int,
        code: int | None,
        detail: Mapping[str, Any],
    ) -> None:
        written.append((who, detail))

    refusals = Refusals(add, lambda: now)

    def refuse(who: str) -> None:
        if (write := refusals.due(who)) is not None:
            write(who, "GET /", 401, {"reason": "NO_TOKEN"})

    for _ in range(1000):
        refuse("ann")
    for number in range(1000):
        refuse(f"node {number}")
    assert len(written) == MOST
    now += timedelta(minutes=1)
    refuse("ann")
    others = str(1000 - (MOST - 1))
    assert written[-1] == (
        "ann",
        {
            "reason": "NO_TOKEN",
            "repeated": "999",
            "others": others,
        },
    )
    assert len(written) == MOST + 1


def test_a_body_that_would_hold_the_event_loop_is_refused_unread(node):
    large = b"[" * (1024 * 1024)
    for method, path in (("PUT", "routes/JG7"), ("POST", "jobs/j/approve"), ("POST", "gc")):
        assert send(node, method, f"/api/v1/{path}", content=large).status_code == 413, path
    many = b'{"dag": [' + b"[]," * 200_000 + b"[]]}"
    assert send(node, "POST", "/api/v1/jobs/plan", content=many).status_code == 400


def test_counted_refusals_are_bounded_and_survive_a_database_outage(monkeypatch):
    monkeypatch.setattr(guards, "MAX_COUNTED", 2)

    def away(*_: object) -> None:
        raise DatabaseAway("away")

    refusals = Refusals(away, lambda: NOW)
    for name in ("a", "a", "b", "c"):
        if (write := refusals.due(name)) is not None:
            write(name, "GET /", 401, {})
    assert list(refusals._counts) == [("c",)]
    assert refusals._others == 0
