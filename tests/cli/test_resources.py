"""``bfia-gateway resources``: the sums for people and for scripts."""

from functools import partial

from engines.base import Capacity
from gateway.domain.amounts import Amounts, Pool
from gateway.domain.spec import moment
from gateway.domain.states import JobStatus
from gateway.errors import Refused
from tests.builders import a_local_job, a_spec
from tests.cli import call_node, json_from_node
from tests.inprocess import ME, ask, running
from tests.memory_engine import MemoryEngine

cli = partial(call_node, "resources")


def test_gpus_and_others_are_shown_where_there_are_any(tmp_path):
    for gpus in (0, 2):
        engine = MemoryEngine.making({}, capacity=Capacity(4, 8 << 30, gpus, Capacity(gpus / 2, 0)))
        with running(tmp_path / str(gpus), make_engine=engine) as node:
            found = json_from_node("resources", node)
            assert found["total"]["gpu"] == found["remaining"]["gpu"] == gpus
            heading = next(line for line in cli(node).stdout.splitlines() if "cpu" in line)
            others = [line.split() for line in cli(node).stdout.splitlines() if "others" in line]
            assert [line[2] for line in others] == (["1"] if gpus else [])
            metrics = ask(node, "operator", "GET", "/metrics").text
            assert ("gpu" in heading) == (gpus > 0)
            assert ('free{kind="gpu"} 2.0' in metrics) == (gpus > 0)


def test_who_holds_and_who_waits_is_shown_and_the_sums_match(tmp_path):
    with running(tmp_path, resources={"memory_gib": 2}) as node:
        for name, gib in (("job-first", 1.5), ("job-second", 1.0)):
            pool = Pool(Amounts.of(memory=gib * 2**30), 1)
            job = a_local_job(
                spec=a_spec(job_id=name),
                node=ME,
                status=JobStatus.READY,
                created_at=node.clock(),
                pool=pool,
            )
            node.store.local_jobs.add(job, "flow")
            try:
                node.resources.hold(job)
            except Refused as error:
                said = error.message
        found = json_from_node("resources", node)
        for kind in ("cpu", "memory_gib", "disk_gib"):
            assert found["held"][kind] == sum(h[kind] for h in found["holders"])
            assert found["remaining"][kind] == found["total"][kind] - found["held"][kind]
        claim = next(c for c in node.resources.ledger().holders if c.job_id == "job-first")
        assert [(h["job_id"], h["memory_gib"], h["since"]) for h in found["holders"]] == [
            ("job-first", 1.5, claim.held_at.isoformat())
        ]
        assert found == ask(node, "operator", "GET", "/api/v1/resources").json()
        assert found["remaining"]["memory_gib"] == 0.5
        assert [w["job_id"] for w in found["waiting"]] == ["job-second"]
        shown = cli(node)
        assert shown.exit_code == 0
        assert f"node {ME}" in shown.stdout
        assert "job-first" in shown.stdout
        assert moment(claim.held_at) in shown.stdout
        assert said.split(",")[0] in " ".join(shown.stdout.split())
        node.resources.give_back("job-first")
        node.resources.hold(
            job
        )  # the second, which has waited: it holds since now, not since it asked
        (claim,) = node.resources.ledger().holders
        assert claim.held_at is not None
        assert claim.held_at > claim.since
        (held,) = node.resources.view()["holders"]
        assert held["job_id"] == "job-second"
        assert held["since"] == claim.held_at.isoformat()
