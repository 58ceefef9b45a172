"""A partner asks for datasets by guessed names, to learn which ones exist: by ``job/plan`` and ``job/create``."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from adapter.bfia.peer import INTERCONN
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from tests.builders import a_spec
from tests.contracts.apis import THIRD, World, two_nodes
from tests.inprocess import ME, PEER, ask

UNKNOWN, THERE, OTHERS, EXPIRED, DISABLED = (f"space#{n}" for n in ("none", "there", "others", "ended", "off"))
_numbers = count()


@pytest.fixture(scope="module", params=["listed", "open"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """`ME` has datasets: one that nobody was granted, one of `THIRD`, one that `PEER` had, one out of use."""
    with two_nodes(tmp_path_factory.mktemp("nodes"), me={"data": {"grants": request.param}}) as world:
        for name in ("others", "ended", "off", *(["there"] if request.param == "listed" else [])):
            form = {"namespace": "space", "name": name, "head": "true", "partitions": "1"}
            form["meta"] = '{"delimiter": ",", "match_id_name": "id"}'
            file = {"file": ("t.csv", b"id,x\na,1\nb,2\n", "text/csv")}
            answer = ask(world.me, "operator", "POST", "/v2/component/upload/file", data=form, files=file)
            assert answer.json()["code"] == 0, answer.text
            if name != "there":
                world.me.sharing.grant(Address("space", name), THIRD, "ann")
        world.me.sharing.grant(Address("space", "ended"), PEER, "ann")
        world.me.sharing.revoke(Address("space", "ended"), PEER, "ann")
        world.me.sharing.switch(Address("space", "off"), disabled=True)
        yield world


def asked(world: World, command: str, dataset: str) -> dict[str, Any]:
    """Return what `ME` answers to a job of `PEER` that names a dataset; without the name itself."""
    spec: JobSpec = a_spec("a", {"guest": (PEER,), "host": (ME,)})
    params = {"host": {"0": {"a": {"dataset_id": dataset}}}}
    body = create_body(spec, PROFILES["spec"]) | {"job_id": f"job-oracle-{next(_numbers)}"}
    body["config"]["task_params"] = params
    answer = ask(
        world.me, "peer", "POST", f"{INTERCONN}/job/{command}", json=body, headers={"x-source-node-id": PEER}
    )
    return dict(json.loads(answer.text.replace(dataset, "(asked)")))


@pytest.mark.parametrize("command", ["plan", "create"])
@pytest.mark.parametrize("dataset", [THERE, OTHERS, EXPIRED, DISABLED])
def test_one_that_is_not_granted_is_answered_as_one_that_is_not_there(world: World, command: str, dataset: str):
    told = asked(world, command, UNKNOWN)
    assert "NOT_AUTHORISED" in str(told)
    assert asked(world, command, dataset) == told
