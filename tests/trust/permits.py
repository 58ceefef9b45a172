"""A node with a dataset that a partner may use with a permit, and jobs of that partner."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.errors import GatewayError
from gateway.identity.keys import Keyring
from tests.builders import a_spec
from tests.contracts.apis import World, two_nodes
from tests.inprocess import ME, PEER, uploaded
from tests.trust.agreeing import (
    apply_for,
    approve,
    call_api,
    make_contract,
    newest_waiting,
    terminate,
    wait_for_status,
)

DATASET = "bank#credit, 2026"  # the comma separates permits in their header
ADDRESS = Address(*DATASET.split("#"))
PUBLISHED = "/datasets/bank/credit%2C%202026/published"
job_numbers = count()


@contextmanager
def world_with_dataset(home: Path, level: str) -> Iterator[World]:
    """Serve `ME`, which owns a dataset and requires a level of trust, and `PEER`."""
    for node in (ME, PEER):
        Keyring(home / node / "state").make("ed25519")
    settings = {
        "trust": {"level": level},
        "data": {"grants": "listed"},
    }
    with two_nodes(home, me=settings) as world:
        rows = b"id,income\nsecret-a,1\nsecret-b,2\n"
        uploaded(
            world.me,
            ADDRESS.namespace,
            ADDRESS.name,
            rows,
        )
        yield world


@contextmanager
def world_with_contract(home: Path, level: str) -> Iterator[World]:
    """Serve the nodes of `world_with_dataset`, with a contract and the dataset published."""
    with world_with_dataset(home, level) as world:
        make_contract(world.peer, world.me)
        call_api(
            world.me,
            "PUT",
            PUBLISHED,
            {"nodes": [PEER]},
        )
        yield world


def a_job(**changes: Any) -> JobSpec:
    """Build a job of `PEER` that reads the dataset of `ME`."""
    roles = {
        "guest": (PEER,),
        "host": (ME,),
    }
    params = {
        "host": {"0": {"a": {"dataset_id": DATASET}}},
        "guest": {"0": {"a": {"dataset_id": ""}}},
    }
    return a_spec(
        "a",
        roles,
        job_id=f"job-permit-{next(job_numbers)}",
        task_params=params,
        **changes,
    )


def flow_of(spec: JobSpec) -> dict[str, Any]:
    """Return the flow of a job, for an application."""
    flow: dict[str, Any] = create_body(spec, PROFILES["spec"])["dag"]
    return flow


def create_at_me(world: World, spec: JobSpec) -> str:
    """Create a job of `PEER` at `ME`; return the refusal's reason, or ""."""
    try:
        world.peer.peers.participant(ME, "bfia").create_job(spec, PEER)
    except GatewayError as error:
        return error.reason
    return ""


def get_permit(world: World, **fields: Any) -> tuple[int, int]:
    """Apply for the dataset and approve it; return the numbers at `PEER` and at `ME`."""
    mine = apply_for(world.peer, "dataset", world.me, DATASET, **fields)
    theirs = newest_waiting(world.me)
    approve(world.me, theirs)
    wait_for_status(world.peer, mine, "APPROVED")
    return mine, theirs


def end_permit(world: World, mine: int, theirs: int) -> None:
    """Terminate a permit at its owner; wait until `PEER` has learned of it."""
    terminate(world.me, theirs)
    wait_for_status(world.peer, mine, "TERMINATED")
