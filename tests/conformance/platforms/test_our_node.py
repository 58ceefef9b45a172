"""This gateway keeps every clause, and every *must* signed, behind TLS, and as two gateways."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.conformance.platforms.check import CheckResult, Judgement, check
from gateway.conformance.platforms.clauses import Clause, Level, clauses, selected
from gateway.conformance.platforms.findings import Verdict
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from tests.certificates import Authority
from tests.conformance.platforms.checked import (
    IMAGE,
    checked_node,
    needs_further_address,
    probe_registration,
    probing_node,
)
from tests.conformance.platforms.lanes import Lanes, check_in_lanes, lanes
from tests.conformance.platforms.proxy import AlternatingProxy
from tests.contracts.databases import careless_database
from tests.e2e import jobs
from tests.e2e.nodes import Federation, process_engine, wait_for

pytestmark = pytest.mark.slow

NEEDS_KEY = ("S-replay", "S-altered", "S-old")  # clauses that need a key
SELECTED = [clause for clause in clauses() if not needs_further_address(clause)]
UNSIGNED = [clause for clause in SELECTED if clause.id not in NEEDS_KEY]
MUSTS = [clause for clause in SELECTED if clause.level is Level.MUST]
UNSIGNED_MUSTS = [clause for clause in UNSIGNED if clause.level is Level.MUST]


def routes_to(of_check: Lanes, **fields: Any) -> dict[str, Any]:
    """Return the routes to the check in all lanes; ``fields`` are further ones of each."""
    routes = {}
    for node_id, port in of_check.ports.items():
        routes[node_id] = {"url": f"http://127.0.0.1:{port}", **fields}
    return routes


def check_node(
    home: Path,
    key: KeyPair | None,
    selection: list[Clause],
    authority: Authority | None = None,
    **route: Any,
) -> CheckResult:
    """Check a node in the test's own process; ``route``: fields of its routes to the check."""
    listener: dict[str, Any] = {"bind": "127.0.0.1:0"}
    if authority is not None:
        files = authority.sign("node")
        listener["tls"] = {"certificate": str(files.certificate), "key": str(files.key)}
    with lanes(key) as of_check, probing_node(home, key, peer=listener) as node:
        file = Path(str(node.settings.route_table.file))
        file.write_text(yaml.safe_dump(routes_to(of_check, **route)))
        node.routes.reload()
        url = node.addresses()["peer"]
        node_id = node.settings.node.id

        def client() -> httpx.Client:
            if authority is None:
                return httpx.Client(trust_env=False)
            context = ssl.create_default_context(cafile=authority.file)
            return httpx.Client(verify=context, trust_env=False)

        with of_check.trials(url, node_id, client) as trials:
            return check_in_lanes(trials, selection)


@contextmanager
def two_gateways(home: Path, database: str, of_check: Lanes) -> Iterator[AlternatingProxy]:
    """Serve a node of two gateways behind a proxy that sends each request to the other one."""
    engine = process_engine(IMAGE, command=["/bin/true"])
    with careless_database(database) as url:
        # Ten refused polls end a job after seconds.
        pace = {"longest_retry": 1.0}
        federation = Federation(home, [jobs.GUEST, "second"], engine, pace=pace)
        first, second = federation.nodes.values()
        for gateway in (first, second):
            gateway.settings["node"] = {"id": jobs.GUEST}
            gateway.settings["database"] = {"url": url}
            gateway.settings["storage"] = {"url": f"file://{home / 'shared'}"}
        # The first gateway reads the file into the database, where the second has its routes.
        del second.settings["route_table"]
        first.route(**routes_to(of_check, signing="off"))
        with federation:
            first.register(probe_registration())
            number = len(of_check.ports)
            wait_for(lambda: len(second.get("/api/v1/routes")["routes"]) == number, 60)
            proxy = AlternatingProxy([first.peer, second.peer])
            yield proxy
            proxy.close()


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> CheckResult:
    """The findings about a node with unsigned routes."""
    home = tmp_path_factory.mktemp("unsigned")
    return check_node(home, None, UNSIGNED, signing="off")


@pytest.mark.parametrize("clause_id", [clause.id for clause in UNSIGNED])
def test_a_clause_holds(unsigned: CheckResult, clause_id: str):
    (finding,) = [each.finding for each in unsigned.judgements if each.clause.id == clause_id]
    assert finding.verdict is Verdict.HOLDS, finding.observation
    assert finding.observation


def assert_every_must_holds(result: CheckResult) -> None:
    """Fail with each clause that does not hold."""
    broken = {}
    for judgement in result.judgements:
        if judgement.finding.verdict is not Verdict.HOLDS:
            broken[judgement.clause.id] = judgement.finding.observation
    assert broken == {}
    assert all(stopped for _, stopped in result.jobs)


def test_every_must_holds_with_signatures(tmp_path: Path):
    key = KeyPair(KEY_GENERATORS["ed25519"]())
    result = check_node(tmp_path, key, MUSTS, keys=key.public, signing="required")
    assert_every_must_holds(result)


def test_every_must_holds_behind_tls(tmp_path: Path):
    authority = Authority(tmp_path / "authority")
    result = check_node(tmp_path, None, UNSIGNED_MUSTS, authority, signing="off")
    assert_every_must_holds(result)


@pytest.mark.mariadb
def test_every_must_holds_with_two_gateways(tmp_path: Path, worker_id: str):
    with (
        lanes() as of_check,
        two_gateways(tmp_path, f"{worker_id}_checked", of_check) as proxy,
        of_check.trials(proxy.url, jobs.GUEST) as trials,
    ):
        result = check_in_lanes(trials, UNSIGNED_MUSTS)
    assert_every_must_holds(result)


# ---------------------------------------------------------------- the end of a check


def ignore(judgement: Judgement) -> None:
    """Show no progress."""


def test_a_check_stops_every_job_that_it_made(tmp_path: Path):
    with checked_node(tmp_path, signing="off") as site:
        result = check(site.trial, selected(["C-3.2-create", "C-3.5-stop"]), ignore)
        assert result.good
        assert len(result.jobs) == 2
        assert all(stopped for _, stopped in result.jobs)
        for job_id, _ in result.jobs:
            path = f"/v1/platform/schedule/job/status_all?job_id={job_id}"
            assert site.node.get(path).json()["data"]["job_status"] == "FINISHED"
