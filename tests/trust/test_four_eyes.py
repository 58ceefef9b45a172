"""One person submits a job and agrees to it here, where the rules ask for somebody's agreement."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.auth import Role, openid_token_name
from gateway.bootstrap.node import Gateway
from gateway.domain.states import JobStatus
from provider_registry.registration import provider_from_request
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration
from tests.inprocess import ME, ask, running, token_of
from tests.memory_engine import MemoryEngine, Script

OWN = "0123456789abcdef0123"
CREATE = "/v1/platform/schedule/job/create_all"
LI, RENAMED, ANOTHER = (
    openid_token_name("li", "7"),
    openid_token_name("na", "7"),
    openid_token_name("li", "8"),
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Gateway, dict[str, str]]]:
    """A node whose rules ask a person about its own jobs too, and the tokens of ann and bob, who are admins."""
    rules = [{"decide": "ask"}]
    approval = {"mode": "rules", "rules": rules}
    tokens = {"operator": OWN}

    make = MemoryEngine.making({IMAGE: Script()})
    with running(
        tmp_path,
        make_engine=make,
        auth={"mode": "on", "token": OWN},
        approval=approval,
    ) as gateway:
        gateway.registry.register(provider_from_request(registration()))
        for name in ("ann", "bob", LI, RENAMED, ANOTHER):
            tokens[name] = token_of(gateway, Role.ADMIN, name)
        yield gateway, tokens


def noted(gateway: Gateway, who: str) -> bool:
    lines = [line for line in gateway.audit.list() if (line.who, line.status) == (who, 403)]
    return any("SAME_PERSON" in line.detail["refused"] for line in lines)


def test_the_submitter_of_a_job_may_reject_but_not_approve_it(node: tuple[Gateway, dict[str, str]]):
    gateway, tokens = node

    def call(
        who: str,
        path: str,
        body: Any = None,
    ) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {tokens[who]}"}
        return dict(ask(gateway, "operator", "POST", path, json=body, headers=headers).json())

    spec = a_spec("a", {"guest": (ME,), "host": (ME,)}, scheduler=ME, initiator=ME)
    for submitter, who, another in (
        ("ann", "ann", "bob"),
        ("operator", "operator", "bob"),
        (LI, RENAMED, ANOTHER),
    ):
        body = create_body(spec, PROFILES["spec"])
        body.pop("job_id")
        job_id = call(submitter, CREATE, body)["data"]["job_id"]
        assert gateway.store.local_jobs.get(job_id).status is JobStatus.PENDING
        refused = call(who, f"/api/v1/jobs/{job_id}/approve", {"by": "somebody else"})
        assert (refused["code"], refused["data"]["reason"]) == (403, "SAME_PERSON")
        assert gateway.store.local_jobs.get(job_id).status is JobStatus.PENDING
        assert noted(gateway, who)
        assert call(another, f"/api/v1/jobs/{job_id}/approve")["approval"]["by"] == another
    job_id = call("ann", CREATE, body)["data"]["job_id"]
    assert call("ann", f"/api/v1/jobs/{job_id}/reject")["local_status"] == "REJECTED"
