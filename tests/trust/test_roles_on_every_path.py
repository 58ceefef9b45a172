"""A token of a lesser role asks for every path of the operators' listener, FATE's tools' included.

The table is reviewed by hand: a path that is new, or whose roles change, fails here until its row says so.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from gateway.auth import Role, may, new_token
from gateway.bootstrap.node import Gateway
from tests.admin.test_outputs import have
from tests.inprocess import ask, routes_of, running
from tests.plain import NO_TLS

ALL, WORK = "admin vendor platform viewer", "admin vendor platform"
PLATFORM, VENDOR, ADMIN = "admin platform", "admin vendor", "admin"
OPEN = ("/health/live", "/health/ready", "/docs")
"""without a token"""

ROLES = {
    "GET /openapi.json": ALL,
    "GET /docs": ALL,
    "POST /v1/platform/schedule/job/create_all": PLATFORM,
    "POST /v2/schedule/job/create_all": PLATFORM,
    "GET POST /v1/platform/schedule/job/status_all": ALL,
    "GET POST /v2/schedule/job/status_all": ALL,
    "POST /v1/platform/schedule/job/stop_all": PLATFORM,
    "POST /v2/schedule/job/stop_all": PLATFORM,
    "POST /v1/platform/schedule/job/stop_task": PLATFORM,
    "POST /v2/schedule/job/stop_task": PLATFORM,
    "GET /v1/platform/schedule/job/query_job_list": ALL,
    "GET /v2/schedule/job/query_job_list": ALL,
    "GET POST /v1/platform/schedule/task/get_log_line": WORK,
    "GET POST /v2/schedule/task/get_log_line": WORK,
    "GET POST /v1/platform/schedule/task/get_log": WORK,
    "GET POST /v2/schedule/task/get_log": WORK,
    "GET /api/v1/jobs/{job_id}/runs/{role}.{index}/{task}/log": WORK,
    "GET /api/v1/events": ALL,
    "GET /api/v1/events/webhooks": ALL,
    "DELETE /api/v1/jobs/{job_id}": ADMIN,
    "DELETE /api/v1/jobs/{job_id}/tasks/{task}/outputs": ADMIN,
    "POST /api/v1/jobs/cancel-waiting": PLATFORM,
    "GET /api/v1/settings": ADMIN,
    "GET /api/v1/gc": ALL,
    "POST /api/v1/gc": ADMIN,
    "GET /api/v1/drain": ALL,
    "POST /api/v1/drain": ADMIN,
    "POST /api/v1/undrain": ADMIN,
    "GET /api/v1/models": ALL,
    "GET /api/v1/models/{model_id}/{version}": ALL,
    "POST /api/v1/models/{model_id}/{version}/deploy": PLATFORM,
    "POST /api/v1/models/{model_id}/{version}/undeploy": PLATFORM,
    "DELETE /api/v1/models/{model_id}/{version}": ADMIN,
    "GET /api/v1/models/{model_id}/{version}/export": PLATFORM,
    "POST /api/v1/models/import": PLATFORM,
    "POST /v2/provider/register": VENDOR,
    "POST /v1/platform/schedule/component/register": VENDOR,
    "GET /v2/provider/query": ALL,
    "POST /v2/provider/delete": VENDOR,
    "GET /api/v1/providers": ALL,
    "POST /api/v1/providers": VENDOR,
    "GET /api/v1/providers/{provider_name}": ALL,
    "GET /api/v1/providers/{provider_name}/history": ALL,
    "GET /api/v1/providers/{provider_name}/diff": ALL,
    "GET /api/v1/providers/{provider_name}/components/{component}/parameters": ALL,
    "POST /api/v1/providers/{provider_name}/retire": VENDOR,
    "POST /api/v1/providers/{provider_name}/unretire": VENDOR,
    "POST /api/v1/providers/{provider_name}/approve": VENDOR,
    "PUT /api/v1/provider-owners/{name}": ADMIN,
    "GET /api/v1/schemas": ALL,
    "GET /api/v1/schemas/{name}": ALL,
    "POST /v2/component/upload": PLATFORM,
    "POST /v2/component/upload/file": PLATFORM,
    "GET /api/v1/datasets": ALL,
    "POST /api/v1/datasets": ADMIN,
    "GET /api/v1/datasets/{namespace}/{name}": ALL,
    "GET /api/v1/datasets/{namespace}/{name}/preview": PLATFORM,
    "GET /api/v1/datasets/{namespace}/{name}/download": PLATFORM,
    "POST /api/v1/datasets/{namespace}/{name}/disable": ADMIN,
    "POST /api/v1/datasets/{namespace}/{name}/enable": ADMIN,
    "DELETE PATCH /api/v1/datasets/{namespace}/{name}": ADMIN,
    "GET /api/v1/dataset-grants": ALL,
    "DELETE PUT /api/v1/datasets/{namespace}/{name}/grants/{node}": ADMIN,
    "GET /api/v1/jobs/{job_id}/metadata/{task}/{party}": ALL,
    "GET /api/v1/jobs/{job_id}/metadata/{task}/{party}/{key}": ALL,
    "GET /health/live": ADMIN,
    "GET /health/ready": ADMIN,
    "GET /metrics": ALL,
    "GET /api/v1/engine": ALL,
    "GET /api/v1/jobs/{job_id}": ALL,
    "GET /api/v1/jobs/{job_id}/timeline": ALL,
    "GET /api/v1/orphans": ALL,
    "GET /api/v1/resources": ALL,
    "GET /api/v1/jobs": ALL,
    "GET /api/v1/jobs/{job_id}/outputs": ALL,
    "GET /api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}": PLATFORM,
    "GET /api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}/download": PLATFORM,
    "GET /api/v1/jobs/{job_id}/reports": ALL,
    "GET /api/v1/jobs/{job_id}/reports/{task}/{party}/{key}": PLATFORM,
    "GET /api/v1/jobs/{job_id}/reports/{task}/{party}/{key}/plot": PLATFORM,
    "POST /api/v1/jobs/{job_id}/rerun": PLATFORM,
    "GET /api/v1/routes": ALL,
    "GET /api/v1/routes/{node}": ALL,
    "DELETE PATCH PUT /api/v1/routes/{node}": ADMIN,
    "GET /api/v1/route-versions": ALL,
    "GET /api/v1/route-versions/{number}": ALL,
    "POST /api/v1/route-versions/{number}/rollback": ADMIN,
    "POST /api/v1/routes/{node}/test": PLATFORM,
    "GET /api/v1/applications": ALL,
    "GET /api/v1/applications/{application}": ALL,
    "POST /api/v1/applications": ADMIN,
    "POST /api/v1/applications/{application}/approve": ADMIN,
    "POST /api/v1/applications/{application}/reject": ADMIN,
    "POST /api/v1/applications/{application}/terminate": ADMIN,
    "POST /api/v1/applications/{application}/refresh": ADMIN,
    "GET /api/v1/partners/{node}/{what}": ALL,
    "DELETE PUT /api/v1/datasets/{namespace}/{name}/published": ADMIN,
    "GET /api/v1/audit": ADMIN,
    "GET /api/v1/tokens": ADMIN,
    "GET /api/v1/approvals": ALL,
    "POST /api/v1/jobs/{job_id}/approve": PLATFORM,
    "POST /api/v1/jobs/{job_id}/reject": PLATFORM,
    "POST /api/v1/jobs/{job_id}/suspend": PLATFORM,
    "POST /api/v1/jobs/{job_id}/resume": PLATFORM,
    "GET /api/v1/jobs/{job_id}/archive": PLATFORM,
    "GET /api/v1/jobs/{job_id}/bundle": PLATFORM,
    "POST /api/v1/jobs/plan": PLATFORM,
    "POST /v2/job/submit": PLATFORM,
    "GET /v2/job/query": ALL,
    "GET /v2/job/list/query": ALL,
    "POST /v2/job/stop": PLATFORM,
    "POST /v2/job/rerun": PLATFORM,
    "GET /v2/job/task/query": ALL,
    "GET /v2/job/task/list/query": ALL,
    "POST /v2/job/clean": ADMIN,
    "POST /v2/job/queue/clean": ADMIN,
    "GET /v2/job/dag/dependency": ALL,
    "POST /v2/job/notes/add": PLATFORM,
    "GET /v2/output/data/table": PLATFORM,
    "GET /v2/output/data/display": PLATFORM,
    "GET /v2/output/data/download": PLATFORM,
    "GET /v2/output/model/query": PLATFORM,
    "GET /v2/output/model/download": PLATFORM,
    "POST /v2/output/model/delete": ADMIN,
    "GET /v2/output/metric/key/query": PLATFORM,
    "GET /v2/output/metric/query": PLATFORM,
    "POST /v2/output/metric/delete": ADMIN,
    "GET /v2/log/count": WORK,
    "GET /v2/log/query": WORK,
    "GET POST /v2/job/log/download": PLATFORM,
    "GET /v2/table/query": PLATFORM,
    "POST /v2/table/delete": PLATFORM,
    "GET /v2/data/download": PLATFORM,
    "GET /v2/site/info/query": ALL,
    "GET /v2/server/fateflow": ALL,
    "POST /v2/data/component/upload": PLATFORM,
    "POST /v2/data/component/upload/file": PLATFORM,
}
"""methods and path -> who may"""

NOT_SERVED = {
    "/v2/app": ADMIN,
    "/v2/permission": ADMIN,
    "/v2/model": ADMIN,
    "/v2/table/bind": PLATFORM,
    "/v2/data/component/dataframe": PLATFORM,
    "/v2/data/component/download": PLATFORM,
    "/v2/server/query": ALL,
    "/v2/server/registry": ALL,
    "/v2/server/delete": ALL,
    "/v2/server/service": ALL,
    "/v2/worker": ADMIN,
}
"""paths of FATE's that only say why they are not served, by any method -> who may read that by GET"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    auth = {"mode": "on", "token": "0123456789abcdef0123"}
    with running(tmp_path_factory.mktemp("node"), auth=auth, fate={"enabled": True}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def routes(node: Gateway) -> dict[tuple[str, str], str]:
    """Every method and path that the application declares, with who may by the table."""
    found = {(m, r.path): "" for r in routes_of(node.apps["operator"]) for m in r.methods if m != "HEAD"}
    table = {(m, row.split()[-1]): who for row, who in ROLES.items() for m in row.split()[:-1]}
    for method, path in found:
        base = next((p for p in NOT_SERVED if path == p or path.startswith(f"{p}/")), None)
        if (method, path) not in table and base is not None:
            also = base.startswith("/v2/data/component") and method == "POST"
            table[method, path] = NOT_SERVED[base] if method == "GET" or also else ADMIN
    assert found.keys() == table.keys(), sorted(found.keys() ^ table.keys())
    return table


def concrete(path: str) -> str:
    return path.replace(":path", "").replace("{", "").replace("}", "")


def test_every_path_has_its_row_and_the_rules_say_the_same(routes: dict[tuple[str, str], str]):
    said = {one: " ".join(role for role in Role if may(role, one[0], concrete(one[1]))) for one in routes}
    assert {one: who for one, who in said.items() if who != routes[one]} == {}


def test_whoever_may_not_is_refused_by_the_listener(node: Gateway, routes: dict[tuple[str, str], str]):
    tokens = {}
    for role in Role:
        tokens[role], token = new_token(str(role), role, datetime(2026, 11, 1, tzinfo=UTC))
        node.tokens.add(token)
    base = node.addresses()["operator"]
    with httpx.Client(base_url=base, trust_env=False, verify=NO_TLS, timeout=60) as client:
        for (method, path), who in routes.items():
            if path in OPEN:
                continue
            assert client.request(method, concrete(path)).status_code == 401, (method, path)
            for role in Role:
                if role not in who.split():
                    headers = {"authorization": f"Bearer {tokens[role]}"}
                    answer = client.request(method, concrete(path), headers=headers)
                    assert answer.status_code in (200, 403), (method, path, role)
                    assert "NOT_AUTHORISED" in answer.text, (method, path, role)


def test_a_list_of_outputs_shows_what_is_in_them_to_those_only_who_may_read_it(node: Gateway):
    have(node, "job-listed", "model", b'{"coefficients": [0.25]}')
    seen = {}
    for role in Role:
        text, token = new_token(f"lists as {role}", role, datetime(2026, 11, 1, tzinfo=UTC))
        node.tokens.add(token)
        headers = {"authorization": f"Bearer {text}"}
        answer = ask(node, "operator", "GET", "/api/v1/jobs/job-listed/outputs", headers=headers)
        assert answer.status_code == 200
        seen[role] = "coefficients" in answer.text
    assert seen == {Role.ADMIN: True, Role.PLATFORM: True, Role.VENDOR: False, Role.VIEWER: False}
