"""A revoked grant stays revoked whatever permits remain, and a person's grant is no permit's."""

import pytest

from tests.inprocess import PEER
from tests.trust.agreeing import call_api, status_of, terminate, wait_for_status
from tests.trust.permits import (
    ADDRESS,
    PUBLISHED,
    a_job,
    create_at_me,
    end_permit,
    get_permit,
    world_with_contract,
)

GRANT = PUBLISHED.replace("published", f"grants/{PEER}")
NARROW = {"PROJECT": ["project-1"]}
REFUSED = "NOT_AUTHORISED"
OUT_OF_SCOPE = "PERMIT_OUT_OF_SCOPE"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Nodes with a contract; `ME` grants its dataset to partners, and requires no permit."""
    with world_with_contract(tmp_path_factory.mktemp("nodes"), "known") as world:
        yield world


def grant(world, **fields):
    """Grant the dataset to `PEER`, as a person does."""
    call_api(world.me, "PUT", GRANT, fields)


def revoke(world):
    """Revoke the grant of `PEER`, as a person does."""
    call_api(world.me, "DELETE", GRANT)


def grant_of(world):
    """Return the grant of `PEER` as the owner shows it."""
    grants = call_api(world.me, "GET", f"/dataset-grants?node={PEER}")["grants"]
    return grants[0]


def in_project(project="project-1"):
    """Build a job of `PEER` in a project."""
    return a_job(flow_id=project)


def test_a_revocation_ends_every_permit_at_both_nodes(world):
    wide = get_permit(world)
    narrow = get_permit(world, scope=NARROW)
    assert create_at_me(world, in_project()) == ""

    revoke(world)

    assert create_at_me(world, in_project()) == REFUSED
    for mine, theirs in (wide, narrow):
        assert status_of(world.me, theirs) == "TERMINATED"
        wait_for_status(world.peer, mine, "TERMINATED")


def test_a_new_approval_after_a_revocation_opens_its_scope_only(world):
    get_permit(world)
    revoke(world)

    new = get_permit(world, scope=NARROW)

    assert create_at_me(world, in_project("project-1")) == ""
    assert create_at_me(world, in_project("project-2")) == OUT_OF_SCOPE
    end_permit(world, *new)


def test_a_new_approval_revives_no_permit_from_before_a_revocation(world):
    mine, theirs = get_permit(world)
    # As after a revocation that a crash interrupted, or that an older version made.
    world.me.sharing.revoke(ADDRESS, PEER, "ann")

    new = get_permit(world, scope=NARROW)

    assert status_of(world.me, theirs) == "TERMINATED"
    wait_for_status(world.peer, mine, "TERMINATED")
    assert create_at_me(world, in_project("project-1")) == ""
    assert create_at_me(world, in_project("project-2")) == OUT_OF_SCOPE
    end_permit(world, *new)


@pytest.mark.parametrize("first", [0, 1], ids=["older permit first", "newer permit first"])
def test_the_end_of_a_permit_revives_no_revoked_grant(world, first):
    permits = [get_permit(world), get_permit(world, scope=NARROW)]
    # As after a revocation that a crash interrupted: the permits have not ended with the grant.
    world.me.sharing.revoke(ADDRESS, PEER, "ann")

    for _, theirs in (permits[first], permits[1 - first]):
        terminate(world.me, theirs)

        assert grant_of(world)["state"] == "revoked"
        assert create_at_me(world, in_project()) == REFUSED


def test_an_approval_leaves_a_grant_of_a_person_as_it_is(world):
    grant(world, reason="by telephone")

    permit = get_permit(world, scope=NARROW)

    assert grant_of(world)["reason"] == "by telephone"
    assert grant_of(world)["expires_at"] is None
    assert create_at_me(world, in_project("project-2")) == ""
    end_permit(world, *permit)
    assert create_at_me(world, in_project("project-2")) == ""
    revoke(world)
    assert create_at_me(world, in_project("project-2")) == REFUSED


def test_a_grant_of_a_person_opens_what_a_permit_does_not(world):
    permit = get_permit(world, scope=NARROW)
    assert create_at_me(world, in_project("project-2")) == OUT_OF_SCOPE

    grant(world)

    assert create_at_me(world, in_project("project-2")) == ""
    end_permit(world, *permit)
    assert create_at_me(world, in_project("project-2")) == ""
    revoke(world)


def test_an_approval_outlasts_a_shorter_grant_of_a_person(world):
    grant(world, expires_at="2099-01-01T00:00:00Z")

    permit = get_permit(world)

    assert grant_of(world)["expires_at"] is None
    end_permit(world, *permit)
