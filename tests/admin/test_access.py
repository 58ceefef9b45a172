"""Who may do what on the operators' listener, and what is written down of it."""

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.auth import RULES, Access, Role, Unauthenticated, digest, may, new_token
from gateway.domain.run import Reporting
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from tests import forks
from tests.builders import OK, a_local_job, a_run, a_spec
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, PEER, ask, running

OWN = "0123456789abcdef0123"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def test_a_path_beyond_a_rule_does_not_pass_by_it():
    for path in ("/v2/component", "/v2/component/upload\n", "//v2/component/upload", "/V2/component/upload"):
        assert not may(Role.PLATFORM, "POST", path)
    assert not may(Role.VIEWER, "POST", "/api/v1/jobs")
    assert all(rule.roles for rule in RULES)


def test_a_token_is_kept_as_a_hash_and_ends_by_time_or_word():
    text, token = new_token("ann", Role.VIEWER, NOW, NOW + timedelta(days=1))
    assert text not in repr(token) and token.digest == digest(text) and len(text) > 40
    known = {token.digest: token}
    now = [NOW]
    access = Access(known.get, lambda: now[0], OWN)
    assert access.identify(text).name == "ann" and access.identify(OWN).role is Role.ADMIN
    now[0] += timedelta(days=1)
    for said, reason in ((text, "TOKEN_EXPIRED"), ("other", "TOKEN_UNKNOWN"), ("", "NO_TOKEN")):
        with pytest.raises(Unauthenticated) as refused:
            access.identify(said)
        assert refused.value.reason == reason


def cli(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*words, "--config", str(config)])


@pytest.fixture
def guarded(tmp_path: Path):
    """Return a node that asks for tokens, and its configuration file."""
    (port,) = free_ports(1)
    any_port = {"bind": "127.0.0.1:0"}
    listen = {"peer": any_port, "container": any_port, "operator": {"bind": f"127.0.0.1:{port}"}}
    auth = {"mode": "on"}
    config = tmp_path / "node.yml"
    database = {"url": f"sqlite:///{tmp_path / 'node' / 'gateway.db'}"}
    config.write_text(
        yaml.safe_dump(
            {
                "node": {"id": "JG0100001100000010"},
                "engine": {"kind": "process"},
                "listen": listen,
                "auth": auth,
                "database": database,
            }
        )
    )
    with running(tmp_path / "node", listen=listen, auth=auth) as gateway:
        yield gateway, config


def test_tokens_are_made_listed_and_revoked_and_the_node_obeys(guarded: Any):
    node, config = guarded

    def status(method: str, path: str, token: str = "", **more: Any) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = ask(node, "operator", method, path, headers=headers, **more)
        said = answer.json()
        return answer.status_code, (said.get("data") or {}).get("reason", "") if isinstance(said, dict) else ""

    assert status("GET", "/api/v1/jobs") == (401, "NO_TOKEN")
    assert status("GET", "/health/live") == (200, "")
    assert status("GET", "/api/v1/jobs", "wrong") == (401, "TOKEN_UNKNOWN")
    made = cli(config, "token", "create", "ann", "--role", "admin")
    assert made.returncode == 0, made.stderr
    ann = made.stdout.strip()
    bob = json.loads(cli(config, "token", "create", "bob", "--role", "viewer", "--json").stdout)["token"]
    assert status("GET", "/api/v1/jobs", ann) == (200, "")
    assert status("GET", "/api/v1/jobs", bob) == (200, "")
    route = {"json": {"route": {"url": "http://h"}, "author": "somebody else"}}
    assert status("PUT", f"/api/v1/routes/{PEER}", bob, **route) == (403, "NOT_AUTHORISED")
    assert status("PUT", f"/api/v1/routes/{PEER}", ann, **route) == (200, "")
    assert node.routes.history()[0].author == "ann"
    assert status("GET", "/api/v1/audit", bob) == (403, "NOT_AUTHORISED")
    listed = cli(config, "token", "list").stdout
    assert "ann" in listed and "viewer" in listed and ann not in listed
    assert cli(config, "token", "revoke", "bob").stdout == "1 revoked\n"
    wait_for(lambda: status("GET", "/api/v1/jobs", bob) == (401, "TOKEN_REVOKED"), 20)
    assert cli(config, "token", "revoke", "bob").returncode == 1


def test_the_links_of_a_job_open_for_those_who_may_and_for_nobody_else(tmp_path: Path):
    with running(tmp_path, auth={"mode": "on", "token": OWN}) as node:
        spec = a_spec("a", {"guest": (ME,), "host": (PEER,)}, job_id="job-1")
        failed = Failure("EXIT_3", "exit code 3", ME)
        run = a_run(
            "a",
            RunStatus.FAILED,
            spec.parties[0],
            launch=OK,
            failure=failed,
            collect=OK,
            reporting=Reporting(TaskStatus.FAILED),
        )
        local = a_local_job(run, status=JobStatus.FINISHED, closed=True)
        node.store.local_jobs.add(replace(local, spec=replace(spec, scheduler=PEER), node=ME), spec.flow_id)

        def status(role: Role, path: str) -> int:
            return answer(role, path).status_code

        def answer(role: Role, path: str) -> Any:
            return ask(node, "operator", "GET", path, headers={"authorization": f"Bearer {tokens[role]}"})

        tokens = {}
        for role in Role:
            tokens[role], token = new_token(str(role), role, NOW, None)
            node.tokens.add(token)
        (shown,) = answer(Role.PLATFORM, "/api/v1/jobs/job-1").json()["runs"]
        assert "last_lines" in shown and not shown["log"].startswith("file:")
        assert str(tmp_path) not in answer(Role.ADMIN, "/api/v1/jobs/job-1").text, "no path of the server"
        assert {role: status(role, shown["log"]) for role in Role} == {
            Role.ADMIN: 200,
            Role.VENDOR: 200,
            Role.PLATFORM: 200,
            Role.VIEWER: 403,
        }
        (seen,) = answer(Role.VIEWER, "/api/v1/jobs/job-1").json()["runs"]
        assert seen["failure"]["reason"] == "EXIT_3" and "last_lines" not in seen
        assert ask(node, "operator", "GET", shown["log"]).status_code == 401


def test_every_change_is_written_down_and_looking_is_not(tmp_path: Path):
    with running(tmp_path, auth={"mode": "on", "token": OWN}) as node:
        headers = {"authorization": f"Bearer {OWN}"}

        def send(method: str, path: str, **more: Any) -> Any:
            return ask(node, "operator", method, path, headers=headers, **more).json()

        def written(count: int) -> None:
            wait_for(lambda: len(node.audit.list()) == count, about=f"{count} entries")

        send("PUT", f"/api/v1/routes/{PEER}", json={"route": {"url": "http://h"}})
        written(1)  # an answer does not wait for its entry
        send("POST", "/v1/platform/schedule/job/stop_all", json={"job_id": "job-none"})
        written(2)
        send("GET", "/api/v1/jobs")
        send("DELETE", "/api/v1/routes/JG404")
        written(3)
        ask(node, "operator", "POST", "/api/v1/gc", json={})  # without a token
        written(4)
        refused, *entries = send("GET", "/api/v1/audit")["audit"]
        assert (refused["who"], refused["action"], refused["status"]) == ("somebody", "POST /api/v1/gc", 401)
        assert [(e["who"], e["action"], e["status"], e["code"]) for e in entries] == [
            ("operator", "DELETE /api/v1/routes/JG404", 404, 404),
            ("operator", "POST /v1/platform/schedule/job/stop_all", 200, 404),
            ("operator", f"PUT /api/v1/routes/{PEER}", 200, None),
        ]
        changes = entries[2]["detail"]["changes"]
        assert (
            changes[0]["node"] == PEER
            and changes[0]["before"] is None
            and changes[0]["after"]["url"] == "http://h"
        )
        older = send("GET", f"/api/v1/audit?after={entries[0]['id']}&limit=1")["audit"]
        assert older == [entries[1]]
