"""Parties of one role with different providers of the same component."""

import copy
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Invalid
from provider_registry.registration import provider_from_request
from tests.builders import a_spec
from tests.contracts.apis import World, registration
from tests.inprocess import ME, PEER

pytestmark = pytest.mark.xdist_group("providers_of_parties")
AT = "config.job_params.host.1.providers.a"

_numbers = count()


def a_job_with(scratch: list[str], chosen: str) -> JobSpec:
    roles = {"guest": (ME,), "host": (ME, PEER)}
    params = {"common": {}, "host": {"1": {"providers": {"a": chosen}}}}
    spec = a_spec("a", roles, job_id=f"job-providers-{next(_numbers)}", job_params=params)
    scratch.append(spec.job_id)
    return replace(spec, scheduler=ME, initiator=ME)


def other(name: str, **changes: Any) -> Any:
    body = copy.deepcopy(registration())
    body["name"] = name
    for described in body["components_description"].values():
        described |= {"provider": name, **changes}
    return provider_from_request(body)


def test_a_party_runs_its_own_provider_of_a_component(world: World, scratch: list[str]):
    world.peer.registry.register(other("theirs"))
    spec = a_job_with(scratch, "theirs:1.0.0")
    world.me.coordinator.submit_job(spec, ME)
    runs = [world.run(spec.job_id, "a", label) for label in ("guest.0", "host.0")]
    runs.append(world.run(spec.job_id, "a", "host.1", world.peer))
    assert [run.component.provider for run in runs] == ["vendor", "vendor", "theirs"]
    (warning,) = (text for text in world.job(spec.job_id).warnings if AT in text)
    assert "theirs" in warning and "is not compared" in warning
    world.end_all(spec)
    assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED


def test_one_that_differs_in_what_flows_use_is_refused(world: World, scratch: list[str]):
    table = {"name": "found", "description": "a table", "category": "dataset", "dataFormat": ["csv"]}
    world.me.registry.register(other("unlike", outputData=[table]))
    world.me.registry.register(other("alike"))
    world.peer.registry.register(other("alike"))
    with pytest.raises(Invalid) as refused:
        world.me.coordinator.submit_job(a_job_with(scratch, "unlike:1.0.0"), ME)
    (problem,) = refused.value.problems
    assert problem.path == AT and "differs from vendor:1.0.0/Thing in outputs" in problem.rule
    spec = a_job_with(scratch, "alike:1.0.0")
    world.me.coordinator.submit_job(spec, ME)
    assert not [text for text in world.job(spec.job_id).warnings if AT in text]
    world.stop(spec)


def test_a_node_learns_its_own_provider_alone():
    spec = a_spec("a -> b", {"guest": ("n1",), "host": ("n2", "n3")})
    spec = replace(
        spec, job_params={"host": {"0|1": {"providers": {"b": "x:2"}}, "1": {"providers": {"a": "y:1"}}}}
    )
    found = {node: [str(one.component) for one in spec.for_node(node).dag.nodes] for node in spec.nodes}
    usual = "vendor:1.0.0/Thing"
    assert found == {"n1": [usual, usual], "n2": [usual, "x:2/Thing"], "n3": ["y:1/Thing", "x:2/Thing"]}
    assert spec.for_node("n3").for_node("n3") == spec.for_node("n3")
    assert "y:1" not in str(spec.for_node("n2"))
