"""What a person removes from a route never lets more through than before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.bootstrap.node import Gateway
from gateway.diagnostics.network import signing_of
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.runtime.trials import Result
from tests.inprocess import ME, PEER, ask, running
from tests.trust.agreeing import route

POLL = "/v1/interconn/schedule/task/poll"
KEY = KeyPair(KEY_GENERATORS["ed25519"]()).public
ADDRESS = {"url": "http://127.0.0.1:9"}


def polled(node: Gateway) -> str:
    """Poll a task in the partner's name, without a signature; return the reason of the refusal."""
    headers = {"x-source-node-id": PEER, "x-target-node-id": ME}
    answer = ask(
        node, "peer", "POST", POLL, json={"task_id": "t", "role": "guest"}, headers=headers
    )
    return str(answer.json()["data"]["reason"])


def changed(
    node: Gateway,
    method: str,
    entry: dict[str, Any],
    status: int = 200,
) -> Any:
    answer = ask(node, "operator", method, f"/api/v1/routes/{PEER}", json={"route": entry})
    assert answer.status_code == status, answer.text
    return answer.json()


def by_unset(node: Gateway) -> None:
    changed(node, "PATCH", {"keys": None})


def by_a_new_entry(node: Gateway) -> None:
    changed(node, "PUT", ADDRESS)


def by_the_file(node: Gateway) -> None:
    route(node, {PEER: ADDRESS})


def by_rollback(node: Gateway) -> None:
    answer = ask(node, "operator", "POST", "/api/v1/route-versions/2/rollback", json={})
    assert answer.status_code == 200, answer.text


def by_unset_of_all(node: Gateway) -> None:
    changed(
        node,
        "PATCH",
        {
            "keys": None,
            "signing": None,
            "bundles": None,
        },
    )
    changed(node, "PATCH", {"signing": None})


def by_removal_and_a_new_entry(node: Gateway) -> None:
    route(node, {})
    route(node, {PEER: ADDRESS})


WAYS = [
    by_unset,
    by_a_new_entry,
    by_the_file,
    by_rollback,
    by_unset_of_all,
    by_removal_and_a_new_entry,
]


@pytest.mark.parametrize(
    "accepted", [{}, {"signing": "required", "bundles": "required"}], ids=["keys", "partner"]
)
@pytest.mark.parametrize("removed", WAYS)
def test_a_route_without_its_last_key_takes_nothing(
    tmp_path: Path,
    removed: Callable[[Gateway], None],
    accepted: dict[str, str],
):
    """Attack: the partner's lost key is revoked, and whoever has found its name sends requests without one."""
    with running(tmp_path) as me:
        route(me, {PEER: ADDRESS})
        route(
            me,
            {
                PEER: {
                    **ADDRESS,
                    "keys": KEY,
                    **accepted,
                }
            },
        )
        assert polled(me) == "SIGNATURE_REFUSED"
        removed(me)
        assert me.routes.table.routes[PEER].keys == ()
        assert polled(me) == "SIGNATURE_REFUSED"
        written = yaml.safe_load((tmp_path / "routes.yml").read_text())
        assert written[PEER]["signing"] == "required"  # the file says so, too
        assert me.routes.problems == ()


def test_a_route_takes_unsigned_requests_again_by_an_explicit_word(tmp_path: Path):
    with running(tmp_path) as me:
        route(me, {PEER: {**ADDRESS, "keys": KEY}})
        changed(me, "PATCH", {"keys": None})
        changed(me, "PATCH", {"signing": "off"})
        assert polled(me) == "TASK_UNKNOWN"


def test_a_file_that_cannot_be_written_weakens_no_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with running(tmp_path) as me:
        route(me, {PEER: {**ADDRESS, "keys": KEY}})
        (
            tmp_path / ".routes.yml.part"
        ).mkdir()  # in the place of the file that would become the new one
        (tmp_path / "routes.yml").write_text(yaml.safe_dump({PEER: ADDRESS}))
        for _ in range(2):
            me.routes.reload()
            assert "cannot be written" in str(me.routes.problems[0])
            assert polled(me) == "SIGNATURE_REFUSED"


def test_doctor_names_a_route_that_takes_nothing(tmp_path: Path):
    with running(tmp_path) as me:
        route(me, {PEER: {**ADDRESS, "keys": KEY}})
        changed(me, "PATCH", {"keys": None})
        step = signing_of(me.settings)
        assert (
            step.result is Result.WARNING and PEER in step.cause and "partner accept" in step.remedy
        )


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_list_of_components_is_not_removed_unnoticed(tmp_path: Path, method: str):
    """Attack: none; a person who takes the last component away would have allowed all of them."""
    with running(tmp_path) as me:
        route(
            me,
            {
                PEER: {
                    **ADDRESS,
                    "keys": KEY,
                    "components": "vendor/*",
                }
            },
        )
        entry = {
            **ADDRESS,
            "keys": KEY,
            "components": None,
        }
        assert changed(me, method, entry, 400)["data"]["reason"] == "ROUTE_INVALID"
        assert not me.routes.table.routes[PEER].may_run("other/sum")
        changed(me, method, {**entry, "components": "*"})
        assert me.routes.table.routes[PEER].may_run("other/sum")


def test_a_file_without_the_list_of_components_leaves_it_in_force(tmp_path: Path):
    with running(tmp_path) as me:
        route(me, {PEER: {**ADDRESS, "components": "vendor/*"}})
        (tmp_path / "routes.yml").write_text(yaml.safe_dump({PEER: ADDRESS}))
        me.routes.reload()
        assert me.routes.problems[0].path == f"{PEER}.components"
        assert not me.routes.table.routes[PEER].may_run("other/sum")
