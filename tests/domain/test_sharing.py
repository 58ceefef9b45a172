"""Whose jobs may use a dataset."""

from typing import Any

from gateway.domain.datasets import Default, Grant, Wanted, partners, wanted, without_grant
from gateway.domain.run import Address
from tests.builders import a_spec, at

TABLE = Address("ns", "t")


def a_grant(node: str = "n2", **changes: Any) -> Grant:
    return Grant(
        **{
            "dataset": TABLE,
            "node": node,
            "granted_at": at(0),
            "granted_by": "ann",
            **changes,
        }
    )


def named(
    *grants: Grant,
    others: tuple[str, ...] = ("n2",),
    default: Default = Default.OPEN,
) -> list[str]:
    return [node for node, _ in without_grant(grants, others, default, at(100))]


def test_what_holds_without_a_grant_is_the_setting():
    assert named() == []
    assert named(default=Default.LISTED) == ["n2"]


def test_the_first_grant_closes_a_dataset_for_all_others():
    assert named(a_grant(), others=("n2", "n3")) == ["n3"]


def test_a_grant_ends_by_time_or_revocation_and_its_end_opens_nothing():
    assert named(a_grant(expires_at=at(101))) == []
    assert named(a_grant(expires_at=at(100))) == ["n2"]
    assert named(a_grant(revoked_at=at(50)), others=("n2", "n3")) == ["n2", "n3"]
    assert [a_grant(expires_at=at(9)).state(at(t)) for t in (8, 9)] == ["in force", "expired"]


def test_both_forms_name_the_same_dataset():
    params = {
        "guest": {"0": {"a": {"dataset_id": "ns#t"}}},
        "host": {"0": {"a": {"namespace": "ns", "name": "t"}}},
    }
    spec = a_spec("a -> b", {"guest": ("n1",), "host": ("n1",)}, task_params=params)
    assert list(wanted(spec, "n1", lambda _: None)) == [
        Wanted("config.task_params.guest.0.a.dataset_id", TABLE),
        Wanted("config.task_params.host.0.a.name", TABLE),
    ]
    assert len(list(wanted(spec, "n1", lambda _: ("host",)))) == 1
    assert list(wanted(spec, "n2", lambda _: None)) == []


def test_partners_are_the_other_nodes_and_the_initiator():
    spec = a_spec(
        "a",
        {
            "guest": ("n1",),
            "host": ("n2", "n3"),
            "arbiter": ("n2",),
        },
        initiator="n9",
    )
    assert partners(spec, "n1") == ["n2", "n3", "n9"]
    alone = a_spec("a", {"guest": ("n1",), "host": ("n1",)}, initiator="n1")
    assert partners(alone, "n1") == []
