"""Grants: the nodes whose jobs may use a dataset."""

from typing import Any

import pytest

from gateway.domain.datasets import (
    Default,
    Grant,
    NamedDataset,
    named_datasets,
    partners,
    without_grant,
)
from gateway.domain.run import Address
from tests.builders import a_spec, at

TABLE = Address("ns", "t")
NOW = at(100)


def a_grant(node: str = "n2", **changes: Any) -> Grant:
    fields = {
        "dataset": TABLE,
        "node": node,
        "granted_at": at(0),
        "granted_by": "ann",
        **changes,
    }
    return Grant(**fields)


def nodes_without_grant(
    *grants: Grant,
    nodes: tuple[str, ...] = ("n2",),
    default: Default = Default.OPEN,
) -> list[str]:
    """Return the nodes that may not use the dataset now."""
    return [node for node, _ in without_grant(grants, nodes, default, NOW)]


@pytest.mark.parametrize(
    ("default", "excluded"),
    [
        (Default.OPEN, []),
        (Default.LISTED, ["n2"]),
    ],
)
def test_the_setting_decides_on_a_dataset_without_grants(default, excluded):
    assert nodes_without_grant(default=default) == excluded


def test_the_first_grant_closes_a_dataset_to_all_other_nodes():
    assert nodes_without_grant(a_grant("n2"), nodes=("n2", "n3")) == ["n3"]


def test_a_grant_ends_by_time_or_revocation_and_its_end_opens_nothing():
    unexpired = a_grant(expires_at=at(101))
    expired = a_grant(expires_at=at(100))
    revoked = a_grant(revoked_at=at(50))

    assert nodes_without_grant(unexpired) == []
    assert nodes_without_grant(expired) == ["n2"]
    assert nodes_without_grant(revoked, nodes=("n2", "n3")) == ["n2", "n3"]


@pytest.mark.parametrize(
    ("seconds", "state"),
    [(8, "in force"), (9, "expired")],
)
def test_a_grant_is_in_force_until_it_expires(seconds, state):
    assert a_grant(expires_at=at(9)).state(at(seconds)) == state


def every_role(_task: Any) -> None:
    """Name no roles for a task: it belongs to every role."""


def host_only(_task: Any) -> tuple[str, ...]:
    return ("host",)


def test_both_spellings_of_a_location_name_the_same_dataset():
    params = {
        "guest": {"0": {"a": {"dataset_id": "ns#t"}}},
        "host": {"0": {"a": {"namespace": "ns", "name": "t"}}},
    }
    spec = a_spec(
        "a -> b",
        {
            "guest": ("n1",),
            "host": ("n1",),
        },
        task_params=params,
    )

    assert list(named_datasets(spec, "n1", every_role)) == [
        NamedDataset("config.task_params.guest.0.a.dataset_id", TABLE, "vendor/Thing"),
        NamedDataset("config.task_params.host.0.a.name", TABLE, "vendor/Thing"),
    ]
    assert len(list(named_datasets(spec, "n1", host_only))) == 1
    assert list(named_datasets(spec, "n2", every_role)) == []


def test_partners_are_the_other_nodes_and_the_initiator():
    roles = {
        "guest": ("n1",),
        "host": ("n2", "n3"),
        "arbiter": ("n2",),
    }
    job_of_many = a_spec("a", roles, initiator="n9")
    job_of_one = a_spec(
        "a",
        {
            "guest": ("n1",),
            "host": ("n1",),
        },
        initiator="n1",
    )

    assert partners(job_of_many, "n1") == ["n2", "n3", "n9"]
    assert partners(job_of_one, "n1") == []
