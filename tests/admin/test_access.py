"""Access to the operators' listener by role, and the audit of changes and refusals."""

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
import yaml
from anyio import CapacityLimiter
from starlette.responses import PlainTextResponse
from starlette.types import Message

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.auth import RULES, Access, Role, Unauthenticated, digest, may, new_token
from gateway.domain.run import Reporting
from gateway.domain.spec import Call, CallState, Failure
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.errors import DatabaseAway
from gateway.http import guard as guards
from gateway.http.guard import MAX_WRITTEN, Guard, Refusals
from gateway.language.catalogue import reasons
from tests import forks
from tests.builders import OK, a_job, a_local_job, a_run, a_spec
from tests.cleaning.ended import a_spec_of, ago, left_behind
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, PEER, Node, running, token_of
from tests.world import UNREACHABLE, NodeSetup

TOKEN = "0123456789abcdef0123"  # the bootstrap token, of the admin "operator"
NODE = NodeSetup(
    routes={PEER: UNREACHABLE},
    commands={"example:1.0.0": ["/bin/sleep", "60"]},
    token=TOKEN,
)

NOW = datetime(
    2026,
    11,
    1,
    tzinfo=UTC,
)
SCHEDULE = "/v1/platform/schedule/job"


def send(
    node: Node,
    method: str,
    path: str,
    token: str = TOKEN,
    **kwargs: Any,
) -> httpx.Response:
    """Send a request to the operators' listener; ``token`` may be empty."""
    return node.request(method, path, token=token, **kwargs)


def audited(
    node: Node,
    text: str,
) -> list[Any]:
    """Return the audit's entries with a text in their action, the oldest first."""
    entries = [entry for entry in node.audit.list(limit=500) if text in entry.action]
    return entries[::-1]


def reason_of(response: httpx.Response) -> str:
    """Return the reason of a refusal."""
    return response.json()["data"]["reason"]


# ---------------------------------------------------------------- roles


@pytest.mark.parametrize(
    "path",
    [
        "/v2/component",
        "/v2/component/upload\n",
        "//v2/component/upload",
        "/V2/component/upload",
    ],
    ids=["shorter", "line-break", "two-slashes", "capital"],
)
def test_a_path_that_resembles_a_rule_is_not_allowed_by_it(path):
    assert not may(Role.PLATFORM, "POST", path)


def test_a_viewer_may_change_nothing_and_each_rule_names_a_role():
    assert not may(Role.VIEWER, "POST", "/api/v1/jobs")
    assert all(roles for _, _, roles in RULES)


def test_a_path_of_the_peer_listener_is_unknown_for_each_role(node):
    paths = ("/v1/interconn/schedule/job/create", "/v2/partner/job/create")
    for token, path in product((TOKEN, token_of(node, Role.VIEWER)), paths):
        response = send(
            node,
            "POST",
            path,
            token,
            json={},
        )
        assert response.status_code == 404
        assert reason_of(response) == "PATH_UNKNOWN"
        body = response.json()
        assert body["msg"].endswith("/job/create; other nodes use listen.peer")
        assert body["data"]["next_step"] == reasons()["PATH_UNKNOWN"].next_step["en"]


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
    response = send(
        node,
        method,
        f"/v1/platform/schedule/{path}",
        json=body,
    )
    assert reason_of(response) == reason
    assert response.json()["data"]["next_step"] == reasons()[reason].next_step["en"]


def test_the_links_of_a_job_open_only_for_roles_that_may_read_them(node):
    store_failed_job(node, "job-1")
    tokens = {role: token_of(node, role) for role in Role}

    def run_seen_by(role: Role) -> Any:
        response = send(node, "GET", "/api/v1/jobs/job-1", tokens[role])
        assert str(node.settings.state_dir) not in response.text, "no path of the server"
        (run,) = response.json()["runs"]
        return run

    run = run_seen_by(Role.PLATFORM)
    assert "last_lines" in run
    assert not run["log"].startswith("file:")
    statuses = {}
    for role, token in tokens.items():
        statuses[role] = send(node, "GET", run["log"], token).status_code
    assert statuses == {
        Role.ADMIN: 200,
        Role.VENDOR: 200,
        Role.PLATFORM: 200,
        Role.VIEWER: 403,
    }
    assert send(node, "GET", run["log"], "").status_code == 401

    run = run_seen_by(Role.VIEWER)
    assert run["failure"]["reason"] == "EXIT_3"
    assert "last_lines" not in run


def test_a_jobs_link_opens_its_page_in_the_console(node):
    store_failed_job(node, "job-1")

    link = send(node, "GET", "/api/v1/jobs/job-1").json()["console_url"]

    page, _, fragment = link.partition("#")
    assert fragment == "/jobs/job-1"
    assert "<html" in send(node, "GET", page, "").text
    # The page asks for the job with the token of the person who has opened it.
    assert send(node, "GET", "/api/v1/jobs/job-1", "").status_code == 401


def test_a_jobs_link_is_absolute_where_the_consoles_address_is_known(tmp_path):
    any_port = "127.0.0.1:0"
    listen = {
        "peer": {"bind": any_port},
        "container": {"bind": any_port},
        "operator": {"bind": any_port, "advertise": "https://bfia.bank.example"},
    }
    with running(tmp_path, listen=listen) as node:
        store_failed_job(node, "job-1")

        job = node.get("/api/v1/jobs/job-1").json()

    assert job["console_url"] == "https://bfia.bank.example/console/#/jobs/job-1"


def store_failed_job(node: Node, job_id: str) -> None:
    """Store a partner's job whose run at this node failed."""
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        job_id=job_id,
    )
    run = a_run(
        "a",
        RunStatus.FAILED,
        spec.parties[0],
        launch=OK,
        failure=Failure("EXIT_3", "exit code 3", ME),
        collect=OK,
        reporting=Reporting(TaskStatus.FAILED),
    )
    local = a_local_job(
        run,
        status=JobStatus.FINISHED,
        closed=True,
    )
    local = replace(
        local,
        spec=replace(
            spec,
            scheduler=PEER,
        ),
        node=ME,
    )
    node.store.local_jobs.add(local, spec.flow_id)


# ---------------------------------------------------------------- tokens


def test_a_token_is_stored_as_a_digest():
    text, token = new_token("ann", Role.VIEWER, NOW)
    assert len(text) > 40
    assert text not in repr(token)
    assert token.digest == digest(text)


def test_a_token_identifies_its_user_until_it_expires():
    text, token = new_token(
        "ann",
        Role.VIEWER,
        NOW,
        NOW + timedelta(days=1),
    )
    tokens = {token.digest: token}

    before = Access(tokens.get, lambda: NOW, TOKEN)
    assert before.identify(text).name == "ann"
    assert before.identify(TOKEN).role is Role.ADMIN

    after = Access(tokens.get, lambda: NOW + timedelta(days=1), TOKEN)
    for refused_text, reason in (
        (text, "TOKEN_EXPIRED"),
        ("other", "TOKEN_UNKNOWN"),
        ("", "NO_TOKEN"),
    ):
        with pytest.raises(Unauthenticated) as refused:
            after.identify(refused_text)
        assert refused.value.reason == reason


class TokenCommands:
    """``bfia-gateway token`` for the database of a node that runs in this process."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        any_port = {"bind": "127.0.0.1:0"}
        self.settings: dict[str, Any] = {
            "listen": {
                "peer": any_port,
                "container": any_port,
                "operator": {"bind": f"127.0.0.1:{port}"},
            },
            "auth": {"mode": "on"},
        }
        self.config = folder / "node.yml"
        body = {
            "node": {"id": ME},
            "engine": {"kind": "process"},
            "database": {"url": f"sqlite:///{folder / 'node' / 'gateway.db'}"},
            **self.settings,
        }
        self.config.write_text(yaml.safe_dump(body))

    def run(self, *words: str) -> CompletedProcess[str]:
        """Run a command in a process of its own; in this one, the node logs into its output."""
        return forks.run(["token", *words, "--config", str(self.config)])


def test_tokens_are_created_listed_and_revoked_and_the_node_obeys(tmp_path):
    token = TokenCommands(tmp_path)
    with running(tmp_path / "node", **token.settings) as node:
        response = send(node, "GET", "/api/v1/jobs", "")
        assert response.status_code == 401
        assert reason_of(response) == "NO_TOKEN"
        response = send(node, "GET", "/api/v1/jobs", "wrong")
        assert response.status_code == 401
        assert reason_of(response) == "TOKEN_UNKNOWN"
        assert send(node, "GET", "/health/live", "").status_code == 200

        created = token.run("create", "ann", "--role", "admin")
        assert created.returncode == 0, created.stderr
        ann = created.stdout.strip()
        bob = json.loads(token.run("create", "bob", "--role", "viewer", "--json").stdout)["token"]
        listed = token.run("list").stdout
        assert "ann" in listed
        assert "viewer" in listed
        assert ann not in listed
        check_rights(
            node,
            admin=ann,
            viewer=bob,
        )

        assert token.run("revoke", "bob").stdout == "1 revoked\n"

        def is_revoked() -> bool:
            response = send(node, "GET", "/api/v1/jobs", bob)
            return response.status_code == 401 and reason_of(response) == "TOKEN_REVOKED"

        wait_for(is_revoked, 20)
        assert token.run("revoke", "bob").returncode == 1
        check_audit_of_tokens(node)


def check_rights(
    node: Node,
    admin: str,
    viewer: str,
) -> None:
    """Check what the tokens of the admin ann and of a viewer allow."""
    assert send(node, "GET", "/api/v1/jobs", admin).status_code == 200
    assert send(node, "GET", "/api/v1/jobs", viewer).status_code == 200
    route = {
        "route": {"url": "http://h"},
        "author": "somebody else",
    }
    path = f"/api/v1/routes/{PEER}"
    for response in (
        send(
            node,
            "PUT",
            path,
            viewer,
            json=route,
        ),
        send(node, "GET", "/api/v1/audit", viewer),
    ):
        assert response.status_code == 403
        assert reason_of(response) == "NOT_AUTHORISED"
    assert send(node, "PUT", path, admin, json=route).status_code == 200
    # the author is the token's user, whatever the body says
    assert node.routes.history()[0].author == "ann"


def check_audit_of_tokens(node: Node) -> None:
    """Check the entries of two tokens that were created and one that was revoked."""
    created, _, revoked = audited(node, "token ")
    assert created.action == "token create"
    assert created.detail["after"]["role"] == "admin"
    assert "bfia_" not in json.dumps(created.detail)
    assert revoked.detail == {
        "before": {
            "token": "bob",
            "good": 1,
        },
        "after": {
            "token": "bob",
            "good": 0,
        },
    }


@pytest.fixture(scope="module")
def refused_tokens(node) -> dict[str, str]:
    """Tokens that may not read the audit, by reason."""
    expired, expired_token = new_token(
        "ann",
        Role.ADMIN,
        NOW,
        NOW,
    )
    revoked, revoked_token = new_token("bob", Role.ADMIN, NOW)
    node.tokens.add(expired_token)
    node.tokens.add(replace(revoked_token, revoked_at=NOW))
    return {
        "NO_TOKEN": "",
        "TOKEN_UNKNOWN": "other",
        "TOKEN_EXPIRED": expired,
        "TOKEN_REVOKED": revoked,
        "NOT_AUTHORISED": token_of(node, Role.VIEWER),
    }


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("NO_TOKEN", "监听端口要求令牌，但请求未携带。"),
        ("TOKEN_UNKNOWN", "未知令牌"),
        ("TOKEN_EXPIRED", "ann 的令牌已于"),
        ("TOKEN_REVOKED", "bob 的令牌已被撤销"),
        ("NOT_AUTHORISED", "viewer；GET /api/v1/audit 只对 admin 开放"),
    ],
)
def test_a_refused_token_is_explained_in_the_readers_language(
    node, refused_tokens, reason, message
):
    headers = {"accept-language": "zh-CN"}
    body = send(node, "GET", "/api/v1/audit", refused_tokens[reason], headers=headers).json()
    assert body["data"]["reason"] == reason
    fact, _, after = body["msg"].partition(reasons()[reason].next_step["zh"])
    assert fact.startswith(f"{reason}: ")
    assert message in fact
    assert after == ""
    assert body["msg"].count("Bearer") <= 1


# ---------------------------------------------------------------- audit of changes


def test_each_change_is_audited_and_reading_is_not(node):
    send(node, "GET", "/api/v1/jobs")
    send(node, "POST", "/api/v1/jobs/plan", json=A_JOB)
    send(
        node,
        "PUT",
        "/api/v1/routes/JG7",
        json={"route": {"url": "http://h"}},
    )
    send(
        node,
        "POST",
        f"{SCHEDULE}/stop_all",
        json={"job_id": "job-none"},
    )
    send(node, "DELETE", "/api/v1/routes/JG404")

    assert audited(node, "/api/v1/jobs/plan") == []
    put = audited(node, "PUT /api/v1/routes/JG7")[-1]
    check_entry(
        put,
        status=200,
        code=None,
    )
    check_entry(
        audited(node, f"POST {SCHEDULE}/stop_all")[-1],
        status=200,
        code=404,
    )
    check_entry(
        audited(node, "JG404")[-1],
        status=404,
        code=404,
    )
    (change,) = put.detail["changes"]
    assert change["node"] == "JG7"
    assert change["before"] is None
    assert change["after"]["url"] == "http://h"
    actions = {entry.action for entry in node.audit.list(limit=500)}
    assert "GET /api/v1/jobs" not in actions


def check_entry(
    entry: Any,
    status: int,
    code: int | None,
) -> None:
    """Check an entry of the operator's: its HTTP status and the code in the response's body."""
    assert entry.who == "operator"
    assert entry.status == status
    assert entry.code == code


def test_the_timeline_names_the_user_who_changed_a_job(node):
    li = token_of(node, Role.PLATFORM, "li")

    def post(
        path: str,
        body: Any,
        token: str = li,
    ) -> Any:
        return send(node, "POST", path, token, json=body).json()

    post("/v2/provider/register", A_PROVIDER, TOKEN)
    job = copy.deepcopy(A_JOB)
    job["config"]["initiator"] = {
        "role": "guest",
        "node_id": ME,
    }
    job["config"]["role"] = {
        "guest": [ME],
        "host": [ME],
    }
    job_id = post(f"{SCHEDULE}/create_all", job)["data"]["job_id"]
    path = f"/api/v1/jobs/{job_id}"
    assert post(f"{path}/suspend", {})["suspended"] is True
    assert post(f"{path}/resume", {})["suspended"] is False
    unknown_task = {
        "job_id": job_id,
        "task_name": "nothing",
    }
    assert post(f"{SCHEDULE}/stop_task", unknown_task)["code"] == 404
    # the second request changes nothing, and is not in the timeline
    for _ in range(2):
        assert post(f"{SCHEDULE}/stop_all", {"job_id": job_id}, TOKEN)["code"] == 0

    def is_finished() -> bool:
        return node.store.jobs.get(job_id).status is JobStatus.FINISHED

    wait_for(is_finished, 30, 0.02)
    new_job_id = post(f"{path}/rerun", {"from": "echo_1"})["job_id"]

    first, *_ = node.store.timeline(job_id)
    assert first.event == "job PENDING"
    assert first.detail == {"user": "li"}
    requests = [event for event in node.store.timeline(job_id) if event.side == "operator"]
    assert [(event.event, event.by) for event in requests] == [
        ("suspend requested", "li"),
        ("resume requested", "li"),
        ("stop requested", "operator"),
        ("rerun requested", "li"),
    ]
    assert requests[-1].detail == {"new_job": new_job_id}
    trace_id = node.store.jobs.get(job_id).spec.trace_id
    new_trace_id = node.store.jobs.get(new_job_id).spec.trace_id
    assert trace_id
    assert new_trace_id
    assert trace_id != new_trace_id
    assert post(f"{SCHEDULE}/stop_all", {"job_id": new_job_id})["code"] == 0


async def broken_app(*_: object) -> None:
    """An application that fails before it responds."""
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "database_is_away",
    [False, True],
    ids=["database", "no-database"],
)
@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (
            PlainTextResponse("done", 201),
            ["http.response.start", "operator POST /x 201", "http.response.body"],
        ),
        (broken_app, ["operator POST /x 500"]),
    ],
    ids=["done", "broken"],
)
def test_a_change_is_audited_before_its_response_ends(app, expected, database_is_away):
    """Without a database the change has happened too, and the response is sent."""
    events: list[str] = []

    async def receive_message(message: Message) -> None:
        events.append(message["type"])

    def record(
        at: datetime,
        who: str,
        action: str,
        status: int,
        *_: object,
    ) -> None:
        events.append(f"{who} {action} {status}")
        if database_is_away:
            raise DatabaseAway("away")

    guard = Guard(app, None, record, lambda: NOW, CapacityLimiter(1))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/x",
        "headers": [],
    }
    with suppress(ZeroDivisionError):
        anyio.run(guard, scope, None, receive_message)
    assert events == expected


def test_cleaning_a_task_is_audited(node):
    left_behind(node, "job-clean", 5)
    path = "/api/v1/jobs/job-clean/tasks/a/outputs"

    for dry_run in (True, False):
        query = {"dry_run": str(dry_run).lower()}
        items = send(node, "DELETE", path, params=query).json()["items"]
        assert {item["removed"] for item in items} == {not dry_run}

    names = [f"{item['kind']} {item['name']}" for item in items]
    planned, removed = audited(node, path)
    assert planned.who == "operator"
    assert planned.detail == {"dry_run": True}
    assert removed.who == "operator"
    assert removed.detail == {
        "before": names,
        "after": None,
    }


def test_cancelling_waiting_jobs_is_audited(node):
    waiting = a_job(
        status=JobStatus.PENDING,
        spec=a_spec_of("job-waits"),
    )
    lost_call = Call(
        CallState.LOST,
        sent_at=ago(1),
        due_at=ago(-3600),
        tries=1,
    )
    nodes = {name: replace(part, create=lost_call) for name, part in waiting.nodes.items()}
    assert node.store.jobs.add(
        replace(
            waiting,
            nodes=nodes,
            created_at=ago(1),
        ),
        "flow",
    )
    path = "/api/v1/jobs/cancel-waiting"

    for dry_run in (True, False):
        body = send(node, "POST", path, json={"dry_run": dry_run}).json()
        assert body == {
            "dry_run": dry_run,
            "jobs": ["job-waits"],
        }

    planned, cancelled = audited(node, path)
    assert planned.who == "operator"
    assert planned.detail == {"dry_run": True}
    assert cancelled.who == "operator"
    assert cancelled.detail == {
        "before": {"waiting": ["job-waits"]},
        "after": {"waiting": []},
    }
    (event,) = [e for e in node.store.timeline("job-waits") if e.side == "operator"]
    assert event.event == "cancellation requested"
    assert event.by == "operator"


# ---------------------------------------------------------------- attacks


def test_the_cache_of_tokens_is_bounded(monkeypatch):
    """Attack: each request has another token."""
    monkeypatch.setattr(guards, "CACHE_SIZE", 2)
    access = SimpleNamespace(identify=lambda token: token)
    guard = Guard(None, access, None, lambda: NOW, CapacityLimiter(1))  # type: ignore[arg-type]
    for number in range(9):
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/x",
            "headers": [(b"authorization", b"Bearer %d" % number)],
        }
        assert anyio.run(guard._identify, scope) == f"{number}"
        assert len(guard._cache) <= 2


def test_a_repeated_refusal_is_audited_once(tmp_path):
    with running(tmp_path, auth={"mode": "on", "token": TOKEN}) as node:
        for _ in range(3):
            assert send(node, "GET", "/api/v1/jobs", "").status_code == 401
        send(
            node,
            "POST",
            "/api/v1/drain",
            "bfia_wrong",
            json={},
        )
        wait_for(lambda: audited(node, "/drain"))

        wrong_token, no_token = node.audit.list()
        for entry in (no_token, wrong_token):
            assert entry.who == "somebody"
            assert entry.status == 401
            assert entry.detail["from"] == "127.0.0.1"
        assert no_token.action == "GET /api/v1/jobs"
        assert no_token.detail["reason"] == "NO_TOKEN"
        assert wrong_token.action == "POST /api/v1/drain"
        assert wrong_token.detail["reason"] == "TOKEN_UNKNOWN"


def refuse(
    refusals: Refusals,
    who: str,
    reason: str = "NO_TOKEN",
) -> None:
    """Refuse a request, and write the refusal if it is due."""
    write = refusals.due(who)
    if write is not None:
        write(who, "GET /", 401, {"reason": reason})


def test_a_flood_of_refusals_is_counted_and_not_written():
    now = NOW
    entries: list[tuple[str, Mapping[str, Any]]] = []

    def add(
        at: datetime,
        who: str,
        action: str,
        status: int,
        code: int | None,
        detail: Mapping[str, Any],
    ) -> None:
        entries.append((who, detail))

    refusals = Refusals(add, lambda: now)
    for _ in range(1000):
        refuse(refusals, "ann")
    for number in range(1000):
        refuse(refusals, f"node {number}")
    assert len(entries) == MAX_WRITTEN

    now += timedelta(minutes=1)
    refuse(refusals, "ann")
    assert len(entries) == MAX_WRITTEN + 1
    who, detail = entries[-1]
    assert who == "ann"
    assert detail == {
        "reason": "NO_TOKEN",
        "repeated": "999",
        "others": str(1000 - (MAX_WRITTEN - 1)),
    }


def test_repetitions_of_the_refusal_that_is_due_are_counted_once(monkeypatch):
    monkeypatch.setattr(guards, "MAX_COUNTED", 1)
    now = NOW
    details: list[Mapping[str, Any]] = []
    refusals = Refusals(lambda *entry: details.append(entry[-1]), lambda: now)
    for _ in range(3):
        refuse(refusals, "ann")

    now += timedelta(minutes=1)
    refuse(refusals, "ann")

    assert details[-1] == {"reason": "NO_TOKEN", "repeated": "2"}


def test_counted_refusals_are_bounded_and_survive_a_database_outage(monkeypatch):
    monkeypatch.setattr(guards, "MAX_COUNTED", 2)

    def fail(*_: object) -> None:
        raise DatabaseAway("away")

    refusals = Refusals(fail, lambda: NOW)
    for name in ("a", "a", "b", "c"):
        refuse(refusals, name)
    assert list(refusals._counts) == [("c",)]
    assert refusals._others == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "routes/JG7"),
        ("POST", "jobs/j/approve"),
        ("POST", "gc"),
    ],
)
def test_a_body_that_would_block_the_event_loop_is_refused_unread(node, method, path):
    large = b"[" * (1024 * 1024)
    assert send(node, method, f"/api/v1/{path}", content=large).status_code == 413


def test_a_job_of_very_many_tasks_is_refused(node):
    content = b'{"dag": [' + b"[]," * 200_000 + b"[]]}"
    assert send(node, "POST", "/api/v1/jobs/plan", content=content).status_code == 400
