"""The resources of jobs: reserved before the start, at all nodes or none, returned once."""

import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
import yaml

from engines.base import Capacity
from gateway.domain.amounts import GIB
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.errors import Refused
from gateway.ports import Callback
from provider_registry.registration import provider_from_request
from tests.adapter.bfia.scripted import scripted, text
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration
from tests.e2e.nodes import wait_for
from tests.inprocess import running
from tests.memory_engine import MemoryEngine, Script

A = "JG0100001100000010"
B = "JG0100002200000020"
C = "JG0100003300000030"
PLACES = {
    "guest": A,
    "host": B,
    "arbiter": C,
}
CORES = 24  # of each node
LONG = 180.0  # seconds within which everything here happens, also on a machine under load
# Settings of a node that repeats no request for resources before the end of the test.
PATIENT = {"limits": {"schedule_pause_seconds": 600, "schedule_longest_pause_seconds": 600}}


class Site:
    """Three nodes with 24 cores and 64 GiB each; a test ends their containers."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.jobs = 0

    def __getitem__(self, node):
        return self.nodes[node]

    def submit(
        self,
        dag="a",
        scheduler=A,
        **resources,
    ):
        """Submit a job to its scheduling node; return its id.

        ``resources`` names the roles of the job, each at its node, with the cores or the resources
        that each requests.
        """
        self.jobs += 1
        params = {}
        for role, request in resources.items():
            if not isinstance(request, dict):
                request = {
                    "cpu": request,
                    "memory": -1,
                }
            params[role] = {"0": {"resources": request}}
        spec = a_spec(
            dag,
            {role: (PLACES[role],) for role in resources},
            job_id=f"job-{self.jobs}",
            job_params=params,
            scheduler=scheduler,
            initiator=A,
            initiator_role="guest",
        )
        self.nodes[scheduler].coordinator.submit_job(spec, scheduler)
        return spec.job_id

    # -------------------------------------------------- what nodes show

    def status(self, job_id, node=A):
        return self.nodes[node].store.jobs.get(job_id).status

    def view(self, node=A):
        return self.nodes[node].resources.view()

    def remaining(self, node=A):
        """Return the free cores of a node; check that its view agrees with itself."""
        view = self.view(node)
        held_cores = sum(holder["cpu"] for holder in view["holders"])
        assert view["held"]["cpu"] == held_cores
        assert view["total"]["cpu"] - view["remaining"]["cpu"] == held_cores
        return view["remaining"]["cpu"]

    def counts(self, node):
        """Return the counts of unusual returns at a node."""
        view = self.view(node)
        names = ("returns_ignored", "returned_by_reconciler", "expired")
        return {name: view[name] for name in names}

    def wait_reason(self, job_id, node):
        """Return why a job waits at a node; empty if it does not."""
        for waiting in self.view(node)["waiting"]:
            if waiting["job_id"] == job_id:
                return waiting["reason"]
        return ""

    def runs(self, job_id, node=A):
        return self.nodes[node].store.local_jobs.get(job_id).runs

    def run(self, job_id, task, node):
        """Return the run of a task at a node."""
        [run] = [run for run in self.runs(job_id, node) if run.task_name == task]
        return run

    def events(self, job_id, node):
        """Return the events of a job about resources at a participating node."""
        events = []
        for entry in self.nodes[node].store.timeline(job_id):
            if entry.side == "participant" and entry.event.startswith("resources"):
                events.append(entry.event)
        return events

    # -------------------------------------------------- what tests wait for

    def wait_status(self, job_id, status, node=A):
        def has_status():
            return self.status(job_id, node) is status

        wait_for(has_status, LONG, 0.01, f"{job_id} is {status}")

    def wait_remaining(self, cores, *nodes):
        def have_remaining():
            return all(self.remaining(node) == cores for node in nodes)

        wait_for(have_remaining, LONG, 0.01, f"{nodes} have {cores} free cores")

    def wait_running(self, job_id, task, node=A):
        def is_running():
            runs = [run for run in self.runs(job_id, node) if run.task_name == task]
            return any(run.status is RunStatus.RUNNING for run in runs)

        wait_for(is_running, LONG, 0.01, f"{task} runs at {node}")

    def wait_waiting(self, job_id, node):
        """Wait until a job waits at a node; return the reason."""

        def reason():
            return self.wait_reason(job_id, node)

        return wait_for(reason, LONG, 0.01, f"{job_id} waits at {node}")

    # -------------------------------------------------- what tests do

    def end_task(self, job_id, task, node):
        """Write the outputs of a running task at a node, and end its container after its report."""
        self.wait_running(job_id, task, node)
        run = self.run(job_id, task, node)
        gateway = self.nodes[node]
        for address in run.data.outputs.values():
            table = gateway.storage.path(address)
            table.mkdir(parents=True)
            (table / "data_0").write_text("id,x\n1,2\n")
        for _ in range(3):  # a repeated report changes nothing
            gateway.container_callbacks.record(Callback(TaskStatus.SUCCESS, run_id=run.run_id))
        gateway.engine.finish(run.name, 0)


def make_engine(settings, installation):
    return MemoryEngine(
        node=settings.node.id,
        installation=installation,
        images={IMAGE: Script(code=None)},
        capacity=Capacity(float(CORES), 64 * GIB),
    )


@contextmanager
def three_nodes(home, settings=None):
    """Start the site; ``settings``: further ones by node."""
    settings = settings or {}

    def start(node):
        return running(home / node, node, make_engine, **settings.get(node, {}))

    with start(A) as a, start(B) as b, start(C) as c:
        nodes = {
            A: a,
            B: b,
            C: c,
        }
        for node in nodes.values():
            node.registry.register(provider_from_request(registration()))
            set_routes(node, nodes)
        yield Site(nodes)


def set_routes(node, nodes, urls=None):
    """Write a node's routes to the other nodes; ``urls`` replace addresses, by node."""
    urls = urls or {}
    routes = {}
    for partner_id, partner in nodes.items():
        if partner_id != node.settings.node.id:
            url = urls.get(partner_id, partner.addresses()["peer"])
            routes[partner_id] = {"url": url}
    Path(str(node.settings.route_table.file)).write_text(yaml.safe_dump(routes))
    node.routes.reload()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site for several tests; each returns all resources."""
    with three_nodes(tmp_path_factory.mktemp("nodes")) as site:
        yield site


def test_six_tasks_borrow_one_after_the_other_and_everything_is_returned(site):
    counts = {node: site.counts(node) for node in (A, B)}
    tasks = "abcdef"

    job_id = site.submit(
        " -> ".join(tasks),
        guest=4,
        host=4,
    )
    for task in tasks:
        for node in (A, B):
            site.wait_running(job_id, task, node)
            assert site.remaining(node) == CORES - 4
            [holder] = site.view(node)["holders"]
            assert holder["pool"]["remaining"]["cpu"] == 0
        for node in (A, B):
            site.end_task(job_id, task, node)
    site.wait_status(job_id, JobStatus.FINISHED)

    for node in (A, B):
        site.wait_remaining(CORES, node)
        wait_for(lambda node=node: len(site.events(job_id, node)) == 2, LONG, 0.01)
        assert site.events(job_id, node) == ["resources held", "resources returned"]
        [reservation] = [
            entry for entry in site[node].store.timeline(job_id) if entry.event == "resources held"
        ]
        assert reservation.detail["cpu"] == 4.0
        assert site.counts(node) == counts[node]


def test_if_one_of_three_parties_has_too_little_none_keeps_a_reservation(tmp_path):
    # A starts the job when C reports free resources, or not within the test.
    with three_nodes(tmp_path, {A: PATIENT}) as site:
        first = site.submit(
            scheduler=C,
            guest=-1,
            arbiter={
                "cpu": 1,
                "memory": 60,
            },
        )
        site.wait_status(first, JobStatus.RUNNING, C)

        second = site.submit(
            guest=4,
            host=4,
            arbiter={
                "cpu": 1,
                "memory": 8,
            },
        )
        assert site.wait_waiting(second, C) == (
            f"needs memory 8 GiB on node {C}, free memory 4 GiB, "
            f"held by job {first} (memory 60 GiB)"
        )
        site.wait_remaining(CORES, A, B)
        assert site.status(second) is JobStatus.READY

        def is_returned():
            # Each request of the scheduling node holds the resources for a moment.
            job = site[A].get(f"/api/v1/jobs/{second}").json()
            return job["resources"]["state"] == "RETURNED"

        wait_for(is_returned, LONG, 0.01)
        site[C].job_requests.stop(first)
        site.wait_status(second, JobStatus.RUNNING)

        timeline = site[A].store.timeline(second)
        reporters = {entry.by for entry in timeline if entry.event == "resources free"}
        assert reporters == {C}
        assert site.remaining(A) == CORES - 4
        assert site.remaining(B) == CORES - 4
        assert site.remaining(C) == CORES - 1

        site[A].job_requests.stop(second)
        site.wait_remaining(CORES, A, B, C)
        for node in (A, B, C):
            counts = site.counts(node)
            assert counts["returns_ignored"] == 0
            assert counts["returned_by_reconciler"] == 0


def test_a_waiting_job_gets_a_missed_notice_of_free_resources_again(tmp_path):
    with three_nodes(tmp_path, {C: PATIENT}) as site, scripted() as (proxy, proxy_url):
        holder = site.submit(guest=CORES)
        site.wait_status(holder, JobStatus.RUNNING)
        waiting = site.submit(
            scheduler=C,
            guest=4,
        )
        site.wait_waiting(waiting, A)
        proxy.will(text(b"bad gateway", 502))

        def is_notice_lost():
            return any(
                request.target.endswith("/job/resource/free") and request.body["job_id"] == waiting
                for request in proxy.requests
            )

        set_routes(site[A], site.nodes, {C: proxy_url})
        site[A].job_requests.stop(holder)
        wait_for(is_notice_lost, LONG, 0.01, "the notice is lost")
        assert site.status(waiting, C) is JobStatus.READY

        set_routes(site[A], site.nodes)
        site[A].resources.reconcile()
        site.wait_status(waiting, JobStatus.RUNNING, C)


def test_the_sites_default_applies_and_is_recorded_as_such(tmp_path):
    defaults = {
        "limits": {
            "cpu": 2,
            "memory_gib": 1,
        },
        "resources": {"roles": {"arbiter": {"cpu": 0.5}}},
    }
    with three_nodes(tmp_path, dict.fromkeys((A, B, C), defaults)) as site:
        guest_request = {
            "cpu": -1,
            "memory": 3,
            "disk": -1,
        }
        job_id = site.submit(
            guest=guest_request,
            arbiter={},
        )
        site.wait_running(job_id, "a")

        [run] = site.runs(job_id)
        assert run.limits["cpu"] == 2
        assert run.limits["memory"] == 3 * GIB
        assert run.limits["disk"] is None
        assert run.limit_origins == {
            "cpu": "site default",
            "memory": "guest.0",
            "disk": "the node's bound",
        }
        launched = site[A].engine.launches[0]
        assert launched.limits.cpu == 2
        assert launched.limits.memory == 3 * GIB
        assert site.remaining(A) == CORES - 2
        assert site.remaining(C) == CORES - 0.5


# ------------------------------------------------------------ jobs of a standard scheduling node


class StandardJob:
    """A job of 20 cores at B, with the requests of a scheduling node that follows the standard."""

    def __init__(self, node):
        self.node = node
        self.spec = a_spec(
            "a",
            {
                "host": (B,),
                "guest": (A,),
            },
            scheduler=A,
            initiator=A,
            initiator_role="guest",
            job_id=f"job-{uuid4().hex}",
            job_params={"host": {"0": {"resources": {"cpu": 20}}}},
        )
        self.id = self.spec.job_id

    def create(self):
        return self.node.participant.create_job(self.spec, A)

    def start(self):
        self.node.participant.start_job(self.id, A)

    def start_task(self):
        self.node.participant.start_task(
            self.id,
            f"task_{self.id}",
            "a",
            A,
        )

    def stop(self):
        self.node.participant.stop_job(
            self.id,
            "",
            None,
            A,
        )

    def request_resources(self, verb, sender=A):
        """Apply for the job's resources, or return them, over the wire; return the response."""
        response = self.node.post(
            f"/v1/interconn/schedule/job/resource/{verb}",
            {"job_id": self.id},
            listener="peer",
            headers={"x-source-node-id": sender},
        )
        return SimpleNamespace(**response.json())


@pytest.fixture
def job(site):
    job = StandardJob(site[B])
    job.create()
    return job


def test_a_scheduling_node_of_the_standard_starts_without_asking_first(site, job):
    """It does not know of resources: the node reserves them itself, or refuses the start."""
    second = StandardJob(site[B])
    second.create()

    job.start()
    assert site.remaining(B) == CORES - 20
    busy = f"needs cpu 20 on node .*, free cpu 4, held by job {job.id}"
    for start in (second.start, second.start_task):
        with pytest.raises(Refused, match=busy) as refusal:
            start()
        assert refusal.value.reason == "RESOURCES_BUSY"
    assert site[B].store.local_jobs.get(second.id).status is JobStatus.READY

    job.stop()
    site.wait_remaining(CORES, B)
    second.start()
    second.stop()
    site.wait_remaining(CORES, B)


def test_over_the_wire_held_returned_and_out_of_step(site):
    job = StandardJob(site[B])
    assert job.create().tasks_at_once == 1
    ignored = site.counts(B)["returns_ignored"]

    # A return before the application is counted.
    assert job.request_resources("return").code == 0
    assert site.counts(B)["returns_ignored"] == ignored + 1

    for _ in range(2):
        assert job.request_resources("apply").code == 0
        assert site.remaining(B) == CORES - 20
    assert job.request_resources("apply", sender=C).data["reason"] == "JOB_UNKNOWN"

    for _ in range(2):  # the second return is counted as well
        assert job.request_resources("return").code == 0
        assert site.remaining(B) == CORES
    assert site.counts(B)["returns_ignored"] == ignored + 2

    job.request_resources("apply")
    job.start()
    assert job.request_resources("return").data["reason"] == "CONFLICT"
    job.stop()
    assert job.request_resources("apply").data["reason"] == "JOB_ENDED"
    site.wait_remaining(CORES, B)


def test_reservations_of_a_job_that_never_starts_are_released_in_time(site, job, monkeypatch):
    resources = site[B].resources
    expired = site.counts(B)["expired"]
    site[B].participant.hold(job.id, A)
    resources.reconcile()
    assert site.remaining(B) == CORES - 20

    monkeypatch.setattr("gateway.jobs.resources.LEASE", timedelta())
    time.sleep(0.01)  # the clock has to move past the lease
    resources.reconcile()
    assert site.remaining(B) == CORES
    assert site.counts(B)["expired"] == expired + 1

    job.start()  # reserves again
    resources.reconcile()
    assert site.remaining(B) == CORES - 20
    job.stop()
    site.wait_remaining(CORES, B)
