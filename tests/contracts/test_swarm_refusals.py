"""Refusals and losses of a Swarm, played by a stand-in for the client of its manager."""

from typing import Any

import pytest
from docker.errors import APIError, NotFound
from docker.types import Mount as DockerMount

from engines.base import CreateFailed, EngineDown, LaunchSpec, Limits, Mount
from engines.docker.daemon import Source
from engines.image import Image
from engines.swarm import SwarmEngine, SwarmOptions
from engines.swarm import engine as swarm
from engines.swarm.tasks import run_template
from tests.contracts.scripted_daemon import RUN, RUN_LABELS, Daemon, a_run, api_error


def a_swarm(**responses: Any) -> tuple[SwarmEngine, Daemon]:
    daemon = Daemon(**responses)
    return SwarmEngine("n", "i", client=daemon), daemon


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine repeat requests without a pause."""
    monkeypatch.setattr(swarm, "PAUSE", 0.0)


SERVICE_TO_END = {
    "ID": "s",
    "Version": {"Index": 1},
}


@pytest.mark.parametrize(
    ("response", "is_ended"),
    [
        (None, True),
        (api_error(404, "no", NotFound), True),
        (api_error(500, "rpc error: update out of sequence"), False),
    ],
    ids=["updated", "gone", "changed by another client"],
)
def test_a_task_is_ended_unless_another_client_has_just_changed_it(response, is_ended):
    engine, _ = a_swarm(update_service=[response])

    assert engine._end(SERVICE_TO_END) is is_ended


def test_a_task_that_the_manager_does_not_end_is_an_error():
    engine, _ = a_swarm(update_service=[api_error(500)])

    with pytest.raises(APIError):
        engine._end(SERVICE_TO_END)


def a_machine(state: str, availability: str) -> dict[str, Any]:
    """Return a machine with one core, as a manager lists it."""
    return {
        "ID": f"{state}-{availability}",
        "Spec": {"Availability": availability},
        "Status": {"State": state},
        "Description": {"Resources": {"NanoCPUs": 1_000_000_000, "MemoryBytes": 1 << 30}},
    }


UNAVAILABLE_MACHINES = [
    a_machine("down", "active"),
    a_machine("ready", "drain"),
    a_machine("ready", "pause"),
]


def test_a_swarm_without_available_machines_is_down():
    """Jobs wait for the machines then, and do not fail."""
    engine, _ = a_swarm(nodes=[UNAVAILABLE_MACHINES])

    with pytest.raises(EngineDown, match="all are away or drained"):
        engine.capacity()


def test_only_available_machines_count():
    available = a_machine("ready", "active")
    engine, _ = a_swarm(nodes=[[*UNAVAILABLE_MACHINES, available]], tasks=[[]])

    assert engine.capacity().cpu == 1


def test_a_machine_that_left_the_swarm_is_gone():
    engine, _ = a_swarm(inspect_node=[api_error(404, "no", NotFound)])

    assert engine._is_gone("m")


def test_an_existing_network_of_a_run_is_used():
    engine, _ = a_swarm(create_network=[api_error(409, "already exists")])

    assert engine._network("r") == "r"


def test_a_network_of_a_run_that_cannot_be_created_is_an_error():
    engine, _ = a_swarm(create_network=[api_error(500)])

    with pytest.raises(APIError):
        engine._network("r")


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize(
    "second_response", [None, api_error(404, "no", NotFound)], ids=["removed", "gone"]
)
def test_a_runs_network_is_removed_once_it_is_not_in_use(second_response):
    engine, daemon = a_swarm(
        inspect_service=[api_error(404, "no", NotFound)],
        networks=[[{"Name": RUN}]],
        remove_network=[
            api_error(400, "in use"),
            second_response,
        ],
    )

    engine.remove(RUN)

    assert daemon.calls.count("remove_network") == 2


@pytest.mark.usefixtures("without_pauses")
def test_a_run_is_created_again_while_its_former_network_is_removed():
    engine, daemon = a_swarm(
        nodes=[[]],
        create_network=[{}],
        create_service=[
            api_error(400, "network r not found"),
            {},
        ],
    )

    engine._create(
        a_run(limits=Limits()),
        Image("i"),
    )

    assert daemon.calls.count("create_service") == 2


def container_of_task(spec: LaunchSpec, *mounts: DockerMount) -> Any:
    """Return the container of a run's task."""
    task = run_template(
        spec,
        "i",
        Image(),
        list(mounts),
        "net",
        1.0,
        SwarmOptions(),
    )
    return task["ContainerSpec"]


def test_no_name_in_a_task_is_a_template():
    """Attack: a Swarm fills in templates.

    Partners choose names of jobs, and thereby of folders and variables.
    """
    evil = '{{"bank"}}{{{'
    mount = DockerMount(
        f"/bfia/{evil}",
        f"/mnt/{evil}",
        type="bind",
    )

    container = container_of_task(
        a_run(environment={evil: evil}),
        mount,
    )

    mounted = container["Mounts"][0]
    for text in (mounted["Source"], mounted["Target"], container["Env"][-1]):
        assert "{{" not in text.replace('{{"{{"}}', "")
        assert text.replace('{{"{{"}}', "{{").endswith(evil)


def test_the_health_check_of_an_image_is_switched_off():
    """A check would be work of the daemon, beyond the limits of the run."""
    assert container_of_task(a_run())["Healthcheck"]["Test"] == ["NONE"]


REPOSITORIES = ("evil:5000/a@sha256:1", "shop:5000/a@sha256:2", "shop:5000/b@sha256:3")


@pytest.mark.parametrize(
    ("digests", "image"),
    [
        (REPOSITORIES, "shop:5000/a@sha256:2"),
        (REPOSITORIES[::2], "evil:5000/a@sha256:1"),
        ((), "i"),
    ],
    ids=["from its own", "its own is unknown", "from none"],
)
def test_machines_fetch_an_image_from_its_own_repository(monkeypatch, digests, image):
    """Attack: another vendor's index has the same image for the manager.

    For other machines, the index has another image.
    """
    templates: list[tuple[LaunchSpec, str]] = []

    def record_template(spec, reference, **_):
        templates.append((spec, reference))

    monkeypatch.setattr(swarm, "run_template", record_template)
    engine, _ = a_swarm(
        nodes=[[]],
        create_network=[{}],
        create_service=[{}],
    )
    image_labels = {
        "proxy": "on",
        "bfia.task": "another",
    }

    engine._create(
        a_run(
            limits=Limits(),
            image="shop:5000/a:1",
        ),
        Image("i", image_labels, digests),
    )

    ((spec, fetched_image),) = templates
    assert fetched_image == image
    assert spec.labels["proxy"] == ""  # the image's labels do not count
    assert spec.labels["bfia.task"] == "task_1"


def test_a_run_that_is_removed_before_it_begins_is_named():
    engine, _ = a_swarm(inspect_service=[api_error(404, "no", NotFound)])

    with pytest.raises(CreateFailed, match="was removed before it had begun"):
        engine._has_started(
            "bfia-run",
            place_time_over=False,
            start_time_over=False,
        )


def test_a_run_that_begins_too_late_is_named():
    now = "2026-11-26T04:00:00Z"
    status = {
        "State": "preparing",
        "Timestamp": now,
        "Message": "pulls",
    }
    task = {
        "ID": "t",
        "NodeID": "m",
        "DesiredState": "running",
        "CreatedAt": now,
        "Spec": {"ContainerSpec": {"Labels": {"bfia.run": RUN}}},
        "Status": status,
    }
    service = {
        "ID": "s",
        "Spec": {"Labels": RUN_LABELS},
    }
    engine, _ = a_swarm(
        inspect_service=[service],
        tasks=[[task]],
    )

    words = r"did not begin in time on its machine \(preparing\): pulls"
    with pytest.raises(CreateFailed, match=words):
        engine._has_started(
            RUN,
            place_time_over=True,
            start_time_over=True,
        )


def test_a_swarm_shares_no_volumes(tmp_path):
    options = SwarmOptions(sources=(Source(tmp_path, volume="v"),))
    engine = SwarmEngine("n", "i", options, Daemon())
    spec = a_run(mounts=(Mount(tmp_path / "in", "/in"),))

    with pytest.raises(CreateFailed, match="volume v: a Swarm shares no volumes"):
        engine._create(spec, Image("i"))
